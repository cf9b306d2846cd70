"""Whether a program would take a command line: by its own parser, or by a list of what it takes."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click

from frd.cli import cli
from frd.config import keys
from frd_agent.cli import cli as agent_cli
from frd_agent.config import Config as AgentConfig
from tests.docs.pages import ROOT

FRD: Final = {"frd": cli, "frd-agent": agent_cli}
_HELM_OPTIONS: Final = {"--namespace", "--create-namespace", "--set", "--reuse-values", "--values"}
_OF_RANKS: Final = {"FRD_RUN_DIR", "FRD_JOB", "FRD_ATTEMPT", "FRD_ALLOW_PTRACE"}
"""Variables that only taps, agents and commands read."""


def frd(words: Sequence[str]) -> None:
    """The option parser of the command; what is after `--` is a command line itself."""
    name, *rest = words
    found: click.Command = FRD[os.path.basename(name)]
    while isinstance(found, click.Group) and rest:
        below = found.get_command(click.Context(found), rest[0])
        if below is None:
            break
        found, rest = below, rest[1:]
    assert found is not FRD[os.path.basename(name)] or set(rest) <= {"--help"}, words
    own = rest[: rest.index("--")] if "--" in rest else rest
    shown = {flag for parameter in found.params for flag in parameter.opts} | {"--help"}
    if isinstance(found, click.Group):  # the id of a finding is in the place of a command
        shown |= {o for one in found.commands.values() for param in one.params for o in param.opts}
    given = {word.partition("=")[0] for word in own if word.startswith("-")}
    assert given <= shown, words
    for before, word in pairwise(own):
        for parameter in found.params:
            if before in parameter.opts and isinstance(parameter.type, click.Choice):
                parameter.type.convert(word, parameter, None)
    if "--" in rest:
        inner = rest[rest.index("--") + 1 :]
        if inner:
            parse(inner)


def helm(words: Sequence[str]) -> None:
    """Helm's own code renders the chart with the values."""
    from tests.helm.chart import render

    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert given <= _HELM_OPTIONS, words
    match list(words):
        case ["helm", "install" | "upgrade", _, chart, *_]:
            assert (ROOT / chart / "Chart.yaml").exists()
            render(helm_values(words))
        case ["helm", "test", *_]:
            assert render().one("Pod")["metadata"]["annotations"]["helm.sh/hook"] == "test"
        case _:
            raise AssertionError(words)


def helm_values(words: Sequence[str]) -> dict[str, Any]:
    """What `--set` gives, as Helm reads it."""
    from tests.helm.chart import helm as library

    given = [after for word, after in pairwise(words) if word == "--set"]
    parsed: dict[str, Any] = library.parse_set_string(",".join(given)) if given else {}
    return parsed


def slurm(words: Sequence[str]) -> None:
    """Options by the manual of Slurm 22.05, as recorded; what a step starts by its own parser."""
    program, *rest = words
    while rest and rest[0].startswith("-"):
        option, has_value, _ = rest[0].partition("=")
        assert option in slurm_options()[program], words
        rest = rest[1:] if has_value or rest[0].startswith("--") else rest[2:]
    if program == "sbatch" and rest:
        sbatch_script(ROOT / rest[0])
    elif rest:
        parse(rest)


def sbatch_script(path: Path) -> None:
    """Its `#SBATCH` lines, and the options of Slurm's programs and of frd in it."""
    text = path.read_text("utf-8").replace("\\\n", " ")
    for line in re.findall(r"^#SBATCH (.*)$", text, re.MULTILINE):
        slurm(["sbatch", *line.split()])
    called = r"\b(srun|scancel|frd-agent run|frd-agent exec)\b((?: +--[\w-]+(?:=[^\s\"]+)?)+)"
    for program, options in re.findall(called, text):
        parse([*program.split(), *options.split()])


@cache
def slurm_options() -> Mapping[str, set[str]]:
    recorded = (Path(__file__).with_name("slurm_options.txt")).read_text("ascii").splitlines()
    return {line.split()[0]: set(line.split()[1:]) for line in recorded if line[0] != "#"}


def make(words: Sequence[str]) -> None:
    """Its targets and variables."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"\$\(([A-Z]+)\)", makefile))
    _, target, *settings = words
    assert target in targets, words
    assert {setting.partition("=")[0] for setting in settings} <= variables, words


def pip(words: Sequence[str]) -> None:
    """The source folder with its extras, packages that frd names, or what a file pins; frd is not
    published."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(one for extra in extras.values() for one in extra)]
    known = {re.split(r"[^\w-]", one)[0] for one in named}
    _, verb, *wanted = words
    assert verb == "install", words
    for one in wanted:
        if found := re.fullmatch(r"\.(?:\[([\w,]+)\])?", one):
            assert not found[1] or set(found[1].split(",")) <= set(extras), words
        elif one.startswith("requirements/"):
            assert (ROOT / one).exists(), words
        else:
            assert one in known | {"--upgrade", "--require-hashes", "--no-deps", "-r"}, words


def export(words: Sequence[str]) -> None:
    """Variables of frd have a reader."""
    of_agent = {f"FRD_AGENT_{name.upper()}" for name in AgentConfig.model_fields}
    of_service = {f"FRD_{key.replace('.', '__').upper()}" for key in keys()}
    for word in words[1:]:
        name = word.partition("=")[0]
        assert not name.startswith("FRD_") or name in of_agent | of_service | _OF_RANKS, words


PARSERS: Final[Mapping[str, Callable[[Sequence[str]], None]]] = {
    "frd": frd,
    "frd-agent": frd,
    "helm": helm,
    "make": make,
    "pip": pip,
    "export": export,
    **dict.fromkeys(("sbatch", "srun", "scancel", "squeue", "sacct", "scontrol", "sinfo"), slurm),
}
"""By the name of the program."""


def parse(words: Sequence[str]) -> bool:
    """False if there is no parser for the program.

    Raises:
        AssertionError, click.ClickException: the program would refuse the line.
    """
    if words[0] == "env":
        words = [word for word in words[1:] if not re.match(r"\w+=", word)]
    takes = PARSERS.get(os.path.basename(words[0]))
    if takes is None:
        return False
    takes([os.path.basename(words[0]), *words[1:]])
    return True
