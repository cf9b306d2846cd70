/**
 * The health of frd, and of the nodes and their clocks. A watcher that is blind must not look healthy.
 */
import { html } from "../../vendor/standalone.module.js";
import { age, count, duration, figure, list, number, record, text } from "../core/format.js";
import { LongTable, Table, Tag } from "../core/parts.js";

/** From these values on a figure is marked, s. `frd` itself counts as not ready when its evaluation is 5 s old. */
const LATE = { evaluated_age_s: 5, ingest_lag_s: 2, loop_lag_s: 0.5 };

export function Health({ health }) {
  if (health === null) return null;
  const services = list(health.services).map(record);
  const incomplete = list(health.incomplete);
  const counts = record(health.node_counts);
  const wrong = services.some((one) => one.not_ready !== null || late(one, "evaluated_age_s") || one.agents_silent || one.gap_entries) || incomplete.length > 0 || Boolean(counts.silent || counts.gone);
  return html`<section aria-labelledby="health-head">
    <h2 id="health-head">frd itself</h2>
    <details open=${wrong}><summary>${wrong ? "Not all is well" : `Ready: ${count(services.length, "replica")}, ${count(counts.connected ?? 0, "node")} connected`}</summary>
    ${services.filter((one) => one.not_ready).map((one, i) => html`<p key=${i} class="box bad">
      <strong>Not ready${one.replica ? `: ${text(one.replica)}` : ""}:</strong> ${text(one.not_ready)}</p>`)}
    ${incomplete.length ? html`<p class="box warn"><strong>No answer from ${incomplete.map(text).join(", ")}.</strong></p>` : ""}
    <${Table} label="Health of each replica" stack=${true}
      head=${["Replica", "State", "Evaluated", "Ingest lag", "Loop lag", "Agents", "Lost entries", "Refused", "Store errors", "Evicted"]}
      rows=${services.map((one) => [
        html`${text(one.replica) || "frd"} <span class="muted">${text(one.version)}</span>`,
        html`<${Tag} value=${one.not_ready ? "not ready" : "ready"} tone=${one.not_ready ? "bad" : "good"} />`,
        html`<${Mark} bad=${late(one, "evaluated_age_s")} value=${number(one.evaluated_age_s) === null ? "never" : `${duration(one.evaluated_age_s)} ago`} />`,
        html`<${Mark} bad=${late(one, "ingest_lag_s")} value=${duration(one.ingest_lag_s)} />`,
        html`<${Mark} bad=${late(one, "loop_lag_s")} value=${duration(one.loop_lag_s)} />`,
        html`${figure(one.agents)}${one.agents_silent ? html`, <strong class="bad">${figure(one.agents_silent)} silent</strong>` : ", 0 silent"}`,
        html`<${Mark} bad=${one.gap_entries > 0} value=${figure(one.gap_entries)} />`,
        html`<${Nonzero} counts=${one.refused} />`,
        html`<${Nonzero} counts=${one.store_errors} />`,
        html`<${Nonzero} counts=${one.evicted} />`,
      ])}
    />
    <${NodeCounts} health=${health} />
    </details>
  </section>`;
}

const late = (one, key) => number(one[key]) === null ? key === "evaluated_age_s" : one[key] >= LATE[key];
const Mark = ({ bad, value }) => (bad ? html`<strong class="bad">${value}</strong>` : value);

function Nonzero({ counts }) {
  const all = Object.entries(record(counts));
  if (!all.length) return "0";
  return html`<span class="warn">${all.map(([name, n]) => `${text(name)} ${figure(n)}`).join(", ")}</span>`;
}

function NodeCounts({ health }) {
  const counts = record(health.node_counts);
  const nodes = list(health.nodes);
  const part = (name, bad) =>
    html`<span class=${bad && counts[name] ? "bad strong" : ""}>${figure(counts[name] ?? 0)} ${name === "unsynchronized" ? "with an unsynchronized clock" : name}</span>`;
  return html`<p class="nodes">Nodes: ${part("connected")}, ${part("silent", true)}, ${part("gone", true)}, ${part("unsynchronized", true)}.</p>
    ${nodes.length ? html`<details><summary>${count(nodes.length, "node")}, the worst first${health.more_nodes ? `, of ${figure(nodes.length + health.more_nodes)}` : ""}</summary>
      <${Nodes} nodes=${nodes} more=${health.more_nodes} /></details>` : ""}`;
}

/** Nodes with their clocks. */
export function Nodes({ nodes, more = 0 }) {
  const rows = nodes.map(record).map((one) => {
    const { clock_offset_s: offset, clock_uncertainty_s: uncertainty, last_message_age_s: heard } = one;
    const why = text(one.clock_reason);
    return [
      text(one.node),
      html`<span class=${one.connected === false ? "bad strong" : ""}>${one.connected === false ? "not connected" : "connected"}</span>${one.reporting === false ? html`, <strong class="warn">not reporting</strong>` : ""}`,
      number(heard) === null ? "–" : `${age(heard)} ago`,
      html`<span class=${why ? "warn" : ""}>${[text(one.clock_state), why].filter(Boolean).join(": ")}</span>`,
      number(offset) === null ? "–" : duration(offset),
      number(uncertainty) === null ? "–" : `± ${duration(uncertainty)}`,
    ];
  });
  return html`<${LongTable} label="Nodes and their clocks" stack=${true} head=${["Node", "Agent", "Last report", "Clock", "Offset", "Uncertainty"]} rows=${rows} />
    ${more ? html`<p class="muted">and ${count(more, "more node")}</p>` : ""}`;
}
