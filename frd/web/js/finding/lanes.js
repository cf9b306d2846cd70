/**
 * The timeline answer as lanes of items with positions: what the canvas and the table show.
 *
 * Times are seconds after the answer's `from`. Items of one lane that overlap in time (ops of
 * several groups) go on up to four tracks. Where it is not known when an op ended, its next op may
 * begin before the latest possible time: then the drawing of the first one ends there.
 */
import { clockTime, duration, list, micros, number, precise, record, text, zoneText } from "../core/format.js";

export const TRACK = 16; // CSS pixels
export const PAD = 3;
const TRACKS = 4;

/**
 * @typedef {{kind: "bar" | "missing", lane: number, group: number, seq: number | null, op: string, start: number, end: number,
 *   begun: number | null, solid: number, drawn: number, open: boolean, failed: boolean, track: number, label: string}} Item
 * @typedef {{rank: number, node: string, role: string, uncertainty: number | null, end: number | null, items: Item[], tracks: number, y: number, height: number}} Lane
 * @typedef {{lanes: Lane[], groups: string[], window: number, span: number, at: number, fromUs: number, zone: string, height: number, items: number}} Model
 *   window: up to when the service means the picture to be shown; span: up to the end of the last item;
 *   at: up to when the answer knows that open items are open, NaN if it does not say
 */

/** `A`, `B` .. `Z`, `A1`: the letter of a group, so that colour is not the only signal. */
export const letter = (group) => `${String.fromCharCode(65 + (group % 26))}${group >= 26 ? Math.floor(group / 26) : ""}`;

/** @param {Record<string, any>} data @param {Record<string, any>} [finding] says which onsets are ends of processes @returns {Model} */
export function laneModel(data, finding = {}) {
  const exited = new Set(list(finding.suspects).map(record).filter((one) => one.reason === "exited").map((one) => one.rank));
  const ends = new Map(list(data.onsets).map(record).filter((one) => exited.has(one.rank)).map((one) => [one.rank, number(one.at_s)]));
  const ops = list(data.ops).map(text);
  const groups = list(data.groups).map(text);
  const fromUs = micros(data.from);
  const until = (micros(data.until) - fromUs) / 1e6;
  let span = until > 0 ? until : 0;
  /** @type {Lane[]} */
  const lanes = list(data.lanes).map(record).map((one) => ({
    rank: one.rank, node: text(one.node), role: text(one.role), uncertainty: number(one.uncertainty_s), end: ends.get(one.rank) ?? null,
    items: [], tracks: 1, y: 0, height: 0,
  }));
  for (const item of [...bars(record(data.bars), ops), ...missing(record(data.missing), ops)]) {
    const lane = lanes[item.lane];
    if (!lane) continue;
    lane.items.push(item);
    for (const end of [item.start, item.end]) if (Number.isFinite(end)) span = Math.max(span, end);
  }
  for (const end of ends.values()) span = Math.max(span, end ?? 0);
  span = span || 1;
  const window = until > 0 ? until : span;
  const at = (micros(data.at) - fromUs) / 1e6;
  let [y, items] = [0, 0];
  for (const lane of lanes) {
    for (const item of lane.items) {
      if (item.open) item.end = item.solid = lane.end !== null && lane.end > item.start ? lane.end : span;
      const seq = item.seq === null || item.seq < 0 ? "" : ` #${item.seq}`;
      item.label = `${item.op}${seq}`;
    }
    pack(lane);
    items += lane.items.length;
    lane.y = y;
    lane.height = lane.tracks * TRACK + 2 * PAD;
    y += lane.height;
  }
  return { lanes, groups, window, span, at, fromUs, zone: zoneText(data.from), height: y, items };
}

