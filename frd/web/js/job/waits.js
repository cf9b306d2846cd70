/**
 * The wait-for graph of a job: ranks that wait, the op that they wait in, the ranks that are missing.
 *
 * If missing ranks wait in another op themselves, the chain goes on to the right; what is at the
 * right end waits for nothing that is known. Sets of ranks are ranges, so their size costs nothing.
 */
import { html } from "../../vendor/standalone.module.js";
import { count, duration, list, number, record, text } from "../core/format.js";
import { Ranks } from "../core/parts.js";
import { both, ranges, rangesCount, rangesText, without } from "../core/ranges.js";

const MOST = 16; // ops in the picture; the list has all of them
const [BOX_W, BOX_H, GAP_X, GAP_Y] = [178, 42, 44, 12];

/** @param {any[]} waits @returns {{nodes: Map<string, any>, edges: {from: string, to: string, back: boolean}[], columns: any[][]}} */
export function waitGraph(waits) {
  const ops = waits.map((one) => ({ ...one, in: ranges(one.waiting), out: ranges(one.missing), dark: ranges(one.unknown) }));
  const nodes = new Map();
  const edges = [];
  const ranksNode = (runs, kind) => {
    const key = `${kind} ${rangesText(runs)}`;
    if (!nodes.has(key)) nodes.set(key, { key, kind, runs });
    return key;
  };
  const link = (from, to) => {
    if (!edges.some((one) => one.from === from && one.to === to)) edges.push({ from, to, back: false });
  };
  ops.forEach((op, i) => {
    if (op.in.length) link(ranksNode(op.in, "waiting"), `op ${i}`);
    nodes.set(`op ${i}`, { key: `op ${i}`, kind: "op", op });
  });
  ops.forEach((op, i) => {
    let rest = op.out;
    ops.forEach((other) => {
      if (other === op || !both(op.out, other.in).length) return;
      link(`op ${i}`, ranksNode(other.in, "waiting"));
      rest = without(rest, other.in);
    });
    if (rest.length) link(`op ${i}`, ranksNode(rest, "missing"));
    if (op.dark.length) link(`op ${i}`, ranksNode(op.dark, "unknown"));
  });
  return { nodes, edges, columns: layers(nodes, edges) };
}

/** Columns by the longest way from the left; an edge that closes a circle is marked, and does not count. */
function layers(nodes, edges) {
  const depth = new Map();
  const state = new Map();
  const onward = new Map([...nodes.keys()].map((key) => [key, edges.filter((one) => one.from === key)]));
  const visit = (key) => {
    state.set(key, 1);
    for (const edge of onward.get(key)) {
      if (state.get(edge.to) === 1) edge.back = true;
      else if (!state.has(edge.to)) visit(edge.to);
    }
    state.set(key, 2);
  };
  const targets = new Set(edges.map((one) => one.to));
  for (const key of [...nodes.keys()].sort((a, b) => Number(targets.has(a)) - Number(targets.has(b)))) if (!state.has(key)) visit(key);
  const deep = (key) => {
    if (!depth.has(key)) {
      const into = edges.filter((one) => one.to === key && !one.back);
      depth.set(key, into.length ? Math.max(...into.map((one) => deep(one.from))) + 1 : 0);
    }
    return depth.get(key);
  };
  const columns = [];
  for (const [key, node] of nodes) (columns[deep(key)] ??= []).push(node);
  return columns;
}

export function Waits({ job }) {
  const waits = list(job.waits).map(record);
  if (!waits.length) return html`<p>No rank has waited long in a collective. Sends, receives and the creation of groups are not shown here.</p>`;
  return html`
    <div class="scroll graph" tabindex="0" role="img" aria-label="Wait-for graph; the list below has the same"><${Picture} waits=${waits.slice(0, MOST)} /></div>
    ${waits.length > MOST ? html`<p class="muted small">The picture has the oldest ${MOST} of ${waits.length + (number(job.more_waits) ?? 0)} ops.</p>` : ""}
    <details open=${waits.length <= 4}><summary>As a list</summary>
      <ul class="waits-list">${waits.map((one, i) => html`<li key=${i}>
        <strong>${opText(one)}</strong> on ${text(one.group)}${number(one.waiting_s) === null ? "" : `, for ${duration(one.waiting_s)}`}${one.stalled ? html`, <strong class="bad">stalled</strong>` : ""}:
        ranks <${Ranks} ranks=${text(one.waiting)} /> wait${text(one.missing) ? html` for ranks <${Ranks} ranks=${text(one.missing)} />` : ""}<${Unknown} wait=${one} /></li>`)}</ul>
      ${job.more_waits ? html`<p class="muted">and ${count(job.more_waits, "more op")}</p>` : ""}
    </details>`;
}

