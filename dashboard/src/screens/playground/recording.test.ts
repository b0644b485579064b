import { expect, it } from "vitest";
import { encodeWav } from "./recording";

it("a WAV file has its length, its rate and clipped samples", () => {
  const view = new DataView(encodeWav(new Float32Array([0, 1, -2]), 16_000));
  expect(view.byteLength).toBe(50);
  expect([view.getUint32(4, true), view.getUint32(24, true), view.getUint32(40, true)]).toEqual([42, 16_000, 6]);
  expect([view.getInt16(44, true), view.getInt16(46, true), view.getInt16(48, true)]).toEqual([0, 32_767, -32_767]);
});
