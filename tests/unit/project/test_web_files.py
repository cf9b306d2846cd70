"""The files of the web page: small, readable, licensed, and free of what its policy forbids."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WEB = ROOT / "frd/web"
OWN = sorted(path for path in WEB.rglob("*.js") if "vendor" not in path.parts)
MOST_BYTES = 350_000
MOST_LINES = 300


def test_the_page_is_small() -> None:
    """All that a browser may load is below 350 kB, uncompressed."""
    assert sum(path.stat().st_size for path in WEB.rglob("*") if path.is_file()) < MOST_BYTES


def test_every_vendored_file_is_the_one_of_the_notice() -> None:
    """NOTICE has the digest of each file of others, and names none that is absent."""
    notice = (WEB / "NOTICE").read_text()
    stated = dict(re.findall(r"^(vendor/\S+)\n(?:  .*\n)*?  sha256: +(\w{64})$", notice, re.M))
    found = {
        path.relative_to(WEB).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (WEB / "vendor").iterdir()
    }
    assert stated == found
    assert "Apache License" in notice
    assert "Permission is hereby granted, free of charge" in notice


def test_the_wheel_has_the_notice() -> None:
    """The licences travel with what they permit."""
    assert '"frd/web/NOTICE"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(WEB).as_posix())
def test_a_module_is_readable_and_harmless(path: Path) -> None:
    """It says what it does, fits a morning, keeps nothing in the browser, and makes no markup or
    code of text."""
    text = path.read_text()
    assert text.startswith("/**\n * ")
    assert len(text.splitlines()) <= MOST_LINES
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    forbidden += r"|localStorage|sessionStorage|document\.cookie|https?://"
    assert re.findall(forbidden, text) == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(WEB).as_posix())
def test_imports_lead_to_files(path: Path) -> None:
    """Relative paths only: the policy admits no import map, and no other host."""
    for target in re.findall(r'(?:from|import)\s+"([^"]+)"', path.read_text()):
        assert target.startswith(("./", "../")), target
        assert (path.parent / target).resolve().is_file(), target


def test_the_page_loads_all_modules_early() -> None:
    """index.html names each module, so that a browser asks for all of them together."""
    named = set(re.findall(r'(?:href|src)="/web/([^"]+\.js)"', (WEB / "index.html").read_text()))
    modules = {path.relative_to(WEB).as_posix() for path in OWN}
    assert named == modules | {"vendor/standalone.module.js", "vendor/uPlot.iife.min.js"}


def test_the_page_has_nothing_inline() -> None:
    """No script, style or handler in the markup, and nothing of another host."""
    page = (WEB / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\son\w+=|https?://", page) == []
    assert "<noscript>" in page