function bars(table, ops) {
  const starts = list(table.enqueued_s);
  return starts.map((start, i) => {
    const end = number(list(table.end_s)[i]);
    const solid = number(list(table.end_from_s)[i]);
    return {
      kind: "bar", lane: list(table.lane)[i], group: index(list(table.group)[i]), seq: number(list(table.seq)[i]),
      op: ops[list(table.op)[i]] ?? "", start: number(start) ?? 0, end: end ?? Infinity, begun: number(list(table.started_s)[i]),
      solid: solid ?? end ?? Infinity, drawn: 0, open: end === null, failed: list(table.failed)[i] === true, track: 0, label: "",
    };
  });
}

const index = (value) => (Number.isInteger(value) && value >= 0 ? value : 0);

function missing(table, ops) {
  return list(table.since_s).map((start, i) => {
    const end = number(list(table.until_s)[i]);
    return {
      kind: "missing", lane: list(table.lane)[i], group: index(list(table.group)[i]), seq: number(list(table.seq)[i]),
      op: ops[list(table.op)[i]] ?? "", start: number(start) ?? 0, end: end ?? Infinity, begun: null,
      solid: end ?? Infinity, drawn: 0, open: end === null, failed: false, track: 0, label: "",
    };
  });
}

/** Give each item the first track on which none has surely not ended yet. @param {Lane} lane */
function pack(lane) {
  lane.items.sort((a, b) => a.start - b.start);
  /** @type {Item[]} the last item of each track */
  const last = [];
  for (const item of lane.items) {
    let track = last.findIndex((one) => one.solid <= item.start);
    if (track < 0) track = Math.min(last.length, TRACKS - 1);
    const before = last[track];
    if (before) before.drawn = Math.max(before.solid, Math.min(before.end, item.start));
    item.track = track;
    item.drawn = item.end;
    last[track] = item;
  }
  lane.tracks = Math.max(1, last.length);
}

/** The facts of an item, for the tip and the table. @param {Model} model @param {Lane} lane @param {Item} item */
export function facts(model, lane, item) {
  const at = (s) => clockTime(model.fromUs + s * 1e6, 6);
  const group = model.groups[item.group] ?? "";
  const lasted = (model.at >= item.start ? model.at : item.end) - item.start; // of an open item
  const op = `${item.label}${group ? ` on ${group}` : ""}`;
  if (item.kind === "missing") {
    return [`rank ${lane.rank} has not joined ${op}`, `others wait in it since ${at(item.start)}`,
      item.open ? `for ${duration(lasted)}, and still` : `joined, or ended, at ${at(item.end)}`];
  }
  const off = lane.uncertainty === null ? "clock not aligned" : `± ${duration(lane.uncertainty)}`;
  const found = [`rank ${lane.rank}: ${op}`, `enqueued ${at(item.start)} (${off})`];
  if (item.begun !== null) found.push(`started ${at(item.begun)}`);
  if (item.open) found.push(`not completed after ${duration(lasted)}`);
  else if (item.end - item.solid > 1e-9) {
    found.push(`took ${precise(item.solid - item.start)} to ${precise(item.end - item.start)}: completed between ${at(item.solid)} and ${at(item.end)}`);
  } else found.push(`took ${precise(item.end - item.start)}, until ${at(item.end)}`);
  if (item.failed) found.push("failed");
  return found;
}

/** The item at a point, in seconds and in CSS pixels from the top of the first lane.
 * @param {Model} model @param {number} s @param {number} y @param {number} slack seconds that a pointer may miss by */
export function itemAt(model, s, y, slack) {
  const lane = model.lanes.find((one) => y >= one.y && y < one.y + one.height);
  if (!lane) return null;
  const track = Math.floor((y - lane.y - PAD) / TRACK);
  let best = null;
  for (const item of lane.items) {
    if (lane.tracks > 1 && item.track !== track) continue;
    const miss = Math.max(item.start - s, s - item.drawn, 0);
    if (miss <= slack && (best === null || miss <= best.miss)) best = { lane, item, miss };
  }
  return best ?? { lane, item: null, miss: 0 };
}
