"""A finding as Markdown: what `frd report` prints and the page copies."""

from __future__ import annotations

import re
from dataclasses import replace

from markdown_it import MarkdownIt

from frd.do_now import shown_json
from frd.engine.findings.headlines import worded
from frd.model import (
    Address,
    AlignedNs,
    Certainty,
    CollectiveRef,
    Confidence,
    Finding,
    FindingState,
    Kind,
    Note,
    Reason,
    Suspect,
    WaitKind,
    WaitsFor,
)
from frd.service.findings.report import report

READ = WaitsFor(
    WaitKind.FILE_READ,
    Certainty.SEEN,
    "/data/shard-17.tar",
    pid=7,
    says="its loader worker (pid 7) has been in read() of /data/shard-17.tar",
)
SUSPECT = Suspect(
    *(1, "node7", Reason.CPU_STUCK, Confidence.HIGH, "last joined seq 6 of dp"),
    stack=("train.py:88 in load",),
    waits_for=READ,
    address=Address(13908, "python train.py", log="/logs/rank1.err"),
)
FINDING = Finding(
    *(
        "0123456789abcdef",
        Kind.STALL,
        FindingState.OPEN,
        "llm",
        0,
        AlignedNs(1_800_000_000 * 10**9),
    ),
    collective=CollectiveRef("dp", "id", 3, 7, "all_reduce", (0, 2), (1,), 62.0),
    suspects=(SUSPECT,),
    victims=(0, 2),
    notes=(Note("ann", AlignedNs(1_800_000_060 * 10**9), "see *OPS-1*"),),
)

REPORT = """\
# Rank 1 (node7): its loader worker is stuck in read(/data/shard-17.tar)

- effect: holds up 2 ranks in all\\_reduce \\#7 of dp for 62 s
- stall · open, job `llm`
- finding `0123456789abcdef`: <https://frd/findings/0123456789abcdef>
- victims: 0,2 (2 ranks)

## Do now

1. Log in to the node.

   ```sh
   ssh node7
   ```

2. Does the file answer? Use a shell that you can lose.

   ```sh
   ls -l /data/shard-17.tar
   ```


## Rank 1 on node7

- alive, but has not joined (cpu_stuck), high confidence
- evidence: last joined seq 6 of dp
- pid: `13908`
- command: `python train.py`
- log: `/logs/rank1.err`

```
train.py:88 in load
```

## History

- 2027-01-15 08:00:00 UTC: opened
- 2027-01-15 08:01:00 UTC: ann: see \\*OPS-1\\*
"""


def test_a_report() -> None:
    """Cause, effect, steps with their commands, the suspect, and what people said."""
    shown = shown_json(worded(FINDING))
    assert report(shown, "https://frd/findings/0123456789abcdef") == REPORT


def test_text_of_jobs_is_no_markup() -> None:
    """Names, evidence and stacks with fences, links, headings, images and control characters."""
    nasty = "```\n# x\n[a](http://b)<img src=x>![i](j)**b** `` ~~~ \x1b[31m @all &lt;"
    suspect = replace(
        SUSPECT,
        node=nasty,
        evidence=nasty,
        stack=(nasty, nasty),
        address=Address(1, nasty, nasty, log=nasty),
    )
    finding = replace(FINDING, job=nasty, suspects=(suspect,), ended_by=nasty, assigned_to=nasty)
    text = report(shown_json(worded(finding)), "")
    html = MarkdownIt("commonmark").render(text)
    tags = set(re.findall(r"</?([a-z0-9]+)", html))
    assert tags == {"h1", "h2", "p", "ul", "ol", "li", "code", "pre"}
    assert html.count("<h1>") == 1
    assert html.count("<h2>") == 3
    assert "\x1b" not in text
