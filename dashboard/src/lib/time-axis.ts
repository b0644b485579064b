/** Times on the axis of a chart, and rates from totals per step. Pure. */

/** Format a time for the axis: the hour for short steps, the date for steps of a day. */
export function formatTick(at: string, stepS: number): string {
  const date = new Date(at);
  const two = (value: number) => String(value).padStart(2, "0");
  const day = `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  if (stepS >= 86_400) return day;
  if (stepS >= 3_600 && date.getHours() === 0) return day;
  return `${two(date.getHours())}:${two(date.getMinutes())}`;
}

/**
 * Return the seconds of a step that have passed. The last step has only begun; a rate over its full length would look
 * like a drop.
 */
export function elapsedOfStep(at: string, stepS: number, until: string): number {
  const passed = (Date.parse(until) - Date.parse(at)) / 1000;
  return Math.max(1, Math.min(stepS, passed));
}
