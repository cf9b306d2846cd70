/**
 * Keeps the store up to date: server-sent events, or a request every 5 s while these fail.
 *
 * The connection is `live` from the first event on; it counts as lost after 12 s without one.
 * Open findings are read again after each connect, and when their number does not match that of
 * the jobs, so an event that was missed does not leave the page wrong for long.
 */
import { get } from "./api.js";
import { learn } from "./clock.js";
import { list, number, record, segment, text } from "./format.js";
import { jobApi } from "./router.js";
import { set, state } from "./store.js";

const SILENCE_MS = 12_000;
const HELLO_MS = 2_000; // open findings are read without the hello of a connection then
const POLL_MS = 5_000;
const MOST_OPEN = 200; // open findings on the page
const HIDE_MS = 5_000; // a tab that is hidden for longer closes its connection
const HIDDEN_POLL_MS = 15_000;
const RETRY_MS = [1_000, 2_000, 5_000, 10_000, 15_000];

let job = null; // the job whose summary is followed, or null
let attempt = null; // of it; null: the newest, which events are about
/** @type {EventSource | null} */
let source = null;
let failures = 0;
let heard = 0; // performance.now() of the last event
let retry = 0;
let poll = 0;
let polling = false;
let rest = 0;
let unsaid = 0; // the timer that waits for a hello
let resting = false; // the tab is hidden
let generation = 0; // answers to requests of an earlier address are dropped
let running = false;

/** Follow the whole service, and one job if `name` is not null. @param {string | null} name @param {string | null} number of the attempt */
export function follow(name, number = null) {
  if (running && name === job && number === attempt) return;
  running = true;
  job = name;
  attempt = number;
  generation += 1;
  set({ job: null, jobError: "" });
  readNow();
  connect();
}

/** Close the connection, for the sign-in form. */
export function stop() {
  running = false;
  generation += 1;
  close();
  for (const timer of [retry, poll, rest, unsaid]) clearTimeout(timer);
  polling = resting = false;
  failures = 0;
}

function close() {
  source?.close();
  source = null;
}

function connect() {
  clearTimeout(retry);
  close();
  if (!running || resting) return;
  const followed = job !== null && attempt === null;
  const opened = new EventSource(`/api/v1/events${followed ? `?job=${segment(job)}` : ""}`);
  source = opened;
  heard = performance.now();
  const on = (name, take) =>
    opened.addEventListener(name, (event) => {
      if (source !== opened) return;
      alive();
      let data;
      try {
        data = record(JSON.parse(event.data));
      } catch {
        return; // a broken event: the next one replaces it
      }
      learn(data.at);
      take(data);
    });
  on("hello", () => {
    clearTimeout(unsaid);
    readFindings();
  });
  on("tick", () => {}); // nothing is new
  on("jobs", takeJobs);
  on("health", (data) => set({ health: data }));
  on("finding", takeFinding);
  on("job", takeJob);
  opened.addEventListener("error", () => {
    if (source === opened) failed();
  });
}

function alive() {
  heard = performance.now();
  failures = 0;
  clearTimeout(poll);
  polling = false;
  if (state.link !== "live") set({ link: "live", linkError: "" });
}

function failed() {
  close();
  failures += 1;
  clearTimeout(retry);
  retry = setTimeout(connect, RETRY_MS[Math.min(failures, RETRY_MS.length) - 1]);
  if (!polling) {
    polling = true;
    pollOnce();
  }
}

setInterval(() => {
  if (running && source && performance.now() - heard > SILENCE_MS) failed();
}, 1000);
/** A browser keeps six connections to a host open, for all of its tabs. So a hidden tab gives its
 * connection back, and asks now and then, for the title. */
document.addEventListener("visibilitychange", () => {
  clearTimeout(rest);
  if (document.hidden) rest = setTimeout(giveBack, HIDE_MS);
  else if (running && (resting || state.link !== "live")) {
    resting = false;
    readNow();
    connect();
  }
});

function giveBack() {
  if (!running) return;
  resting = true;
  close();
  clearTimeout(retry);
  clearTimeout(poll);
  polling = true;
  poll = setTimeout(pollOnce, HIDDEN_POLL_MS);
}

