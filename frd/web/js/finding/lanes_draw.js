/**
 * Draws the lanes of a timeline on a canvas: the time axis, labels, bars, and what is missing.
 *
 * Only the lanes on the screen are drawn, so 256 lanes cost as much as 20.
 */
import { clockTime } from "../core/format.js";
import { letter, PAD, TRACK } from "./lanes.js";
import { FONT } from "../core/theme.js";

export const AXIS = 24; // height of the time axis, CSS pixels

/** @typedef {{t0: number, t1: number, scroll: number, width: number, height: number, gutter: number}} View */

/** Seconds to CSS pixels. @param {View} view */
export const scale = (view) => (s) => view.gutter + ((s - view.t0) / (view.t1 - view.t0)) * (view.width - view.gutter);

/** @param {CanvasRenderingContext2D} c @param {import("./lanes.js").Model} model @param {View} view
 * @param {Record<string, string>} colours @param {{lane: any, item: any} | null} chosen */
export function drawLanes(c, model, view, colours, chosen) {
  c.fillStyle = colours.bg;
  c.fillRect(0, 0, view.width, view.height);
  c.font = FONT;
  c.textBaseline = "middle";
  const ticks = axisTicks(view);
  c.save();
  c.beginPath();
  c.rect(0, AXIS, view.width, view.height - AXIS);
  c.clip();
  for (const lane of model.lanes) {
    const top = AXIS + lane.y - view.scroll;
    if (top + lane.height < AXIS || top > view.height) continue;
    drawLane(c, model, lane, top, view, colours, chosen, ticks);
  }
  c.restore();
  drawAxis(c, model, view, colours, ticks);
}

function drawLane(c, model, lane, top, view, colours, chosen, ticks) {
  const x = scale(view);
  if (lane.role === "suspect") {
    c.fillStyle = colours["bad-bg"];
    c.fillRect(0, top, view.width, lane.height);
  }
  c.fillStyle = colours.line;
  for (const tick of ticks.at) c.fillRect(Math.round(x(tick)), top, 1, lane.height);
  c.fillRect(0, top + lane.height - 1, view.width, 1);
  c.save();
  c.beginPath();
  c.rect(view.gutter, top, view.width - view.gutter, lane.height);
  c.clip();
  for (const item of lane.items) {
    if (item.drawn < view.t0 || item.start > view.t1) continue;
    const y = top + PAD + item.track * TRACK;
    if (item.kind === "missing") drawMissing(c, item, x, y, view, colours);
    else drawBar(c, model, lane, item, x, y, view, colours);
    if (chosen?.item === item) outline(c, x(item.start), x(item.drawn), y, view, colours.focus);
  }
  if (lane.end !== null) drawEnd(c, x(lane.end), top, lane, view, colours);
  c.restore();
  const middle = top + lane.height / 2;
  c.font = lane.role === "suspect" ? `bold ${FONT}` : FONT;
  c.fillStyle = lane.role === "suspect" ? colours.bad : colours.fg;
  const name = `rank ${lane.rank}`;
  c.fillText(name, 6, middle);
  const used = c.measureText(name).width + 12;
  c.font = FONT;
  c.fillStyle = colours.muted;
  const rest = [lane.role, view.gutter > 130 ? lane.node : ""].filter(Boolean).join(", ");
  c.fillText(shorten(c, rest, view.gutter - used - 6), used, middle);
}

function drawBar(c, model, lane, item, x, y, view, colours) {
  const colour = colours[`g${item.group % 8}`];
  const left = Math.max(x(item.start), view.gutter - 20);
  const tip = item.open ? Math.min(x(item.end), view.width - 1) : 0; // an open bar ends in an arrow
  const solid = item.open ? Math.max(left, tip - 8) : Math.min(Math.max(x(item.solid), left + 1.5), view.width + 20);
  const right = item.open ? solid : Math.min(Math.max(x(item.drawn), solid), view.width + 20);
  const [top, height] = [y + 1, TRACK - 3];
  c.fillStyle = colour;
  const begun = item.begun === null ? left : Math.min(Math.max(x(item.begun), left), solid);
  if (begun > left) c.fillRect(left, top + height / 2 - 2, begun - left, 4); // enqueued, not yet started
  c.fillRect(begun, top, Math.max(1.5, solid - begun), height);
  if (right > solid) {
    const fade = c.createLinearGradient(x(item.solid), 0, x(item.drawn), 0);
    fade.addColorStop(0, `${colour}66`);
    fade.addColorStop(1, `${colour}1f`);
    c.fillStyle = fade;
    c.fillRect(solid, top, right - solid, height);
  }
  if (item.open) arrow(c, solid, tip, top, height, colour);
  if (item.failed) outline(c, left, right, y, view, colours.bad);
  const soft = lane.uncertainty ? (lane.uncertainty * (view.width - view.gutter)) / (view.t1 - view.t0) : 0;
  if (soft >= 1) whisker(c, x(item.start), soft, top, height, colours.fg);
  const from = Math.max(begun, view.gutter);
  const room = Math.min(right, view.width) - from - 8;
  if (room > 12) {
    const mark = letter(item.group);
    const long = `${mark} ${item.label}${item.failed ? " failed" : ""}`;
    const [solidRoom, fadedRoom] = [Math.min(solid, view.width) - from - 8, right - Math.max(solid, from) - 8];
    const isFaded = fadedRoom > solidRoom; // the label is on one part of the bar: dark on a solid colour cannot be read
    const fits = [long, `${mark} #${item.seq}`, mark].find((one) => c.measureText(one).width <= (isFaded ? fadedRoom : solidRoom));
    c.fillStyle = isFaded ? colours.fg : colours.bg;
    if (fits) c.fillText(fits, (isFaded ? Math.max(solid, from) : from) + 4, top + height / 2 + 0.5);
  }
}

