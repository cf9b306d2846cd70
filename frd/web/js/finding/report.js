/**
 * A finding as Markdown, to be pasted into a ticket or a chat. Texts of jobs stay text there.
 */
import { bothTimes, list, record, text } from "../core/format.js";
import { headline } from "../core/parts.js";
import { rangesText, ranges } from "../core/ranges.js";

const plain = (value) => text(value).replace(/[\\`*_{}[\]<>|#~!]/g, "\\$&");
/** A fence that is longer than any in the text. */
function fenced(lines) {
  const body = lines.map(text).join("\n");
  const fence = "`".repeat(Math.max(3, ...[...body.matchAll(/`+/g)].map(([run]) => run.length + 1)));
  return `${fence}\n${body}\n${fence}`;
}

export function reportOf(finding) {
  const suspects = list(finding.suspects).map(record).slice(0, 4);
  const steps = list(finding.do_now).map(record);
  const parts = [
    `## ${plain(headline(finding))}`,
    plain(finding.effect),
    [`Job ${plain(finding.job)}`, plain(finding.kind), plain(finding.severity), `${plain(finding.state)} since ${bothTimes(finding.opened_at)}`].filter(Boolean).join(", "),
    ...steps.flatMap((one) => [`- ${plain(one.text)}`, one.command ? fenced([one.command]) : ""]),
    ...suspects.flatMap((one) => [
      `**Rank ${plain(one.rank)}**${one.node ? ` on ${plain(one.node)}` : ""}: ${plain(one.reason)}${one.confidence ? ` (${plain(one.confidence)})` : ""}. ${plain(one.evidence)}`,
      list(one.stack).length ? fenced(one.stack) : "",
    ]),
    list(finding.victims).length ? `Ranks that wait: ${rangesText(ranges(finding.victims))}` : "",
    location.href,
  ];
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}
