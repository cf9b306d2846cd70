/**
 * Small components that all pages use: times, ages, sets of ranks, boxes, links, the error boundary.
 */
import { Component, html, useEffect, useReducer, useState } from "../../vendor/standalone.module.js";
import { everySecond, secondsSince } from "./clock.js";
import { age, bothTimes, count, duration, figure, list, number, record, text } from "./format.js";
import { both, ranges, rangesCount, rangesText, without } from "./ranges.js";
import { findingPath, jobPath } from "./router.js";

/** Shows which part of the page failed, and why; tries again when `on` (its data) changes. */
export class Boundary extends Component {
  constructor(props) {
    super(props);
    this.state = { error: null };
  }
  static getDerivedStateFromError(error) {
    return { error };
  }
  componentDidCatch(error) {
    console.warn(`frd: ${this.props.what}`, error);
  }
  componentWillReceiveProps(next) {
    if (this.state.error && next.on !== this.props.on) this.setState({ error: null });
  }
  render({ what, children }, { error }) {
    if (!error) return children;
    return html`<p class="box bad" role="alert">
      This part of the page failed: ${what}. ${text(error.message)}
    </p>`;
  }
}

/** Render once a second, for ages. */
export function useTick() {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => everySecond(() => again(null)), []);
}

/** The age of a time, ticking: `34 s`. With `until`, the span between the two. */
export function Age({ at, until = null }) {
  useTick();
  return html`<span class="age" title=${bothTimes(at)}>${age(secondsSince(at, until))}</span>`;
}

/** In the zone of the reader, and in UTC. */
export const Time = ({ at }) => (at ? html`<time datetime=${text(at)}>${bothTimes(at)}</time>` : "–");

/** Whether a text is in the clipboard now. Without TLS browsers offer the older way only. */
async function copied(value) {
  const before = document.activeElement;
  try {
    await navigator.clipboard.writeText(value);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = value;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus?.();
    return done;
  }
}

/** A button that copies a text. @param {{value: string | (() => string | Promise<string>), what?: string, label?: string}} props `what`: for screen readers, if the label does not say it */
export function Copy({ value, what = "", label = "Copy" }) {
  const [said, setSaid] = useState("");
  useEffect(() => {
    const timer = said ? setTimeout(() => setSaid(""), 2000) : 0;
    return () => clearTimeout(timer);
  }, [said]);
  const act = async () => {
    try {
      const words = typeof value === "function" ? await value() : value;
      setSaid((await copied(words)) ? "Copied" : "No clipboard: select the text");
    } catch (failure) {
      setSaid(failure.message);
    }
  };
  return html`<button type="button" class="copy" aria-label=${said || !what ? null : `Copy ${what}`} onClick=${act}>${said || label}</button>`;
}

/** What to do first, with commands to copy; nothing for what is over. */
export function DoNow({ finding }) {
  const steps = list(finding.do_now).map(record);
  if (!steps.length || (finding.state !== "open" && finding.goes_on !== true)) return null;
  return html`<div class="do-now"><h2 class="label">Do now</h2><ol>
    ${steps.map((step, i) => html`<li key=${i}>${text(step.text)}${step.command
      ? html`<span class="command"><code>${text(step.command)}</code><${Copy} value=${text(step.command)} what=${text(step.command)} /></span>` : ""}</li>`)}
  </ol></div>`;
}

/** `ranks 0-3,5 (5)`; a long set is cut, and folds out. */
export function Ranks({ ranks, most = 60 }) {
  const runs = ranges(ranks);
  if (!runs.length) return "–";
  const whole = rangesText(runs);
  const n = rangesCount(runs);
  const all = n > 2 ? ` (${count(n, "rank")})` : "";
  if (whole.length <= most) return html`<span class="ranks">${whole}${all}</span>`;
  const cut = whole.slice(0, whole.lastIndexOf(",", most) + 1 || most);
  return html`<details class="ranks"><summary>${cut}…${all}</summary>${whole}</details>`;
}

