/**
 * Numbers, times and names as text, and guards for values of any type.
 *
 * Pure functions. Answers of the API are input from outside: a key may be missing or have another
 * type, so every reader goes through `text`, `list`, `record` or `number`.
 */

/** @param {unknown} value @returns {any[]} */
export const list = (value) => (Array.isArray(value) ? value : []);

/** @param {unknown} value @returns {Record<string, any>} */
export const record = (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};

/** @param {unknown} value @returns {number | null} */
export const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Any value as text; control and direction characters become visible escapes.
 * @param {unknown} value @returns {string} */
export function text(value) {
  if (value === null || value === undefined) return "";
  const whole = typeof value === "object" ? JSON.stringify(value) : String(value);
  return whole.replace(
    // eslint-disable-next-line no-control-regex
    /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g,
    (one) => ESCAPES[one] ?? `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** The same for texts of several lines, such as stacks: line breaks stay. */
export const lines = (value) =>
  (Array.isArray(value) ? value : String(value ?? "").split("\n")).map(text).join("\n");

/** A name as one segment of a path. Half a surrogate pair cannot be encoded: it becomes U+FFFD. */
export function segment(name) {
  const whole = String(name ?? "");
  try {
    return encodeURIComponent(whole);
  } catch {
    return encodeURIComponent(whole.replace(/[\ud800-\udfff]/g, "\ufffd"));
  }
}

/** `0.4 s`, `34 s`, `3 min`, `2 h 5 min`, `3 d 4 h`, as in the summaries of findings; below 10 ms in ms or µs.
 * @param {unknown} seconds */
export function duration(seconds) {
  const s = number(seconds);
  if (s === null) return "–";
  if (s < 0) return `-${duration(-s)}`;
  if (s === 0) return "0 s";
  if (s < 0.001) return `${Number((s * 1e6).toPrecision(2))} µs`;
  if (s < 0.0995) return `${Number((s * 1e3).toPrecision(2))} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 99.5) return `${Math.round(s)} s`;
  let minutes = Math.round(s / 60);
  if (minutes < 60) return `${minutes} min`;
  let hours = Math.floor(minutes / 60);
  minutes %= 60;
  if (hours < 24) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  const days = Math.floor(hours / 24);
  hours %= 24;
  return hours ? `${days} d ${hours} h` : `${days} d`;
}

/** The same with three digits, so that two similar durations differ: `357 ms`, `12.4 s`. */
export function precise(seconds) {
  const s = number(seconds);
  if (s === null || s >= 60 || s < 0.001) return duration(s);
  return s < 1 ? `${Number((s * 1e3).toPrecision(3))} ms` : `${Number(s.toPrecision(3))} s`;
}

/** An age that ticks: whole seconds up to two minutes, so that a clock is seen to run. */
export function age(seconds) {
  const s = number(seconds);
  if (s === null) return "–";
  return s < 120 ? `${Math.max(0, Math.floor(s))} s` : duration(s);
}

/** `87 B`, `1.5 GiB`. */
export function bytes(count) {
  let size = number(count);
  if (size === null) return "–";
  let unit = "B";
  for (unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 999.5 || unit === "TiB") break;
    size /= 1024;
  }
  return `${size.toFixed(unit !== "B" && Math.abs(size) < 99.95 ? 1 : 0)} ${unit}`;
}

/** `12.5`, `1,204`, `0.03`. */
export function figure(value) {
  const n = number(value);
  if (n === null) return "–";
  if (Math.abs(n) >= 100) return Math.round(n).toLocaleString("en-US");
  return String(Number(n.toPrecision(3)));
}

/** `1 rank`, `16,384 ranks`. */
export const count = (n, one, many = `${one}s`) =>
  `${figure(n)} ${n === 1 ? one : many}`;

/** Microseconds since the epoch of an ISO time in UTC, or NaN. Date.parse drops what is below 1 ms.
 * @param {unknown} iso */
export function micros(iso) {
  const ms = Date.parse(String(iso ?? ""));
  if (Number.isNaN(ms)) return NaN;
  const digits = /\.(\d+)/.exec(String(iso))?.[1] ?? "";
  return Math.floor(ms / 1000) * 1e6 + Number(digits.padEnd(6, "0").slice(0, 6));
}

/** `2026-11-25 21:00:00 local, 20:00:00 UTC` from an ISO time; without the first where that is UTC, too. */
export function bothTimes(iso) {
  const ms = Date.parse(String(iso ?? ""));
  if (Number.isNaN(ms)) return text(iso) || "–";
  const written = (at) => new Date(at).toISOString().slice(0, 19).replace("T", " ");
  const ahead = -new Date(ms).getTimezoneOffset();
  const [utc, local] = [written(ms), written(ms + ahead * 60_000)];
  return ahead ? `${local} local, ${utc.slice(0, 10) === local.slice(0, 10) ? utc.slice(11) : utc} UTC` : `${utc} UTC`;
}

/** `UTC`, and how the reader's clock differs, for axes: `UTC (local +2 h)`. @param {unknown} iso */
export function zoneText(iso) {
  const hours = -new Date(Date.parse(String(iso ?? "")) || 0).getTimezoneOffset() / 60;
  return hours ? `UTC (local ${hours > 0 ? "+" : "−"}${figure(Math.abs(hours))} h)` : "UTC";
}

/** `20:00:01.250`, from microseconds since the epoch. */
export function clockTime(us, digits = 0) {
  if (!Number.isFinite(us)) return "";
  const whole = Math.floor(us / 1e6);
  const rest = String(Math.floor(us - whole * 1e6)).padStart(6, "0");
  const hms = new Date(whole * 1000).toISOString().slice(11, 19);
  return digits ? `${hms}.${rest.slice(0, digits)}` : hms;
}
