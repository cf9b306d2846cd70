"""Texts of findings, whatever jobs, nodes and files are called."""

from __future__ import annotations

import shlex
import unicodedata
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from frd.do_now import do_now, shown_json
from frd.engine.findings.builder import looks_alike
from frd.engine.findings.headlines import MOST_CHARS, worded
from frd.forms import finding_from_json, finding_json, json_bytes
from frd.model import (
    Address,
    AlignedNs,
    Certainty,
    CollectiveRef,
    Confidence,
    Finding,
    FindingState,
    Holder,
    Kind,
    Reason,
    Suspect,
    WaitKind,
    WaitsFor,
)

TEXTS = st.text(max_size=6) | st.sampled_from(
    ["node7", "-rf", "a\nb\u202e", "\ud800\x00", "'; rm -rf / #", "x" * 150, "very long " * 15]
)
RANKS = st.integers(0, (1 << 20) - 1)
SAYS = st.sampled_from(["has been in read() of {}", "has been waiting for {}", "{}", ""])


@st.composite
def waits(draw: st.DrawFn) -> WaitsFor:
    what = draw(st.just("") | TEXTS.map("/what/{}".format))
    return WaitsFor(
        draw(st.sampled_from(WaitKind)),
        draw(st.sampled_from(Certainty)),
        what=what,
        mount=draw(TEXTS),
        fs=draw(TEXTS),
        pid=draw(st.integers(0, 1 << 22)),
        process=draw(TEXTS),
        since_at=AlignedNs(1),
        seen_at=AlignedNs(10**9),
        holder=draw(st.none() | st.builds(Holder, st.integers(0, 99), st.none() | RANKS, TEXTS)),
        topic=draw(TEXTS),
        says=f"its main thread (pid 7) {draw(SAYS).format(what)}",
        rest=draw(TEXTS),
    )


suspects = st.builds(
    Suspect,
    RANKS,
    TEXTS,
    st.sampled_from(Reason),
    st.sampled_from(Confidence),
    TEXTS.map("evidence {}".format),
    stack=st.lists(TEXTS.map("stack.py:1 in {}".format), max_size=2).map(tuple),
    doing=st.just("") | TEXTS.map("doing {}".format),
    waits_for=st.none() | waits(),
    address=st.none()
    | st.builds(Address, st.integers(0, 9), *[TEXTS] * 4, TEXTS, TEXTS, TEXTS, TEXTS),
)
ranks = st.lists(RANKS, max_size=4, unique=True).map(tuple)
findings = st.builds(
    Finding,
    st.just("0123456789abcdef"),
    st.sampled_from(Kind),
    st.sampled_from(FindingState),
    TEXTS,
    st.just(0),
    st.just(AlignedNs(1)),
    collective=st.none()
    | st.builds(
        CollectiveRef,
        TEXTS,
        TEXTS,
        st.integers(0, 9),
        st.integers(-1, 99),
        TEXTS,
        ranks,
        ranks,
        st.floats(0, 1e6),
    ),
    reason=st.none() | st.sampled_from(Reason),
    groups_held_up=st.lists(TEXTS, max_size=3).map(tuple),
    suspects=st.lists(suspects, max_size=5, unique_by=lambda one: one.rank).map(tuple),
    victims=ranks,
    unknown=ranks,
    disagreement=st.just("") | TEXTS.map("rank 2 differs {}".format),
    ended_by=TEXTS,
    headline=TEXTS.map("headline {}".format),
    effect=TEXTS.map("effect {}".format),
)


def is_line(text: str) -> bool:
    return not {unicodedata.category(c) for c in text} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(findings)
def test_a_headline_is_a_short_line(finding: Finding) -> None:
    """At most 100 printable characters on one line that begin with a capital and have no stop."""
    said = worded(finding)
    assert 0 < len(said.headline) <= MOST_CHARS
    assert is_line(said.headline)
    assert said.headline[0].isupper()
    assert not said.headline.endswith(".")
    assert is_line(said.effect)


@given(findings, st.floats(0, 1e6))
def test_time_changes_the_effect_only(finding: Finding, waited_s: float) -> None:
    """A later look at the same trouble: the headline is the same."""

    def aged(one: Suspect) -> Suspect:
        found = one.waits_for and replace(one.waits_for, seen_at=AlignedNs(10**11))
        return replace(one, waits_for=found)

    ref = finding.collective
    later = replace(
        finding,
        collective=ref and replace(ref, waited_s=waited_s),
        suspects=tuple(map(aged, finding.suspects)),
    )
    before, after = worded(finding), worded(later)
    assert before.headline == after.headline
    assert looks_alike(before, after)


@given(findings)
def test_the_cause_is_in_the_headline_only(finding: Finding) -> None:
    """The effect names neither file, nor line, nor what the program does."""
    said = worded(finding)
    for cause in ("/what/", "stack.py", "doing ", "evidence ", "differs "):
        assert cause not in said.effect


@given(findings)
def test_commands_can_be_pasted(finding: Finding) -> None:
    """One to three steps. A shell takes each command apart into its arguments, and no name of a
    node, file, pod or job becomes an option or has a control character."""
    steps = do_now(finding)
    assert 1 <= len(steps) <= 3
    for step in steps:
        assert step.text[0].isupper()
        assert shlex.split(step.command) == list(step.args)
        assert is_line(step.command)
        assert "-rf" not in step.args
        assert "\ufffd" not in step.command


@given(findings)
def test_what_is_shown_is_json_of_the_finding(finding: Finding) -> None:
    """What to do and the runbook are two more keys, and the finding can be read back."""
    shown = shown_json(finding)
    assert json_bytes(shown)
    steps, runbook = shown.pop("do_now"), shown.pop("runbook")
    assert runbook.startswith("Frd")
    assert [step["text"] for step in steps] == [step.text for step in do_now(finding)]
    assert all(("args" in step) is ("command" in step) for step in steps)
    assert shown == finding_json(finding)
    assert finding_from_json(shown | {"do_now": steps}) == finding_from_json(shown)
