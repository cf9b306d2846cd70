"""The commands of the pages about Kubernetes work: Helm takes the values, frd the options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import frd
from frd.cli import cli
from frd_agent.cli import cli as agent_cli
from tests.helm.chart import CHART, ROOT, Object, containers, helm, render

PAGES = [ROOT / "docs/kubernetes.md", CHART / "README.md"]
PROGRAMS = {"frd": cli, "frd-agent": agent_cli}
KUBECTL = {"exec", "get", "port-forward"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def typed() -> Iterator[list[str]]:
    for page in PAGES:
        for block in blocks(page, "console"):
            yield from (shlex.split(line) for line in block.splitlines())


def values(words: list[str]) -> dict[str, Any]:
    """The values of the `--set` options of a line, parsed by Helm."""
    given = [after for word, after in pairwise(words) if word == "--set"]
    parsed: dict[str, Any] = helm.parse_set_string(",".join(given)) if given else {}
    return parsed


def options(program: str, sub: str) -> set[str]:
    group = PROGRAMS[program]
    command = group.get_command(click.Context(group), sub)
    assert command is not None, f"{program} {sub}"
    return {flag for parameter in command.params for flag in parameter.opts}


def assert_frd_takes(words: list[str]) -> None:
    program, sub, *rest = words
    given = {word.partition("=")[0] for word in rest if word.startswith("-")}
    assert given <= options(program, sub), words


def test_every_command_line_is_valid() -> None:
    """Helm renders the chart with the values of the line; kubectl runs commands that frd has."""
    seen = set()
    for words in typed():
        match words:
            case ["helm", "install" | "upgrade", "frd", "helm/frd", *_]:
                render(values(words))
            case ["docker", "build" | "push" as verb, *rest]:
                tag = frd.__version__
                assert rest[verb == "build" :][0] == f"registry.example/team/frd:{tag}"
            case ["helm", "test", "frd", *_]:
                assert render().one("Pod")["metadata"]["annotations"]["helm.sh/hook"] == "test"
            case ["kubectl", "--namespace", "frd" | "training", verb, *rest]:
                assert verb in KUBECTL
                if "--" in rest:
                    assert_frd_takes(rest[rest.index("--") + 1 :])
            case _:
                pytest.fail(f"{words}: no check for this line")
        seen.add(words[0])
    assert seen == {"docker", "helm", "kubectl"}


def test_the_values_that_the_page_shows_are_taken() -> None:
    """Every block that begins with `# values.yaml` renders."""
    shown = [
        yaml.safe_load(block)
        for page in PAGES
        for block in blocks(page, "yaml")
        if block.startswith("# values.yaml\n")
    ]
    keys = [key for given in shown for key in given]
    assert keys == ["agent", "prometheusRule", "ingress", "agent"]
    for values_file in shown:
        render(values_file)


def test_the_secrets_that_are_read_by_hand_exist() -> None:
    """The keys that `kubectl get secret` reads are in the chart's Secrets."""
    asked = 0
    for words in typed():
        if words[0] == "kubectl" and words[3:5] == ["get", "secret"]:
            (path,) = (word for word in words if word.startswith("jsonpath="))
            key = path.removeprefix("jsonpath={.data.").removesuffix("}").replace("\\", "")
            assert key in render().one("Secret", words[5])["data"]
            asked += 1
    assert asked == 3


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
    """Rendered pods, examples and pages call `frd` and `frd-agent` with options that they have."""
    examples = [path.read_text("utf-8") for path in (ROOT / "examples/kubernetes").glob("*.yaml")]
    texts = examples + [block for page in PAGES for block in blocks(page, "yaml")]
    lines = [line for text in texts for part in yaml.safe_load_all(text) for line in commands(part)]
    lines += [" ".join(c["command"]) for pod in pods() for c in containers(pod)]
    called = [
        found.split() for line in lines for found in re.findall(r"\bfrd(?:-agent)? \w[^&\n]*", line)
    ]
    assert {tuple(words[:2]) for words in called} == {("frd", "serve"), ("frd-agent", "run")}
    for words in called:
        assert_frd_takes(words)
