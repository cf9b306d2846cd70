/**
 * The suspects of a finding as cards: reason, confidence, evidence, what the rank waits for and does, its stack.
 */
import { html, useState } from "../../vendor/standalone.module.js";
import { get } from "../core/api.js";
import { count, duration, lines, list, number, record, segment, text } from "../core/format.js";
import { useMay } from "../core/frame.js";
import { Copy, Facts, Time, folded, named } from "../core/parts.js";

export function Suspects({ finding }) {
  const suspects = list(finding.suspects);
  const may = useMay();
  if (!suspects.length) {
    return html`<p class="box">This finding names no suspect${finding.reason ? html`; reason: <strong>${text(finding.reason)}</strong>` : ""}.</p>`;
  }
  const open = suspects.length <= 4;
  return html`<div class="cards">
    ${folded(suspects).map((alike, i) => html`
      ${alike.length > 1 ? html`<p><strong>${named(alike)}</strong> are equally suspect.</p>` : ""}
      ${alike.map((one) => html`<${Card} key=${`${one.rank}-${i}`} suspect=${one} open=${open || i < 2} finding=${finding} />`)}`)}
    ${may ? html`<${Log} finding=${finding} key=${finding.id} />` : ""}
  </div>`;
}

/** The end of what the suspects wrote to stderr, read when it is wanted. */
function Log({ finding }) {
  const [answer, setAnswer] = useState(null);
  const read = async () => {
    setAnswer({ ranks: [], error: "" });
    try {
      setAnswer({ ranks: list((await get(`/api/v1/findings/${segment(finding.id)}/log`, { clock: false })).data.ranks).map(record), error: "" });
    } catch (error) {
      setAnswer({ ranks: [], error: error.message });
    }
  };
  return html`<details class="log" onToggle=${(event) => event.currentTarget.open && read()}><summary>Last lines of its stderr</summary>
    ${answer?.error ? html`<p class="box warn" role="alert">${answer.error}</p>` : ""}
    ${list(answer?.ranks).map((one, i) => html`<div key=${i}><p><strong>Rank ${text(one.rank)}</strong>${one.node ? ` on ${text(one.node)}` : ""}${one.path ? html`: <code>${text(one.path)}</code>` : ""}</p>
      ${list(one.lines).length ? html`<pre tabindex="0">${lines(one.lines)}</pre>` : html`<p class="muted">${text(one.why) || "It is empty."}</p>`}</div>`)}
  </details>`;
}

const joined = (...parts) => [...new Set(parts.filter(Boolean))].join(", ");

/** A value to read, and to copy. */
const Given = ({ value, what }) => html`<code>${text(value)}</code> <${Copy} value=${text(value)} what=${what} />`;

/** Where the process is, for a shell. */
function addressRows(suspect) {
  const at = record(suspect.address);
  const job = joined(at.slurm_job && `${text(at.slurm_job)}${at.slurm_step ? `.${text(at.slurm_step)}` : ""}`);
  const pod = [at.namespace, at.pod].filter(Boolean).map(text).join("/");
  return [
    ["Node", suspect.node ? html`<${Given} value=${suspect.node} what="the node" />` : ""],
    ["Pid", at.pid ? html`<${Given} value=${at.pid} what="the pid" />${at.user ? ` user ${text(at.user)}` : ""}` : ""],
    ["Command", at.command ? html`<${Given} value=${at.command} what="the command line" />` : ""],
    ["Container", at.container ? html`<${Given} value=${at.container} what="the container" />` : ""],
    ["Slurm job", job ? html`<${Given} value=${job} what="the Slurm job" />` : ""],
    ["Pod", pod ? html`<${Given} value=${pod} what="the pod" />` : ""],
    ["Log", at.log ? html`<${Given} value=${at.log} what="the path of the log" />` : ""],
  ];
}

/** Why a suspect has no stack. */
function noStack(suspect, finding) {
  if (suspect.reason === "exited") return "No stack: its process has ended.";
  if (suspect.reason === "unreachable") return "No stack: the rank does not answer.";
  if (["straggler", "memory_spike", "oom", "mismatch"].includes(finding.kind)) return "No stack: this kind of finding asks for none.";
  return finding.state === "open" ? "No stack yet: the rank has not answered." : "No stack: the rank had not answered when the finding closed.";
}

function Card({ suspect, open, finding }) {
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
    <div class="address"><${Facts} rows=${addressRows(suspect)} /></div>
    <${Facts} rows=${[
      ["Waits for", waits.text ? html`${text(waits.text)}${waits.certainty ? html` <span class="tag" title="How certain this is">${text(waits.certainty)}</span>` : ""}` : ""],
      ["Does", text(suspect.doing)],
      ["Evidence", text(suspect.evidence)],
      ["Since", suspect.onset_at ? html`<${Time} at=${suspect.onset_at} />${uncertainty === null ? " (uncertainty unknown)" : ` ± ${duration(uncertainty)}`}` : ""],
      ["Phase", list(phase.path).length ? html`${list(phase.path).map(text).join(" / ")}${phase.since ? html` since <${Time} at=${phase.since} />` : ""}` : ""],
      ["Inside", text(suspect.inside)],
      ["Waits in", waits.kind ? text(waits.kind) : ""],
      ["Object", text(waits.what)],
      ["Mount", waits.mount || waits.fs ? [text(waits.mount), text(waits.fs)].filter(Boolean).join(", ") : ""],
      ["Process", waits.process || waits.pid ? joined(text(waits.process), waits.pid && `pid ${text(waits.pid)}`, text(waits.thread)) : ""],
      ["Waits since", waits.since ? html`at least <${Time} at=${waits.since} />` : ""],
      ["Held by", holder.pid || holder.rank !== undefined ? joined(text(holder.process), holder.pid && `pid ${text(holder.pid)}`, number(holder.rank) !== null && `rank ${holder.rank}`) : ""],
    ]} />
    ${stack.length
      ? html`<details open=${open}><summary>Stack of the main thread, innermost frame first</summary><pre tabindex="0">${lines(stack)}</pre></details>`
      : html`<p class="muted">${noStack(suspect, finding)}</p>`}
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
