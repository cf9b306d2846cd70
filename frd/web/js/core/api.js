/**
 * Requests to the API of this service.
 *
 * Knows nothing of pages. Every failure becomes an `ApiError` with the text of the API, or with
 * what the network did. A 401 is passed to the listener, which shows the sign-in form.
 */
import { learn } from "./clock.js";
import { record, text } from "./format.js";

const TIMEOUT_MS = 20_000;

/** `status` 0: no answer arrived. */
export class ApiError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let unauthorized = () => {};
/** @param {() => void} listener */
export function onUnauthorized(listener) {
  unauthorized = listener;
}

/** The error text of an answer that is not ok. @param {Response} answer */
export async function errorOf(answer) {
  let said = "";
  try {
    said = text(record(await answer.json()).error);
  } catch {
    // not JSON: the status is all there is
  }
  return new ApiError(said || `the service answered HTTP ${answer.status}`, answer.status);
}

/** @param {string} path @param {RequestInit} options @returns {Promise<Response>} */
async function request(path, options) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const signal = options.signal && AbortSignal.any ? AbortSignal.any([options.signal, limit]) : limit;
  try {
    return await fetch(path, { credentials: "same-origin", cache: "no-store", ...options, signal });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    const late = error instanceof DOMException && error.name === "TimeoutError";
    throw new ApiError(
      late ? `the service did not answer within ${TIMEOUT_MS / 1000} s` : "the service cannot be reached",
      0,
    );
  }
}

/** The answer, or the error of the API. @param {string} path @param {RequestInit} options */
async function answered(path, options) {
  const answer = await request(path, options);
  if (answer.ok || answer.status === 304) return answer;
  if (answer.status === 401) unauthorized();
  throw await errorOf(answer);
}

/** GET a text. @param {string} path */
export const textOf = async (path) => (await answered(path, {})).text();

/** GET a JSON object. With `etag`, `data` is null if the server still has that version. `clock` is
 * false for what may be over, such as a finding: its `at` may be long ago, and is not now.
 * @param {string} path @param {{etag?: string, signal?: AbortSignal, clock?: boolean}} [options]
 * @returns {Promise<{data: Record<string, any> | null, etag: string}>} */
export async function get(path, { etag = "", signal, clock = true } = {}) {
  const answer = await answered(path, { headers: etag ? { "If-None-Match": etag } : {}, signal });
  if (answer.status === 304) return { data: null, etag };
  let data;
  try {
    data = record(await answer.json());
  } catch {
    if (signal?.aborted) throw new DOMException("aborted", "AbortError");
    throw new ApiError(`${path}: the answer is not JSON`, answer.status);
  }
  if (clock) learn(data.at);
  return { data, etag: answer.headers.get("ETag") ?? "" };
}

/** POST or DELETE. @param {string} method @param {string} path @param {object} [body] */
export async function send(method, path, body) {
  const answer = await request(path, {
    method,
    headers: { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!answer.ok) throw await errorOf(answer);
  return record(await answer.json().catch(() => ({})));
}

/** Download a file, or throw the error of the API. The first request only looks at the status; the browser then
 * streams the file to the disk, however large it is. @param {string} path */
export async function download(path) {
  const stop = new AbortController();
  await answered(path, { signal: stop.signal });
  stop.abort();
  const link = document.createElement("a");
  link.href = path;
  link.download = "";
  document.body.append(link);
  link.click();
  link.remove();
}
