"""What the pages about Kubernetes show in YAML: Helm takes the values, frd the options of commands.
(`tests/docs` has the lines that are typed.)"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.docs import parsers
from tests.helm.chart import CHART, ROOT, Object, containers, render

PAGES = [ROOT / "docs/kubernetes.md", CHART / "README.md"]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def test_the_values_that_the_page_shows_are_taken() -> None:
    """Every block that begins with `# values.yaml` renders."""
    shown = [
        yaml.safe_load(block)
        for page in PAGES
        for block in blocks(page)
        if block.startswith("# values.yaml\n")
    ]
    keys = [key for given in shown for key in given]
    assert keys == ["agent", "prometheusRule", "ingress", "agent"]
    for values_file in shown:
        render(values_file)


def commands(thing: Any) -> Iterator[str]:
    """Every command line in a piece of YAML, as text."""
    match thing:
        case {"command": list(words)}:
            yield " ".join(words)
    if isinstance(thing, dict | list):
        for part in thing.values() if isinstance(thing, dict) else thing:
            yield from commands(part)


def pods() -> Iterator[Object]:
    for given in ({}, {"tls": {"clientCertificates": True}}, {"insecure": True}):
        for on in (True, False):
            rendered = render(given | {"agent": {"daemonset": {"enabled": on}}})
            yield from (pod for _, pod in rendered.pods())


def test_frd_takes_every_option_that_a_pod_gives_it() -> None:
    """Rendered pods, examples and pages call `frd` and `frd-agent` with options that they have, and
    pods call no program that the image has not."""
    examples = [path.read_text("utf-8") for path in (ROOT / "examples/kubernetes").glob("*.yaml")]
    texts = examples + [block for page in PAGES for block in blocks(page)]
    lines = [line for text in texts for part in yaml.safe_load_all(text) for line in commands(part)]
    of_pods = [container["command"] for pod in pods() for container in containers(pod)]
    assert {program for program, *_ in of_pods} == {"frd", "frd-agent", "sh", "python3"}
    lines += map(" ".join, of_pods)
    called = [
        found.split() for line in lines for found in re.findall(r"\bfrd(?:-agent)? \w[^&\n]*", line)
    ]
    assert {tuple(words[:2]) for words in called} == {("frd", "serve"), ("frd-agent", "run")}
    for words in called:
        parsers.frd(words)
