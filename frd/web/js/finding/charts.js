/**
 * Curves over time with uPlot: memory with its capacity, and lateness.
 *
 * uPlot comes as a classic script and is a global. It sets styles through the CSSOM only, so the
 * content security policy of the page permits it.
 */
import { html, useEffect, useRef } from "../../vendor/standalone.module.js";
import { bytes, clockTime, list, micros, number, precise, record, text, zoneText } from "../core/format.js";
import { FONT, onTheme, theme } from "../core/theme.js";

const HEIGHT = 240;
const MOST = 8; // series in one chart
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

/** A chart that follows the width of its box and the colour scheme. @param {{make: () => {options: object, columns: any[]}, on: any, label: string}} props */
function Chart({ make, on, label }) {
  const ref = useRef(null);
  useEffect(() => {
    const box = ref.current;
    let chart = null;
    const draw = () => {
      chart?.destroy();
      const { options, columns } = make();
      const width = Math.max(200, box.clientWidth);
      chart = new globalThis.uPlot({ width, height: HEIGHT, ...options }, columns, box);
    };
    draw();
    const resize = new ResizeObserver(() => chart?.setSize({ width: Math.max(200, box.clientWidth), height: HEIGHT }));
    resize.observe(box);
    const untheme = onTheme(draw);
    return () => {
      resize.disconnect();
      untheme();
      chart?.destroy();
    };
  }, [on]);
  return html`<div class="chart" ref=${ref} role="img" aria-label=${label}></div>`;
}

const axes = (colours, values, incrs) => {
  const common = { stroke: colours.muted, grid: { stroke: colours.line, width: 1 }, ticks: { stroke: colours.line, width: 1 }, font: FONT };
  const clock = (_, ticks) => {
    const digits = ticks.length > 1 && ticks[1] - ticks[0] < 1 ? 3 : 0;
    return ticks.map((at) => clockTime(Math.round(at * 1e6), digits));
  };
  return [
    { ...common, space: 84, values: clock },
    { ...common, size: 76, values: (_, ticks) => ticks.map(values), ...(incrs ? { incrs } : {}) },
  ];
};
/** Steps of an axis of bytes: 1, 2, 5, 10 .. MiB, GiB, TiB. */
const BYTE_STEPS = [20, 30, 40].flatMap((power) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * 2 ** power));

/** A date whose local fields are those of UTC, as uPlot's `tzDate` wants it. */
const utcDate = (seconds) => new Date((seconds + new Date(seconds * 1000).getTimezoneOffset() * 60) * 1000);

/** Options that both charts share; the x axis is in UTC. */
const common = (colours, values, incrs) => ({
  tzDate: utcDate,
  axes: axes(colours, values, incrs),
  cursor: { drag: { x: true, y: false } },
  legend: { live: true },
});

/** Seconds after `from`, as seconds since the epoch. */
const times = (data, at) => list(at).map((s) => micros(data.from) / 1e6 + (number(s) ?? 0));
const row = (values, length) => Array.from({ length }, (_, i) => number(list(values)[i]));

/** @param {{data: Record<string, any>}} props a timeline answer with `memory` */
export function MemoryChart({ data }) {
  const memory = record(data.memory);
  const all = list(memory.series).map(record);
  const byCapacity = new Map(); // one chart for each kind of memory: capacities differ
  all.forEach((one, i) => {
    const key = text(one.kind);
    byCapacity.set(key, [...(byCapacity.get(key) ?? []), i]);
  });
  return html`${[...byCapacity].map(([kind, rows]) => html`<div key=${kind}>
    <h3>Memory: ${kind}</h3>
    <${Chart} on=${data} label=${`Memory of ranks ${rows.map((i) => text(all[i].rank)).join(", ")}: ${kind}`} make=${() => memoryChart(data, rows.slice(0, MOST))} />
    ${rows.length > MOST ? html`<p class="muted">The first ${MOST} of ${rows.length} series.</p>` : ""}
    <p class="muted small">${caption(data, rows)} Times in ${zoneText(data.from)}.</p>
  </div>`)}`;
}

const FAR = 3; // a capacity so many times the highest sample would leave the curves flat: it is not drawn
const capacities = (series) => [...new Set(series.map((one) => number(record(one).capacity_bytes)).filter(Boolean))];

/** Explains what is drawn, and names what is outside of the axes. */
function caption(data, rows) {
  const { columns, drawn } = memoryColumns(data, rows.slice(0, MOST));
  const [first, last] = [columns[0][0], columns[0].at(-1)];
  const begin = micros(data.from) / 1e6;
  const isShaded = list(data.onsets).map(record).some((one) => number(one.at_s) !== null && begin + one.at_s >= first && begin + one.at_s <= last);
  const above = capacities(rows.map((i) => list(record(data.memory).series)[i])).filter((one) => !drawn.includes(one));
  return [
    "The highest sample of every two seconds.",
    isShaded ? "Shaded: when the rise began, with its uncertainty." : "",
    drawn.length ? `Dashed line: the capacity, ${drawn.map((one) => bytes(one)).join(", ")}.` : "",
    above.length ? `The capacity, ${above.map((one) => bytes(one)).join(", ")}, is above the picture.` : "",
  ].filter(Boolean).join(" ");
}