/** A hatched, dashed gap: the rank should be in this op, and is not. */
function drawMissing(c, item, x, y, view, colours) {
  const left = Math.max(x(item.start), view.gutter);
  const right = Math.min(Math.max(x(item.end), left + 3), view.width);
  const [top, height] = [y + 1, TRACK - 3];
  if (right <= left) return;
  c.save();
  c.beginPath();
  c.rect(left, top, right - left, height);
  c.clip();
  c.strokeStyle = colours.bad;
  c.globalAlpha = 0.45;
  c.lineWidth = 1;
  c.beginPath();
  for (let at = left - (left % 6) - height; at < right; at += 6) {
    c.moveTo(at, top + height);
    c.lineTo(at + height, top);
  }
  c.stroke();
  c.restore();
  c.save();
  c.strokeStyle = colours.bad;
  c.setLineDash([4, 3]);
  c.strokeRect(left + 0.5, top + 0.5, Math.max(2, right - left - 1), height - 1);
  c.restore();
  const label = `not joined: ${letter(item.group)} ${item.label}`;
  const width = c.measureText(label).width;
  if (right - left > width + 12) {
    c.fillStyle = colours["bad-bg"];
    c.fillRect(left + 4, top + 1, width + 6, height - 2);
    c.fillStyle = colours.bad;
    c.fillText(label, left + 7, top + height / 2 + 0.5);
  }
}

function outline(c, left, right, y, view, colour) {
  const from = Math.max(left, view.gutter - 3);
  c.strokeStyle = colour;
  c.lineWidth = 2;
  c.strokeRect(from, y, Math.max(3, Math.min(right, view.width + 3) - from), TRACK - 1);
  c.lineWidth = 1;
}

/** The end of a process. */
function drawEnd(c, x, top, lane, view, colours) {
  c.fillStyle = colours.bad;
  c.fillRect(x - 1, top, 3, lane.height);
  const room = view.width - x - 8;
  const left = room < c.measureText("ended").width;
  c.textAlign = left ? "right" : "left";
  c.fillText("ended", left ? x - 5 : x + 6, top + lane.height / 2 + 0.5);
  c.textAlign = "left";
}

/** The open end of a bar. */
function arrow(c, from, to, top, height, colour) {
  c.fillStyle = colour;
  c.beginPath();
  c.moveTo(from, top - 1);
  c.lineTo(to, top + height / 2);
  c.lineTo(from, top + height + 1);
  c.fill();
}

/** The start is between these two ends. */
function whisker(c, x, soft, top, height, colour) {
  c.fillStyle = colour;
  c.globalAlpha = 0.25;
  c.fillRect(x - soft, top, 2 * soft, height);
  c.globalAlpha = 1;
  const middle = top + height / 2;
  c.fillRect(x - soft, middle, 2 * soft, 1);
  c.fillRect(x - soft, middle - 3, 1, 7);
  c.fillRect(x + soft, middle - 3, 1, 7);
}

/** @param {View} view */
function axisTicks(view) {
  const span = view.t1 - view.t0;
  const apart = span < 1 ? 124 : span < 20 ? 100 : 84; // the more digits, the wider a label
  const wanted = Math.max(1e-6, (span * apart) / Math.max(80, view.width - view.gutter));
  const power = 10 ** Math.floor(Math.log10(wanted));
  let step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= wanted) ?? wanted;
  if (step > 5) step = [10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find((one) => one >= wanted) ?? step;
  const at = [];
  for (let n = Math.ceil(view.t0 / step); n * step <= view.t1 && at.length < 60; n += 1) at.push(n * step);
  return { at, digits: Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9))) };
}

function drawAxis(c, model, view, colours, ticks) {
  const x = scale(view);
  c.fillStyle = colours.panel;
  c.fillRect(0, 0, view.width, AXIS);
  c.fillStyle = colours.line;
  c.fillRect(0, AXIS - 1, view.width, 1);
  c.fillRect(view.gutter - 1, 0, 1, view.height);
  c.font = FONT;
  c.fillStyle = colours.muted;
  c.fillText(shorten(c, model.zone, view.gutter - 8), 6, AXIS / 2);
  for (const tick of ticks.at) {
    const at = Math.round(x(tick));
    const label = clockTime(model.fromUs + Math.round(tick * 1e6), ticks.digits);
    c.fillStyle = colours.line;
    c.fillRect(at, AXIS - 6, 1, 6);
    c.fillStyle = colours.fg;
    if (at + 3 + c.measureText(label).width < view.width) c.fillText(label, at + 3, AXIS / 2);
  }
}

/** Cut a text to `room` pixels. */
export function shorten(c, whole, room) {
  if (room <= 8) return "";
  if (c.measureText(whole).width <= room) return whole;
  let n = whole.length;
  while (n > 0 && c.measureText(`${whole.slice(0, n)}…`).width > room) n -= 1;
  return n ? `${whole.slice(0, n)}…` : "";
}