const TONES = {
  critical: "bad", stalled: "bad", failed: "bad", high: "bad", silent: "warn", unreachable: "warn", unwatched: "warn", lost: "warn",
  warning: "warn", exited: "bad", open: "bad", running: "good", live: "good", suspect: "bad", waiting: "warn",
};

/** A short state, as the API gives it, in a frame. */
export const Tag = ({ value, tone }) =>
  value ? html`<span class=${`tag ${tone ?? TONES[String(value)] ?? ""}`}>${text(value)}</span>` : null;

export const JobLink = ({ job }) => html`<a href=${jobPath(job)}>${text(job) || "(no name)"}</a>`;

/** The cause. */
export const headline = (finding) => text(finding.headline);

export const FindingLink = ({ finding }) => html`<a class="row" href=${findingPath(finding.id)}>${headline(finding)}</a>`;

/** What people said of a finding, in one line: `acknowledged by ann, silenced until ..`. */
export function Said({ finding }) {
  const parts = [
    finding.acknowledged_by ? html`acknowledged by <strong>${text(finding.acknowledged_by)}</strong>${finding.acknowledged_at ? html`, <${Time} at=${finding.acknowledged_at} />` : ""}` : "",
    finding.assigned_to ? html`assigned to <strong>${text(finding.assigned_to)}</strong>` : "",
    silenced(finding) ? html`silenced until <${Time} at=${finding.silenced_until} />${finding.silenced_by ? ` by ${text(finding.silenced_by)}` : ""}` : "",
  ].filter(Boolean);
  return parts.length ? html`<span class="said">${parts.map((one, i) => html`<span key=${i}>${one}</span>`)}</span>` : null;
}

export const silenced = (finding) => (secondsSince(finding.silenced_until) ?? 0) < 0;

/** What a suspect waits for or does, and its line, in the words of the API. */
export const placeOf = (suspect) => [...new Set([text(record(suspect.waits_for).text) || text(suspect.doing), text(list(suspect.stack)[0])])].filter(Boolean).join("; ");

const STOPS = ["stall", "order", "mismatch"]; // kinds whose victims wait
/** What open findings say of ranks. @returns {{suspects: Map<number, any>, waiting: import("./ranges.js").Ranges}} `suspects`: the first finding's of each rank */
export function blamed(findings) {
  const suspects = new Map();
  const waiting = new Set();
  for (const one of list(findings).map(record)) {
    for (const suspect of list(one.suspects).map(record)) if (!suspects.has(suspect.rank)) suspects.set(suspect.rank, suspect);
    if (STOPS.includes(one.kind)) list(one.victims).forEach((rank) => waiting.add(rank));
  }
  return { suspects, waiting: without(ranges([...waiting]), ranges([...suspects.keys()])) };
}

/** The state of a rank in the light of open findings. @param {Record<string, any>} one @param {ReturnType<typeof blamed>} blame */
export function Fate({ one, blame, calm = false }) {
  const waits = both(blame.waiting, [[one.rank, one.rank]]).length > 0 && one.state === "live";
  const value = !blame.suspects.has(one.rank) ? (waits ? "waiting" : one.state) : one.state === "live" ? "suspect" : `suspect, ${text(one.state)}`;
  return html`<${Tag} value=${value} tone=${blame.suspects.has(one.rank) ? "bad" : calm ? "" : undefined} />`;
}

/** Numbers of ranks by state, with suspects and ranks that wait instead of `live` ones. */
export function fates(counts, { suspects, waiting }) {
  const { live, ...rest } = record(counts);
  const alive = number(live) ?? 0;
  const suspect = Math.min(alive, [...suspects.values()].filter((one) => !["exited", "unreachable"].includes(one.reason)).length);
  const waits = Math.min(alive - suspect, rangesCount(waiting));
  return { suspect, waiting: waits, live: alive - suspect - waits, ...rest };
}

/** Why it is closed; of one that was closed by hand, also whether its trouble goes on. */
export const closeText = (finding) => `${text(finding.close_reason)}${finding.goes_on === true ? ", goes on" : ""}`;

/** Suspects of a finding; those that are equally likely for one reason, without high confidence, together.
 * @returns {Record<string, any>[][]} */
