/**
 * Tables of the job page: notable ranks, rises of memory, ops, process groups.
 */
import { html } from "../../vendor/standalone.module.js";
import { bytes, count, duration, figure, list, number, record, text } from "../core/format.js";
import { Age, Fate, FindingLink, LongTable, Ranks, Table, Time, placeOf } from "../core/parts.js";
import { both, ranges } from "../core/ranges.js";
import { exitText } from "./rank_panel.js";

export function Notable({ ranks, choose, blame, calm }) {
  if (!ranks.length) return html`<p>No rank is notable: all are live, and none waits.</p>`;
  return html`<${LongTable} label="Notable ranks" stack=${true} wide=${[5]} head=${["Rank", "State", "Node", "Waits in", "For", "Detail", "Known up to"]}
    rows=${ranks.map(record).map((one) => [
      html`<button type="button" class="link" onClick=${() => choose(one.rank)}>rank ${text(one.rank)}</button>`,
      html`<${Fate} one=${one} blame=${blame} calm=${calm} />`,
      html`${text(one.node)}${one.pid ? html` <span class="muted">pid ${text(one.pid)}</span>` : ""}`,
      text(one.waiting_in) || "–",
      number(one.waiting_s) ? duration(one.waiting_s) : "–",
      placeOf(record(blame.suspects.get(one.rank))) || text(one.detail) || exitText(record(one.exit)) || "–",
      one.as_of ? html`<${Age} at=${one.as_of} /> ago` : number(one.age_s) === null ? "–" : `${duration(one.age_s)} ago`,
    ])} />`;
}

/** Rises of memory, those that alarm first. `findings`: the open ones of the job. */
export function Rises({ rises, findings }) {
  const about = list(findings).filter((one) => ["memory_spike", "oom"].includes(one.kind));
  const names = (suspects, rise) => !suspects.length || both(ranges(suspects.map((one) => record(one).rank)), ranges(rise.ranks)).length > 0;
  const rows = rises.map(record).sort((a, b) => Number(b.alarming === true) - Number(a.alarming === true)).map((one) => {
    const suspects = list(one.suspects).map(record);
    const finding = one.alarming ? about.find((found) => names(list(found.suspects), one)) : undefined;
    return [
      html`<${Time} at=${record(one.onset).latest} />`,
      suspects.length ? suspects.map((suspect) => `rank ${text(suspect.rank)} on ${text(suspect.node)}`).join(", or ") : html`<${Ranks} ranks=${one.ranks} />${one.common_cause ? ", together" : ", undecided"}`,
      `+${bytes(one.bytes)} in ${duration(one.took_s)}${one.fell_back ? ", fell back" : ""}`,
      text(one.whose),
      finding ? html`<${FindingLink} finding=${finding} />` : one.alarming ? html`<strong class="bad">alarms</strong>` : "does not alarm",
    ];
  });
  return html`<${LongTable} label="Memory that rose" stack=${true} head=${["When", "Ranks", "Rise", "Whose", "Finding"]} rows=${rows} />`;
}

const quantiles = (one) => {
  const { count: n, p50_s, p90_s, p99_s } = record(one);
  return number(n) ? [figure(n), duration(p50_s), duration(p90_s), duration(p99_s)] : ["–", "–", "–", "–"];
};

export function Ops({ ops }) {
  return html`<${Table} label="Ops" numbers=${[1, 2, 3, 4, 5, 6, 7, 8]}
    head=${["Op", "Matched", "Skew p50", "p90", "p99", "Completed", "Duration p50", "p90", "p99"]}
    rows=${ops.map(record).map((one) => [text(one.op), ...quantiles(one.skew), ...quantiles(one.duration)])} />`;
}

const seq = (value) => (number(value) === null || value < 0 ? "–" : `#${value}`);

export function Groups({ groups, more }) {
  return html`<${LongTable} label="Process groups" numbers=${[1, 2, 5, 6, 7]}
    head=${["Group", "Size", "Open", "State", "Stall threshold", "Enqueued", "Completed", "Matched"]}
    rows=${list(groups).map(record).map((one) => [
      html`<span title=${text(one.group_id)}>${text(one.group)}</span>`,
      figure(one.size),
      figure(one.open),
      one.stalled ? html`<strong class="bad">stalled ${duration(one.stall_s)}</strong>` : "not stalled",
      duration(one.threshold_s),
      seq(one.enqueued),
      seq(one.completed),
      figure(one.matched),
    ])} />
    ${more ? html`<p class="muted">and ${count(more, "more group")}</p>` : ""}`;
}