/** Ranks of the group of which it is not known whether they have joined. */
function Unknown({ wait }) {
  const known = rangesText(ranges(wait.unknown));
  const n = number(wait.unknown_count) ?? 0;
  if (!known && !n) return null;
  return html`; nothing is known about ${known ? html`ranks <${Ranks} ranks=${known} />` : count(n, "rank")}`;
}

const opText = (one) => `${text(one.op)}${number(one.seq) === null || one.seq < 0 ? "" : ` #${one.seq}`}`;

function Picture({ waits }) {
  const { edges, columns } = waitGraph(waits);
  const at = new Map();
  const tallest = Math.max(...columns.map((one) => one.length)) * (BOX_H + GAP_Y);
  columns.forEach((column, i) => {
    const top = (tallest - column.length * (BOX_H + GAP_Y)) / 2;
    column.forEach((node, k) => at.set(node.key, { x: 4 + i * (BOX_W + GAP_X), y: 4 + top + k * (BOX_H + GAP_Y), node }));
  });
  const width = columns.length * (BOX_W + GAP_X) - GAP_X + 8;
  const height = tallest + (edges.some((one) => one.back) ? 32 : 8);
  return html`<svg class="waits-graph" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} aria-hidden="true">
    ${edges.map(({ from, to, back }, i) => html`<${Edge} key=${i} a=${at.get(from)} b=${at.get(to)} back=${back} />`)}
    ${[...at.values()].map(({ x, y, node }) => html`<${Box} key=${node.key} x=${x} y=${y} node=${node} />`)}
  </svg>`;
}

function Edge({ a, b, back }) {
  const [x0, y0, x1, y1] = [a.x + BOX_W, a.y + BOX_H / 2, b.x, b.y + BOX_H / 2];
  if (back) {
    const [from, to, low] = [a.x + BOX_W / 2, b.x + BOX_W / 2, Math.max(a.y, b.y) + BOX_H + 16];
    return html`<g class="edge back">
      <path d=${`M${from} ${a.y + BOX_H}V${low}H${to}V${b.y + BOX_H + 4}`} /><path class="head" d=${`M${to} ${b.y + BOX_H}l-4 8h8z`} />
    </g>`;
  }
  const bend = Math.max(20, (x1 - x0) / 2);
  return html`<g class="edge">
    <path d=${`M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1 - 6} ${y1}`} />
    <path class="head" d=${`M${x1} ${y1}l-8 -4v8z`} />
  </g>`;
}

function Box({ x, y, node }) {
  const n = node.runs ? rangesCount(node.runs) : 0;
  const title = node.kind === "op" ? opText(node.op) : `${node.kind === "unknown" ? "unknown: " : ""}${n === 1 ? "rank" : "ranks"} ${rangesText(node.runs)}`;
  const below =
    node.kind === "op"
      ? `${text(node.op.group)}${number(node.op.waiting_s) === null ? "" : `, ${duration(node.op.waiting_s)}`}${node.op.stalled ? ", stalled" : ""}`
      : node.kind === "unknown" ? "nothing is known"
      : node.kind === "missing" ? (n === 1 ? "has not joined" : `${count(n, "rank")}, not joined`) : n === 1 ? "waits" : `${count(n, "rank")} wait`;
  return html`<g class=${`box-${node.kind}${node.op?.stalled ? " stalled" : ""}`} transform=${`translate(${x} ${y})`}>
    <title>${title}: ${below}</title>
    <rect width=${BOX_W} height=${BOX_H} rx=${node.kind === "op" ? 0 : 8} />
    <text x="9" y="17" class="strong">${cut(title, 24)}</text><text x="9" y="33" class="small">${cut(below, 27)}</text>
  </g>`;
}

const cut = (whole, most) => (whole.length > most ? `${whole.slice(0, most - 1)}…` : whole);