export function folded(suspects) {
  const found = [];
  for (const one of list(suspects).map(record)) {
    const last = found.at(-1);
    const isAlike = last && one.confidence !== "high" && ["confidence", "reason"].every((key) => one[key] === last[0][key]);
    if (isAlike) last.push(one);
    else found.push([one]);
  }
  return found;
}

/** `rank 2`, `ranks 0-1`. */
export const named = (alike) =>
  alike.length === 1 ? `rank ${text(alike[0].rank)}` : `ranks ${rangesText(ranges(alike.map((one) => one.rank)))}`;

/** Terms and their values; a row without a value is left out. @param {{rows: [string, any][]}} props */
export const Facts = ({ rows }) => html`<dl class="facts">
  ${rows
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;

/** A table that scrolls inside its box, or becomes a list of cards on a narrow screen (`stack`).
 * @param {{label: string, head: string[], rows: any[][], stack?: boolean, numbers?: number[], wide?: number[], extra?: number[]}} props
 *   `numbers`: columns to align right; `wide`: of sentences; `extra`: left out on a narrow screen */
export function Table({ label, head, rows, stack = false, numbers = [], wide = [], extra = [] }) {
  const look = (i) => [numbers.includes(i) ? "number" : "", wide.includes(i) ? "wide" : "", extra.includes(i) ? "extra" : ""].filter(Boolean).join(" ");
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table class=${stack ? "stack" : ""}>
      <thead><tr>${head.map((one, i) => html`<th key=${i} scope="col" class=${look(i)}>${one}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row, r) => html`<tr key=${r} class=${row.tone ?? ""}>
          ${row.map((cell, i) => html`<td key=${i} data-label=${head[i]} class=${look(i)}><div class="cell">${cell}</div></td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

const FIRST = 16; // rows: what is updated every two seconds should be short

/** A `Table` that shows its first rows, and all of them on demand. */
export function LongTable({ rows, first = FIRST, ...rest }) {
  const [all, setAll] = useState(false);
  return html`<${Table} rows=${all ? rows : rows.slice(0, first)} ...${rest} />
    ${rows.length > first
      ? html`<p><button type="button" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>${all ? `Show the first ${first}` : `Show all ${rows.length}`}</button></p>`
      : ""}`;
}

/** `3 live, 1 exited` from a map of counts; `calm`: of a job that was stopped on purpose, nothing is marked. */
export function Counts({ counts, calm = false }) {
  const all = Object.entries(record(counts)).filter(([, n]) => n);
  if (!all.length) return "–";
  return all.map(([name, n], i) => html`<span key=${name}>${i ? ", " : ""}<span class=${TONES[name] && name !== "live" && !calm ? TONES[name] : ""}>${figure(n)} ${text(name)}</span></span>`);
}

/** A curve without axes. Breaks where a value is missing. */
export function Spark({ values, label, width = 120, height = 22, top = null }) {
  const all = list(values).map(number);
  const highest = number(top) ?? Math.max(1e-9, ...all.filter((one) => one !== null));
  let path = "";
  let pen = false;
  all.forEach((value, i) => {
    if (value === null) {
      pen = false;
      return;
    }
    const x = all.length > 1 ? (i / (all.length - 1)) * (width - 2) + 1 : width / 2;
    const y = height - 2 - (Math.min(value, highest) / highest) * (height - 4);
    path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (!pen && all[i + 1] == null) path += "h1";
    pen = true;
  });
  return html`<svg class="spark" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${label}>
    <path d=${`M1 ${height - 1.5}H${width - 1}`} class="spark-base" /><path d=${path} class="spark-line" />
  </svg>`;
}

/** `12.5/s` and its curve. */
export function Pace({ pace }) {
  const { per_s, every_s, recent } = record(pace);
  const values = list(recent);
  if (!values.length && number(per_s) === null) return "–";
  const every = number(every_s);
  const span = every ? `, last ${duration(every * values.length)}` : "";
  return html`<span class="pace"><span class="pace-now">${number(per_s) === null ? "–" : `${text(Number(per_s.toPrecision(3)))}/s`}</span>
    <${Spark} values=${values} label=${`collectives per second${span}`} width=${90} /></span>`;
}
