/**
 * The suspects of a finding as cards: reason, confidence, evidence, what the rank waits for and does, its stack.
 */
import { html } from "../../vendor/standalone.module.js";
import { count, duration, lines, list, number, record, text } from "../core/format.js";
import { Age, Facts, Time, folded, named } from "../core/parts.js";

export function Suspects({ finding }) {
  const suspects = list(finding.suspects);
  if (!suspects.length) {
    return html`<p class="box">This finding names no suspect${finding.reason ? html`; reason: <strong>${text(finding.reason)}</strong>` : ""}.</p>`;
  }
  const open = suspects.length <= 4;
  return html`<div class="cards">
    ${folded(suspects).map((alike, i) => html`
      ${alike.length > 1 ? html`<p><strong>${named(alike)}</strong> are equally suspect.</p>` : ""}
      ${alike.map((one) => html`<${Card} key=${`${one.rank}-${i}`} suspect=${one} open=${open || i < 2} ended=${finding.state !== "open"} />`)}`)}
  </div>`;
}

function Card({ suspect, open, ended }) {
  const waits = record(suspect.waits_for);
  const phase = record(suspect.phase);
  const holder = record(waits.holder);
  const workers = list(suspect.workers).map(record);
  const stack = list(suspect.stack);
  const uncertainty = number(suspect.onset_uncertainty_s);
  return html`<article class="card">
    <h3>Rank ${text(suspect.rank)}${suspect.node ? html` <span class="on">on ${text(suspect.node)}</span>` : ""}
      ${" "}<span class="tag">${text(suspect.reason)}</span> ${suspect.confidence ? html`<span class="tag">${text(suspect.confidence)} confidence</span>` : ""}
      ${suspect.tied ? html` <span class="tag warn">tied</span>` : ""}</h3>
    ${waits.text ? html`<p class="waits"><strong>${text(waits.text)}</strong>
        ${waits.certainty ? html` <span class="tag" title="How certain this is">${text(waits.certainty)}</span>` : ""}</p>` : ""}
    ${suspect.doing ? html`<p class="waits"><strong>Doing:</strong> ${text(suspect.doing)}</p>` : ""}
    <${Facts} rows=${[
      ["Evidence", text(suspect.evidence)],
      ["Since", suspect.onset_at ? html`<${Time} at=${suspect.onset_at} />${uncertainty === null ? " (uncertainty unknown)" : ` ± ${duration(uncertainty)}`}${ended ? "" : html`, <${Age} at=${suspect.onset_at} /> ago`}` : ""],
      ["Phase", list(phase.path).length ? html`${list(phase.path).map(text).join(" / ")}${phase.since ? html` since <${Time} at=${phase.since} />` : ""}` : ""],
      ["Inside", text(suspect.inside)],
      ["Waits in", waits.kind ? text(waits.kind) : ""],
      ["Object", text(waits.what)],
      ["Mount", waits.mount || waits.fs ? [text(waits.mount), text(waits.fs)].filter(Boolean).join(", ") : ""],
      ["Process", waits.process || waits.pid ? [text(waits.process), waits.pid ? `pid ${text(waits.pid)}` : "", text(waits.thread)].filter(Boolean).join(", ") : ""],
      ["Waits since", waits.since ? html`at least <${Time} at=${waits.since} />` : ""],
      ["Held by", holder.pid || holder.rank !== undefined ? [text(holder.process), holder.pid ? `pid ${text(holder.pid)}` : "", number(holder.rank) === null ? "" : `rank ${holder.rank}`].filter(Boolean).join(", ") : ""],
    ]} />
    ${stack.length
      ? html`<details open=${open}><summary>Stack of the main thread, innermost frame first</summary><pre tabindex="0">${lines(stack)}</pre></details>`
      : html`<p class="muted">No stack.</p>`}
    ${workers.length
      ? html`<details><summary>${count(workers.length, "child process", "child processes")}</summary>
          ${workers.map((one, i) => html`<div key=${i} class="worker">
            <strong>${text(one.name)} pid ${text(one.pid)}</strong>${one.doing ? `: ${text(one.doing)}` : ""}${one.usage ? `; ${text(one.usage)}` : ""}
            ${one.inside ? html`<div class="muted">inside ${text(one.inside)}</div>` : ""}
            ${list(one.stack).length ? html`<pre tabindex="0">${lines(one.stack)}</pre>` : ""}
          </div>`)}
        </details>`
      : ""}
  </article>`;
}
