/**
 * Sets of ranks as sorted ranges, and their text `0-3,5`.
 *
 * Ranges, not lists: a set of 16,384 ranks is one pair, so that the wait-for graph intersects sets
 * of any size quickly.
 */
import { list, number } from "./format.js";

/** @typedef {[number, number][]} Ranges first and last rank of each run, in order */

/** @param {unknown} ranks a list of ranks, or text such as "0-3,5" @returns {Ranges} */
export function ranges(ranks) {
  if (typeof ranks === "string") {
    const runs = [];
    for (const part of ranks.split(",")) {
      const match = /^\s*(\d{1,9})(?:-(\d{1,9}))?\s*$/.exec(part);
      if (match) runs.push([Number(match[1]), Number(match[2] ?? match[1])]);
    }
    return runs.filter(([low, high]) => low <= high).sort((a, b) => a[0] - b[0]);
  }
  const runs = [];
  for (const rank of list(ranks).filter((one) => number(one) !== null).sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && rank <= last[1] + 1) last[1] = Math.max(last[1], rank);
    else runs.push([rank, rank]);
  }
  return runs;
}

/** @param {Ranges} runs */
export const rangesText = (runs) =>
  runs.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(",");

/** @param {Ranges} runs */
export const rangesCount = (runs) => runs.reduce((sum, [low, high]) => sum + high - low + 1, 0);

/** @param {Ranges} a @param {Ranges} b @returns {Ranges} */
export function both(a, b) {
  const found = [];
  for (let i = 0, k = 0; i < a.length && k < b.length; ) {
    const low = Math.max(a[i][0], b[k][0]);
    const high = Math.min(a[i][1], b[k][1]);
    if (low <= high) found.push([low, high]);
    if (a[i][1] < b[k][1]) i += 1;
    else k += 1;
  }
  return found;
}

/** The ranks of `a` that are not in `b`. @param {Ranges} a @param {Ranges} b @returns {Ranges} */
export function without(a, b) {
  const found = [];
  for (const [low, high] of a) {
    let from = low;
    for (const [first, last] of b) {
      if (last < from || first > high) continue;
      if (first > from) found.push([from, first - 1]);
      from = last + 1;
    }
    if (from <= high) found.push([from, high]);
  }
  return found;
}
