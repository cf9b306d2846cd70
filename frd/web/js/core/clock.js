/**
 * The service's time, without the wall clock of this machine.
 *
 * Every answer has `at`. Now is the newest `at` plus the monotonic time since it was received
 * first. If `at` does not move although answers arrive (the service does not evaluate), the age of
 * the data grows.
 */
let newest = NaN; // ms since the epoch, on the service's clock
let received = NaN; // performance.now() at the first receipt of `newest`

/** Take the `at` of an answer. A step of more than 10 s backwards is a clock that was set back.
 * @param {unknown} at */
export function learn(at) {
  const ms = Date.parse(String(at ?? ""));
  if (Number.isNaN(ms)) return;
  if (Number.isNaN(newest) || ms > newest || ms < newest - 10_000) {
    newest = ms;
    received = performance.now();
  }
}

/** Milliseconds since the epoch on the service's clock; NaN before the first answer. */
export const now = () => newest + (performance.now() - received);

/** Seconds since the newest data was received; null before the first answer. */
export const dataAge = () =>
  Number.isNaN(received) ? null : (performance.now() - received) / 1000;

/** Seconds from an ISO time until now, or until `end` if that is given; null if unknown. */
export function secondsSince(iso, end = null) {
  const from = Date.parse(String(iso ?? ""));
  const to = end ? Date.parse(String(end)) : now();
  return Number.isNaN(from) || Number.isNaN(to) ? null : (to - from) / 1000;
}

/** @type {Set<() => void>} */
const listeners = new Set();
setInterval(() => {
  if (!document.hidden) for (const listener of [...listeners]) listener();
}, 1000);

/** Call `listener` once a second while the page is visible; answers the function that ends it.
 * @param {() => void} listener */
export function everySecond(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
