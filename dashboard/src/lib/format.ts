/** Text of numbers, sizes, money and times, for people. Pure. */

const INTEGER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** Format a number with thousands separators, and with at most three significant fraction digits below 100. */
export function formatNumber(value: number): string {
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 100) return INTEGER.format(value);
  return new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 }).format(value);
}

/** Format a number shortly: 12.3K, 4.5M. */
export function formatCompact(value: number): string {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) < 10_000 ? formatNumber(value) : COMPACT.format(value);
}

/** Format US dollars: two digits, or as many as a small price needs. */
export function formatMoney(usd: number): string {
  if (!Number.isFinite(usd)) return "–";
  if (usd === 0) return "$0.00";
  const sign = usd < 0 ? "-" : "";
  const amount = Math.abs(usd);
  if (amount >= 0.995) {
    return sign + "$" + amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  }
  if (amount < 0.000001) return `${sign}<$0.000001`;
  const digits = Math.max(2, 2 - Math.floor(Math.log10(amount)));
  return sign + "$" + amount.toFixed(digits).replace(/(\.\d\d\d*?)0+$/, "$1");
}

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Format a number of bytes with a binary unit. */
export function formatBytes(bytes: number): string {
  if (!Number.isFinite(bytes) || bytes < 0) return "–";
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${BYTE_UNITS[unit]}`;
}

/** Format a duration in seconds with its two largest units: 350 ms, 2.4 s, 3 min 5 s, 2 d 4 h. */
export function formatDuration(seconds: number): string {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 0.001) return `${formatNumber(seconds * 1e6)} µs`;
  if (seconds < 1) return `${formatNumber(Math.round(seconds * 1e4) / 10)} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  const units: [string, number][] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const whole = Math.round(seconds);
  const first = units.findIndex(([, size]) => whole >= size);
  const [name, size] = units[first] ?? ["s", 1];
  const rest = Math.floor((whole % size) / (units[first + 1]?.[1] ?? 1));
  const second = units[first + 1];
  return `${Math.floor(whole / size)} ${name}${second && rest > 0 ? ` ${rest} ${second[0]}` : ""}`;
}

/** Format a share between 0 and 1 as percents. */
export function formatPercent(share: number): string {
  if (!Number.isFinite(share)) return "–";
  const percent = share * 100;
  return `${percent > 0 && percent < 10 ? Number(percent.toFixed(1)) : Math.round(percent)} %`;
}

/** Format a time in the local zone: date and time to the second. */
export function formatLocalTime(date: Date): string {
  return `${formatLocalDate(date)} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function formatLocalDate(date: Date): string {
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** Format a time in UTC: date, time to the second, and the zone. */
export function formatUtcTime(date: Date): string {
  return `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Format the distance of a time from `now`: "3 min ago", "in 2 d". */
export function formatRelative(date: Date, now: Date): string {
  const seconds = (now.getTime() - date.getTime()) / 1000;
  if (Math.abs(seconds) < 5) return "now";
  const distance = Math.abs(seconds);
  const units: [string, number][] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const [name, size] = units.find(([, unit]) => distance >= unit) ?? ["s", 1];
  const text = `${Math.floor(distance / size)} ${name}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}
