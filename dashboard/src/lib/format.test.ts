import { describe, expect, it } from "vitest";
import { formatBytes, formatCompact, formatDuration, formatMoney, formatNumber, formatPercent, formatRelative } from "./format";

describe("formatNumber", () => {
  it("separates thousands and keeps three digits of small values", () => {
    expect(formatNumber(1234567)).toBe("1,234,567");
    expect(formatNumber(0.123456)).toBe("0.123");
    expect(formatNumber(Number.NaN)).toBe("–");
  });
  it("shortens large numbers only", () => {
    expect(formatCompact(9999)).toBe("9,999");
    expect(formatCompact(1_234_567)).toBe("1.2M");
  });
});

describe("formatMoney", () => {
  it("shows cents for amounts and the leading digits of small prices", () => {
    expect(formatMoney(0)).toBe("$0.00");
    expect(formatMoney(1234.5)).toBe("$1,234.50");
    expect(formatMoney(0.000345)).toBe("$0.000345");
    expect(formatMoney(0.5)).toBe("$0.50");
    expect(formatMoney(-2)).toBe("-$2.00");
    expect(formatMoney(0.0000000001)).toBe("<$0.000001");
  });
});

describe("formatBytes", () => {
  it("uses binary units", () => {
    expect(formatBytes(512)).toBe("512 B");
    expect(formatBytes(1536)).toBe("1.5 KiB");
    expect(formatBytes(80 * 1024 ** 3)).toBe("80.0 GiB");
  });
});

describe("formatDuration", () => {
  it("shows the two largest units", () => {
    expect(formatDuration(0.0123)).toBe("12.3 ms");
    expect(formatDuration(2.44)).toBe("2.4 s");
    expect(formatDuration(185)).toBe("3 min 5 s");
    expect(formatDuration(3600)).toBe("1 h");
    expect(formatDuration(187_200)).toBe("2 d 4 h");
  });
});

describe("formatPercent", () => {
  it("keeps a digit below ten percent", () => {
    expect(formatPercent(0.0123)).toBe("1.2 %");
    expect(formatPercent(0.5)).toBe("50 %");
  });
});

describe("formatRelative", () => {
  it("names past and future", () => {
    const now = new Date("2026-01-02T00:00:00Z");
    expect(formatRelative(new Date("2026-01-01T23:57:00Z"), now)).toBe("3 min ago");
    expect(formatRelative(new Date("2026-01-04T00:00:00Z"), now)).toBe("in 2 d");
    expect(formatRelative(now, now)).toBe("now");
  });
});
