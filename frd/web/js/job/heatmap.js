/**
 * The map of a job, groups by ranks: decoding, and pixels.
 *
 * One byte a cell, up to 256 rows of 16,384 ranks and more. A pixel shows the worst state of the
 * ranks below it, and a bad state is at least three pixels wide, so one bad rank stays visible.
 */
import { list, number, record, text } from "../core/format.js";
import { rangesText } from "../core/ranges.js";
import { pixel } from "../core/theme.js";

/** The states that are not bad; of two others, and of two of these, the one with the higher code is worse. */
const HARMLESS = ["none", "ok", "unknown", "waiting"];
const MARKS = { none: "", ok: "", unknown: "?", waiting: "W", stuck: "W", missing: "M", gone: "G" };
/** The API's `stuck` ranks are the victims: they wait. */
const LABELS = { stuck: "waiting, stalled" };
export const labelOf = (name) => LABELS[name] ?? text(name);
/** From this level on a state is bad. */
export const BAD = 256;

/**
 * @typedef {{code: number, name: string, label: string, text: string, level: number, colour: string, mark: string, cells: number}} CellState
 * @typedef {{rows: {group: string, groups: number, ranks: number}[], ranks: number, cells: Uint8Array, states: CellState[],
 *   byCode: CellState[], levels: Uint16Array, worst: Uint8Array}} HeatModel
 */

/** @param {string} base64 @returns {Uint8Array} */
export function decode(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const raw = atob(base64);
  const found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) found[i] = raw.charCodeAt(i);
  return found;
}

/** @param {Record<string, any>} data an answer of view=map @returns {HeatModel} */
export function heatModel(data) {
  const rows = list(data.rows).map(record).map((one) => ({ group: text(one.group), groups: number(one.groups) ?? 1, ranks: number(one.ranks) ?? 0 }));
  const ranks = number(data.world_size) ?? 0;
  const none = list(data.states).map(record).find((one) => one.name === "none")?.code ?? 0;
  let cells = typeof data.cells === "string" ? decode(data.cells) : new Uint8Array(0);
  if (cells.length < rows.length * ranks) {
    const whole = new Uint8Array(rows.length * ranks).fill(none);
    whole.set(cells);
    cells = whole;
  }
  const byCode = Array.from({ length: 256 }, (_, code) => stateOf({ code, name: `state ${code}` }));
  for (const one of list(data.states).map(record)) if (one.code >= 0 && one.code < 256) byCode[one.code] = stateOf(one);
  const levels = Uint16Array.from(byCode, (one) => one.level);
  const counts = new Uint32Array(256);
  const worst = rows.length ? cells.slice(0, ranks) : new Uint8Array(ranks).fill(none); // of the first row so far
  for (let row = 0, at = 0; row < rows.length; row += 1) {
    for (let rank = 0; rank < ranks; rank += 1, at += 1) {
      const code = cells[at];
      counts[code] += 1;
      if (levels[code] > levels[worst[rank]]) worst[rank] = code;
    }
  }
  byCode.forEach((one, code) => (one.cells = counts[code]));
  const known = new Set(list(data.states).map((one) => record(one).code));
  const states = byCode.filter((one) => known.has(one.code) || one.cells);
  return { rows, ranks, cells, states, byCode, levels, worst };
}

function stateOf({ code, name, text: said }) {
  const known = Object.hasOwn(MARKS, name);
  return {
    code, name: text(name), label: labelOf(name), text: text(said) || text(name), level: code + (HARMLESS.includes(name) ? 0 : BAD),
    colour: known ? `cell-${name}` : "cell-other", mark: known ? MARKS[name] : "!", cells: 0,
  };
}

/** Ranks by their worst state, as text, without ok and none: what the map shows, for screen readers.
 * @param {HeatModel} model @returns {{state: CellState, ranks: string, count: number}[]} */
export function notableRanks(model) {
  const found = new Map();
  model.worst.forEach((code, rank) => {
    if (["none", "ok"].includes(model.byCode[code].name)) return;
    const runs = found.get(code) ?? [];
    const last = runs[runs.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else runs.push([rank, rank]);
    found.set(code, runs);
  });
  return [...found]
    .sort(([a], [b]) => model.levels[b] - model.levels[a])
    .map(([code, runs]) => ({
      state: model.byCode[code],
      ranks: runs.length > 24 ? `${rangesText(runs.slice(0, 24))}…` : rangesText(runs),
      count: runs.reduce((sum, [low, high]) => sum + high - low + 1, 0),
    }));
}

/** The worst code of each pixel column, for the ranks from `r0` to `r1`.
 * @param {Uint8Array} cells @param {number} offset @param {number} ranks @param {Uint16Array} levels
 * @param {number} r0 @param {number} r1 @param {Uint8Array} out one code a pixel @param {number} widen */
export function aggregate(cells, offset, ranks, levels, r0, r1, out, widen) {
  const width = out.length;
  const each = (r1 - r0) / width;
  for (let x = 0; x < width; x += 1) {
    const from = Math.max(0, Math.floor(r0 + x * each));
    const to = Math.min(ranks, Math.max(from + 1, Math.floor(r0 + (x + 1) * each)));
    let code = cells[offset + from];
    let level = levels[code];
    for (let at = offset + from + 1; at < offset + to; at += 1) {
      if (levels[cells[at]] > level) {
        code = cells[at];
        level = levels[code];
      }
    }
    out[x] = code;
  }
  if (widen < 1) return;
  const plain = out.slice();
  for (let x = 0; x < width; x += 1) {
    const level = levels[plain[x]];
    if (level < BAD) continue;
    for (let to = Math.max(0, x - widen); to <= Math.min(width - 1, x + widen); to += 1) {
      if (levels[out[to]] < level) out[to] = plain[x];
    }
  }
}

/** All rows as an image of one pixel a row, the first one being the worst of all groups.
 * @param {HeatModel} model @param {number} r0 @param {number} r1 @param {number} width device pixels @param {number} ratio
 * @param {Record<string, string>} colours */
export function heatImage(model, r0, r1, width, ratio, colours) {
  const image = new ImageData(width, model.rows.length + 1);
  const pixels = new Uint32Array(image.data.buffer);
  const palette = Uint32Array.from(model.byCode, (one) => pixel(colours[one.colour]));
  const wide = width / (r1 - r0); // device pixels of a rank
  const widen = wide >= 3 * ratio ? 0 : Math.ceil((3 * ratio - Math.max(1, wide)) / 2);
  const line = new Uint8Array(width);
  for (let row = -1; row < model.rows.length; row += 1) {
    if (row < 0) aggregate(model.worst, 0, model.ranks, model.levels, r0, r1, line, widen);
    else aggregate(model.cells, row * model.ranks, model.ranks, model.levels, r0, r1, line, widen);
    const offset = (row + 1) * width;
    for (let x = 0; x < width; x += 1) pixels[offset + x] = palette[line[x]];
  }
  return image;
}