/** The curves, their highest value, and the capacities that are near enough to be drawn. */
function memoryColumns(data, rows) {
  const memory = record(data.memory);
  const at = times(data, memory.at_s);
  const columns = [at, ...rows.map((i) => row(list(memory.bytes)[i], at.length))];
  const highest = Math.max(1, ...columns.slice(1).flat().filter((value) => value !== null));
  return { columns, highest, drawn: capacities(rows.map((i) => list(memory.series)[i])).filter((one) => one <= FAR * highest) };
}

function memoryChart(data, rows) {
  const memory = record(data.memory);
  const colours = theme();
  const { columns, highest, drawn } = memoryColumns(data, rows);
  const series = [{ value: (_, at) => (at ? new Date(at * 1000).toISOString().slice(11, 21) : "–") }];
  rows.forEach((i, k) => {
    const one = record(list(memory.series)[i]);
    const colour = one.role === "suspect" ? colours.bad : colours[`g${k % 8}`];
    const name = `rank ${text(one.rank)}${one.role ? ` ${text(one.role)}` : ""}`;
    const look = { stroke: colour, dash: DASHES[k % DASHES.length], points: { show: false }, spanGaps: true, value: (_, v) => bytes(v) };
    series.push({ ...look, label: name, width: one.role === "suspect" ? 2 : 1 });
  });
  const options = {
    ...common(colours, (v) => bytes(v), BYTE_STEPS),
    series,
    scales: { y: { range: () => [0, Math.max(highest, ...drawn) * 1.05] } },
    hooks: { drawClear: [(u) => onsets(u, data, colours)], draw: [(u) => levels(u, drawn, colours)] },
  };
  return { options, columns };
}

/** Vertical bands where faults or rises began. */
function onsets(u, data, colours) {
  for (const one of list(data.onsets).map(record)) {
    if (number(one.at_s) === null) continue;
    const at = micros(data.from) / 1e6 + one.at_s;
    const off = number(one.uncertainty_s) ?? 0;
    const left = u.valToPos(at - off, "x", true);
    const right = Math.max(u.valToPos(at + off, "x", true), left + 2);
    if (right < u.bbox.left || left > u.bbox.left + u.bbox.width) continue; // before or after the picture
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    u.ctx.clip();
    u.ctx.globalAlpha = 0.35;
    u.ctx.fillStyle = colours.warn;
    u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
    u.ctx.globalAlpha = 1;
    u.ctx.font = u.axes[0].font?.[0] ?? FONT;
    u.ctx.fillStyle = colours.warn;
    const name = `rank ${text(one.rank)}`;
    const isLeft = right + 4 + u.ctx.measureText(name).width > u.bbox.left + u.bbox.width;
    u.ctx.textAlign = isLeft ? "right" : "left";
    u.ctx.fillText(name, isLeft ? left - 4 : right + 4, u.bbox.top + u.bbox.height - 6 * devicePixelRatio);
    u.ctx.restore();
  }
}

function levels(u, values, colours) {
  u.ctx.save();
  u.ctx.strokeStyle = colours.fg;
  u.ctx.setLineDash([8, 5]);
  u.ctx.lineWidth = devicePixelRatio;
  for (const value of values) {
    const y = u.valToPos(value, "y", true);
    u.ctx.beginPath();
    u.ctx.moveTo(u.bbox.left, y);
    u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
    u.ctx.stroke();
  }
  u.ctx.restore();
}

/** @param {{data: Record<string, any>}} props a timeline answer with `lateness` */
export function LatenessChart({ data }) {
  const lateness = record(data.lateness);
  const ranks = list(lateness.ranks).slice(0, MOST);
  const make = () => {
    const colours = theme();
    const columns = [times(data, lateness.at_s)];
    const n = columns[0].length;
    const series = [{ value: (_, at) => (at ? new Date(at * 1000).toISOString().slice(11, 21) : "–") }];
    ranks.forEach((rank, k) => {
      columns.push(row(list(lateness.late_s)[k], n));
      series.push({
        label: `rank ${text(rank)}`, stroke: k === 0 ? colours.bad : colours[`g${k % 8}`], width: k === 0 ? 2 : 1,
        dash: DASHES[k % DASHES.length], points: { show: n < 60, size: 4 }, spanGaps: true, value: (_, v) => precise(v),
      });
    });
    const options = {
      ...common(colours, precise),
      series,
      scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, 1e-4) * 1.08] } },
      hooks: { drawClear: [(u) => onsets(u, data, colours)] },
    };
    return { options, columns };
  };
  return html`<h3>Lateness in each collective</h3>
    <${Chart} on=${data} label=${`Lateness of ranks ${ranks.map(text).join(", ")}`} make=${make} />
    <p class="muted small">How long after the first rank each one enqueued the op. Times in ${zoneText(data.from)}.</p>`;
}
