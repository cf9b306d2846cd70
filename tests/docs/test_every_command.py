"""Every command that the pages show is typed by a test, or taken by its program's parser, or in a
list with the reason why it is not."""

from __future__ import annotations

import re
from typing import Final

import pytest

import frd
from tests.docs import parsers
from tests.docs.pages import (
    OTHERS,
    PAGES,
    ROOT,
    Block,
    blocks,
    commands,
    in_sentences,
    shown,
    taken,
)

CHART: Final = "helm/frd/README.md"
NO_CLUSTER: Final = "there is no cluster: "
NOT_RUN: Final = {
    r"docker (build|push) ": "no container engine in make test: make test-pods builds the image",
    r"kubectl (--namespace \w+ )?(apply|create|exec|port-forward) ": NO_CLUSTER
    + "schemas take the objects, and frd the commands in pods",
    r"kubectl --namespace frd get secret ": NO_CLUSTER + "the chart renders the keys that are read",
    r"base64 ": "it decodes what kubectl prints",
}
"""Commands without a parser, by their first words."""


def is_typed(block: Block, line: str) -> bool:
    return any(
        page == block.page and words in {"block": block.text, "line": line}[what]
        for what, page, words in taken()
    )


def listed(words: list[str]) -> list[str]:
    return [pattern for pattern in NOT_RUN if re.match(pattern, " ".join(words) + " ")]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_parsed_or_has_a_reason(page: str) -> None:
    """Any other command would become wrong unnoticed."""
    for block in blocks(page):
        for line in block.lines():
            for words in commands(line):
                if not (parsers.parse(words) or is_typed(block, line)):
                    assert len(listed(words)) == 1, f"{page}: {line}: no test types it"


def test_no_reason_is_left_over() -> None:
    """Each entry of the list is about some command that no test types."""
    lines = [(block, line) for page in PAGES for block in blocks(page) for line in block.lines()]
    left = [words for one in lines if not is_typed(*one) for words in commands(one[1])]
    assert {pattern for words in left for pattern in listed(words)} == set(NOT_RUN)


def test_what_a_test_types_exists_once() -> None:
    """The words by which a test takes a block or a line are in one of that page."""
    for (what, page, words), path in taken().items():
        texts = [block.text for block in blocks(page)]
        if what == "line":
            texts = [line for block in blocks(page) for line in block.lines()]
        assert len([text for text in texts if words in text]) == 1, f"{path.name}: {page}: {words}"


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_the_shell_changes_no_word(page: str) -> None:
    """No placeholder that is a redirection, no brace that a shell expands, no package that is not
    published; and bash can read each block."""
    for block in blocks(page):
        for line in [] if block.is_script else block.lines():
            bare = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line)
            assert not re.search(r"<\w|[{}]", bare), f"{page}: {line}"
    whole = (ROOT / page).read_text("utf-8")
    assert not re.search(r"pip install '?frd", whole)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_every_command_is_valid(page: str) -> None:
    """Of the programs that have a parser: in blocks, and between backticks in sentences."""
    for words in [*shown(page), *(w for t in in_sentences(page) for w in commands(t))]:
        parsers.parse(words)


# -- Kubernetes --------------------------------------------------------------------------------


def test_kubectl_runs_commands_that_frd_has() -> None:
    """In a pod, and in namespaces that exist."""
    ran = 0
    for page in (*PAGES, CHART):
        for words in shown(page):
            if words[0] == "kubectl" and "exec" in words:
                assert words[1:3] in (["--namespace", "frd"], ["--namespace", "training"])
                assert parsers.parse(words[words.index("--") + 1 :])
                ran += 1
    assert ran == 3


def test_the_image_that_is_pushed_is_the_one_that_runs() -> None:
    """On each page that builds one, the chart's pods and the job have its name."""
    from tests.helm.chart import render

    pages = [page for page in PAGES if "docker build" in (ROOT / page).read_text("utf-8")]
    for page in pages:
        found = shown(page)
        (built,) = (w[w.index("--tag") + 1] for w in found if w[:2] == ["docker", "build"])
        (pushed,) = (w[2] for w in found if w[:2] == ["docker", "push"])
        (install,) = (w for w in found if w[:2] == ["helm", "install"])
        given = parsers.helm_values(install)
        assert built == pushed == render(given).pod()["containers"][0]["image"]
        assert built.endswith(f":{frd.__version__}")
        made = {w[3] for w in found if w[:3] == ["kubectl", "create", "namespace"]}
        assert made == set(given["agent"]["namespaces"])
    assert len(pages) == 2


def test_the_secrets_that_are_read_by_hand_exist() -> None:
    """The keys that `kubectl get secret` reads are in the chart's Secrets."""
    from tests.helm.chart import render

    asked = 0
    for words in (words for page in PAGES for words in shown(page)):
        if words[0] == "kubectl" and words[3:5] == ["get", "secret"]:
            (path,) = (word for word in words if word.startswith("jsonpath="))
            key = path.removeprefix("jsonpath={.data.").removesuffix("}").replace("\\", "")
            assert key in render().one("Secret", words[5])["data"]
            asked += 1
    assert asked == 3