addEventListener("pagehide", close);
addEventListener("pageshow", (event) => {
  if (event.persisted && running) connect();
});

async function pollOnce() {
  clearTimeout(poll);
  if (!polling || !running) return;
  clearTimeout(unsaid);
  const error = await read(true);
  if (!polling || !running) return;
  clearTimeout(poll);
  set(error ? { link: "lost", linkError: error } : { link: "polling", linkError: "" });
  poll = setTimeout(pollOnce, resting ? HIDDEN_POLL_MS : POLL_MS);
}

/** What the page shows, after sign-in and after a change of the address. Open findings are read at
 * the hello of the connection that is made now: what opens later follows it. */
async function readNow() {
  clearTimeout(unsaid);
  if (!polling) unsaid = setTimeout(readFindings, HELLO_MS);
  const error = await read(polling);
  if (error && state.link === "connecting") set({ link: "lost", linkError: error });
}

/** @param {boolean} findings too @returns {Promise<string>} the error text of the first request that failed, or "" */
async function read(findings) {
  const results = await Promise.all([
    part("/api/v1/jobs", takeJobs),
    part("/api/v1/health", (data) => set({ health: data })),
    findings ? readFindings() : "",
    readJob(),
  ]);
  return results.find((error) => error) ?? "";
}

const readFindings = () =>
  part(
    `/api/v1/findings?state=open&limit=${MOST_OPEN}`,
    (data) => {
      const open = list(data.findings).map(record);
      set({ open, openCut: open.length >= MOST_OPEN, openError: "" });
    },
    (error) => set({ openError: error.message }),
  );

async function readJob() {
  if (job === null) return "";
  const query = `view=summary${attempt === null ? "" : `&attempt=${encodeURIComponent(attempt)}`}`;
  const error = await part(jobApi(job, query), takeJob, (failure) => {
    if (failure.status >= 400) set({ jobError: failure.message });
  });
  return state.jobError ? "" : error; // an unknown job is an answer, too
}

async function part(path, take, fail = (_error) => {}) {
  const mine = generation;
  try {
    const { data } = await get(path);
    if (mine === generation) take(record(data));
    return "";
  } catch (error) {
    if (mine === generation) fail(error);
    return error instanceof Error ? error.message : String(error);
  }
}

let mismatches = 0;
function takeJobs(data) {
  set({ jobs: data });
  if (state.open === null) {
    if (state.openError) readFindings();
    return;
  }
  const count = (one) => (number(one.open_findings) ?? 0) + (number(one.findings_closed_by_hand) ?? 0);
  const counted = list(data.jobs).reduce((sum, one) => sum + count(record(one)), 0);
  const known = state.open.filter((one) => list(data.jobs).some((other) => record(other).job === one.job)).length;
  // Of too many, the newest are known; they are read again when half of these are over.
  const right = state.openCut ? known <= counted && known >= Math.min(counted, MOST_OPEN / 2) : counted === known;
  mismatches = right ? 0 : mismatches + 1;
  if (mismatches === 2) readFindings(); // twice: an event may be under way
  if (mismatches > 15) mismatches = 0;
}

function takeJob(data) {
  if (data.error !== undefined) set({ jobError: text(data.error) });
  else if (data.job === undefined || data.job === job || job === null) set({ job: data, jobError: "" });
}

/** @param {Record<string, any>} finding as an event, or the answer to a change, has it */
export function takeFinding(finding) {
  const others = (state.open ?? []).filter((one) => one.id !== finding.id);
  const known = others.length < (state.open ?? []).length;
  const isOpen = finding.state === "open" || finding.goes_on === true;
  const open = isOpen ? [finding, ...others].sort((a, b) => newer(a, b)) : others;
  set({
    open: state.open === null && !isOpen ? null : state.openCut ? open.slice(0, MOST_OPEN) : open,
    changed: finding,
    announcement: isOpen && !known ? `New finding: ${text(finding.headline)}` : state.announcement,
  });
}

const newer = (a, b) => (String(a.opened_at) < String(b.opened_at) ? 1 : -1);

/** For jobs whose attempt is in the address: events are about the newest attempt only. */
setInterval(() => {
  if (running && job !== null && attempt !== null && !polling && !document.hidden) readJob();
}, POLL_MS);
