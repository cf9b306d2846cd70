/**
 * Small components that all pages use: times, ages, sets of ranks, boxes, links, the error boundary.
 */
import { Component, html, useEffect, useReducer, useState } from "../../vendor/standalone.module.js";
import { everySecond, secondsSince } from "./clock.js";
import { age, count, duration, figure, list, localTime, number, record, text, utc } from "./format.js";
import { ranges, rangesCount, rangesText } from "./ranges.js";
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
  return html`<span class="age" title=${`${utc(at)}, ${localTime(at)}`}>${age(secondsSince(at, until))}</span>`;
}

export const Time = ({ at }) =>
  at ? html`<time datetime=${text(at)} title=${localTime(at)}>${utc(at)}</time>` : "–";

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
  warning: "warn", exited: "bad", open: "bad", running: "good", live: "good",
};

/** A short state, as the API gives it, in a frame. */
export const Tag = ({ value, tone }) =>
  value ? html`<span class=${`tag ${tone ?? TONES[String(value)] ?? ""}`}>${text(value)}</span>` : null;

export const JobLink = ({ job }) => html`<a href=${jobPath(job)}>${text(job) || "(no name)"}</a>`;

/** The API's sentence about a finding, as a link to its page. */
export const FindingLink = ({ finding }) =>
  html`<a href=${findingPath(finding.id)}>${text(finding.summary) || `${text(finding.kind)} ${text(finding.id)}`}</a>`;

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

/** `rank 2 on gpu-17: cpu_stuck (high)`, then what it does or waits for, in the words of the API, if that is not in `said`. */
export function SuspectLine({ alike, said = "" }) {
  const [one] = alike;
  const known = text(record(one.waits_for).text) || text(one.doing) || text(one.inside) || text(list(one.stack)[0]);
  const does = said.includes(known) || alike.length > 1 ? "" : known; // the summary often ends with it
  return html`<div class="suspect-line">
    <strong>${named(alike)}</strong>${one.node && alike.length === 1 ? ` on ${text(one.node)}` : ""}: ${text(one.reason)}
    ${one.confidence ? ` (${text(one.confidence)})` : ""}${does ? html`<span class="does">${does}</span>` : ""}
  </div>`;
}

/** Terms and their values; a row without a value is left out. @param {{rows: [string, any][]}} props */
export const Facts = ({ rows }) => html`<dl class="facts">
  ${rows
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;

/** A table that scrolls inside its box, or becomes a list of cards on a narrow screen (`stack`).
 * @param {{label: string, head: string[], rows: any[][], stack?: boolean, numbers?: number[], wide?: number[]}} props `numbers`: columns to align right; `wide`: of sentences */
export function Table({ label, head, rows, stack = false, numbers = [], wide = [] }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table class=${stack ? "stack" : ""}>
      <thead><tr>${head.map((one, i) => html`<th key=${i} scope="col" class=${numbers.includes(i) ? "number" : ""}>${one}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row, r) => html`<tr key=${r} class=${row.tone ?? ""}>
          ${row.map((cell, i) => html`<td key=${i} data-label=${head[i]} class=${numbers.includes(i) ? "number" : wide.includes(i) ? "wide" : ""}><div class="cell">${cell}</div></td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

const FIRST = 16; // rows: what is updated every two seconds should be short

/** A `Table` that shows its first rows, and all of them on demand. */
export function LongTable({ rows, ...rest }) {
  const [all, setAll] = useState(false);
  return html`<${Table} rows=${all ? rows : rows.slice(0, FIRST)} ...${rest} />
    ${rows.length > FIRST
      ? html`<p><button type="button" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>${all ? `Show the first ${FIRST}` : `Show all ${rows.length}`}</button></p>`
      : ""}`;
}

/** `live 3, exited 1` from a map of counts. */
export function Counts({ counts }) {
  const all = Object.entries(record(counts)).filter(([, n]) => n);
  if (!all.length) return "–";
  return all.map(([name, n], i) => html`<span key=${name}>${i ? ", " : ""}<span class=${TONES[name] && name !== "live" ? TONES[name] : ""}>${figure(n)} ${text(name)}</span></span>`);
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
