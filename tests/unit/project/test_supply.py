"""What frd is made of: pins with hashes, installations that check them, and the list of it all."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from frd.version import __version__
from scripts.requirements import FOLDER, head, pins
from tests.docs.pages import ROOT

FILES = sorted(FOLDER.glob("*.txt"))
APART = {"proto.txt", "nccl.txt", "dftracer-2.0.3.txt", "dftracer-2.2.0.txt"}
"""Their versions differ on purpose from those of the other files."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def names(*files: str) -> set[str]:
    return {pin.partition("==")[0] for file in files for pin in pins((FOLDER / file).read_text())}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_pin_has_hashes(path: Path) -> None:
    """A file has comments, other files of the folder, and exact versions with their hashes."""
    text = path.read_text("utf-8")
    assert not re.findall(r"^(?![A-Za-z0-9#]|-r [\w-]+\.txt$|    --hash=).+", text, re.MULTILINE)
    assert all((FOLDER / line[3:]).exists() for line in head(text) if line.startswith("-r "))
    for pin, hashes in pins(text).items():
        assert re.fullmatch(r"[a-z0-9-]+==[^\s*;]+( ; .+)?", pin)
        assert hashes, pin
        assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in hashes), pin
        assert len(set(hashes)) == len(hashes)


def test_files_agree() -> None:
    """A package has one version in all files, but for those that are apart."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        if path.name not in APART:
            for pin in pins(path.read_text("utf-8")):
                name, _, version = pin.partition("==")
                found.setdefault(name, set()).add(version.removesuffix("+cpu"))
    assert [(name, versions) for name, versions in found.items() if len(versions) > 1] == []


def needed(wanted: Iterable[str]) -> set[str]:
    """What these requirements need in turn, as the installed packages state."""

    def walk(requirement: Requirement) -> Iterator[str]:
        name = canonicalize_name(requirement.name)
        if (name, extras := frozenset(requirement.extras)) in seen:
            return
        seen.add((name, extras))
        yield name
        for text in importlib.metadata.requires(name) or ():
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras or {""}):
                yield from walk(one)

    seen: set[tuple[str, frozenset[str]]] = set()
    return {name for text in wanted for name in walk(Requirement(text))}


def test_the_pins_are_what_is_needed() -> None:
    """service.txt has what the wheel needs, cluster.txt what its extra adds, and no more; dev.txt,
    which reads both, has what tests and tools need."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    service = needed(project["dependencies"])
    assert names("service.txt") == service
    assert names("cluster.txt") == needed(extras["cluster"]) - service
    built = needed([*PROJECT["build-system"]["requires"], "editables"])
    assert names("build.txt") == built | {"setuptools"}
    ours = names("service.txt", "cluster.txt", "build.txt", "dev.txt")
    assert needed(extras["dev"]) <= ours


def test_pip_checks_hashes_everywhere() -> None:
    """Each command of the Makefile, the scripts and the Dockerfile that lets pip install what a
    file names requires hashes, or is scripts/install; the others install local files. Only the
    release of torch that `make test-torch` is given is pinned by no file."""
    commands = []
    for path in (ROOT / "Makefile", ROOT / "Dockerfile", *(ROOT / "scripts").iterdir()):
        if path.suffix or path.is_dir() or path.name == "torch-release":
            continue
        text = re.sub(r"^\s*#.*\n", "", path.read_text("utf-8").replace("\\\n", " "), flags=re.M)
        found = re.findall(r"pip\b[^\n&|]* (?:install|wheel) [^\n&|]*", text)
        commands += [(path.name, command) for command in found if "uninstall" not in command]
    assert len(commands) >= 8
    for name, command in commands:
        local = command.rstrip(" )").endswith((" .", "/*.whl"))
        assert local or "--require-hashes" in command, (name, command)
        assert "--no-deps" in command, (name, command)


def wheel(folder: Path) -> Path:
    """One of a package without code."""
    path = folder / "nothing-1.0-py3-none-any.whl"
    info = "nothing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.parametrize(
    ("listed", "refusal"),
    [
        ("nothing==1.0 --hash=sha256:{digest}", ""),
        ("nothing==1.0 --hash=sha256:{other}", "DO NOT MATCH THE HASHES"),
        ("nothing==1.0", "Hashes are required"),
    ],
)
def test_another_file_is_not_installed(listed: str, refusal: str, tmp_path: Path) -> None:
    """What the index has under a pinned name and version is another file than the one that was
    hashed, or a pin has no hash: scripts/install fails, and pip installs nothing."""
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    file = tmp_path / "requirements.txt"
    file.write_text(listed.format(digest=digest, other="0" * 64))
    target = tmp_path / "target"
    options = ["--no-index", "--find-links", str(tmp_path), "--target", str(target)]
    done = subprocess.run(
        ["scripts/install", sys.executable, *options, "-r", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refusal in done.stderr) if refusal else not done.returncode, done.stdout + done.stderr
    assert (done.returncode == 0) == (not refusal) == (target / "nothing-1.0.dist-info").exists()


def listed(folder: Path, **env: str) -> tuple[str, Any]:
    """What `make sbom` writes, as text and as JSON."""
    command = [sys.executable, "-m", "scripts.sbom", str(folder)]
    kept = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, cwd=ROOT, env=kept | env, check=True, capture_output=True)
    text = (folder / f"frd-{__version__}.cdx.json").read_text("utf-8")
    return text, json.loads(text)


def test_the_list_of_components(tmp_path: Path) -> None:
    """It is valid CycloneDX, names every package of the image, every file of others in the web page
    and the base, with hashes and licences, and is the same the next time."""
    text, form = listed(tmp_path, PYTHONHASHSEED="1")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == listed(tmp_path, PYTHONHASHSEED="2")[0]
    assert "timestamp" not in text
    assert form["metadata"]["component"]["version"] == __version__
    found = {one["purl"]: one for one in form["components"]}
    packages = {one["name"] for purl, one in found.items() if purl.startswith("pkg:pypi/")}
    assert packages == names("service.txt", "cluster.txt")
    vendored = [one for purl, one in found.items() if purl.startswith("pkg:npm/")]
    files = {one["purl"].partition("#")[2] for one in vendored}
    assert files == {f"frd/web/vendor/{path.name}" for path in (ROOT / "frd/web/vendor").iterdir()}
    assert {one["name"] for one in vendored} == {"htm", "preact", "uplot"}
    (base,) = (one for one in form["components"] if one["type"] == "container")
    assert f"ARG BASE={base['name']}:{base['version']}\n" in (ROOT / "Dockerfile").read_text()
    for one in found.values():
        if one is not base:
            assert one["licenses"], one["name"]
            assert one.get("hashes") or one["externalReferences"][0]["hashes"], one["name"]
    needs = {one["ref"]: one.get("dependsOn", []) for one in form["dependencies"]}
    assert set(needs) == {*found, f"pkg:pypi/frd-daemon@{__version__}"}
    assert any(one.startswith("pkg:pypi/h11@") for one in needs[first(needs, "pkg:pypi/uvicorn@")])
    _, dated = listed(tmp_path, SOURCE_DATE_EPOCH="1700000000")
    assert dated["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")


def first(found: Iterable[str], prefix: str) -> str:
    return next(one for one in found if one.startswith(prefix))
