"""screenshots [FOLDER]: pictures of the web page for the documentation, by default to docs/images.

A real service and a real agent watch jobs of the demo, with real ranks where torch is installed:
one rank is stuck in its data loader, the memory of another one rises, a third comes late to each
step, and two jobs are over. Then come the first screens of five incidents, each in a service that
watches nothing else. Every page is taken at two widths, in light and dark, with few colours so that
the files are small. Run as `python -m scripts.screenshots` in the root of the repository.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cli.commands.demo.stage import Stage
from frd.engine.memory.walk.series import LARGE
from tests.e2e.web.browser import ABSENT, CHROMIUM, chromium

FOLDER: Final = Path(__file__).parents[1] / "docs/images"
WIDTHS: Final = (1280, 390)
SCHEMES: Final = ("light", "dark")
COLOURS: Final = 256
KEPT: Final = 192
HEIGHTS: Final = {1280: 800, 390: 844}
WITHIN_S: Final = 120.0
STALL_AFTER_S: Final = 3.0
OVER: Final = (("slow", "eval-suite"), ("killed", "tokenizer"))
"""Scenarios of jobs that are over, and their names."""
NOW: Final = (("straggler", "vision-ft"), ("memory", "rl-rollout"), ("missing_rank", "llm-7b"))
RISES_BYTES: Final = 270 << 20
"""More than a rank takes when it starts, less than the rise of the scenario `memory`."""
KINDS: Final = {"straggler", "memory_spike", "stall"}
ELSEWHERE: Final = """(here) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    texts.currentNode.data = texts.currentNode.data.replaceAll(here, "/srv/train");
}"""
"""Replaces the folder of this repository on a page."""
INCIDENTS: Final = ("starved", "killed", "wrong_order", "memory", "healthy")
"""Scenarios: a stuck loader, SIGKILL, crossed groups, a leak, and Ctrl-C of a healthy job."""


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"screenshots: {what}: not within {WITHIN_S:.0f} s")
        time.sleep(0.25)
    return value


class Scene:
    """The jobs, and what the service says of them."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        policy = {key: value for name, _ in NOW for key, value in SCENARIOS[name].policy.items()}
        stage.scenario = replace(stage.scenario, machine_bytes=round(RISES_BYTES / LARGE))
        service = stage.start_service(
            environment={f"FRD_POLICY__{key.upper()}": str(value) for key, value in policy.items()}
        )
        stage.start_agent(service)
        self.address = service.http
        self.client = Client(service.http)

    def findings(self, state: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]]
        found = self.client.get("/api/v1/findings", {"state": state})["findings"]
        return found

    def start(self, scenario: str, job: str) -> None:
        """Its ranks are real ones where nothing but torch shows the same."""
        stage, has_torch = self._stage, not self._stage.scripted
        stage.scenario, stage.job = SCENARIOS[scenario], job
        stage.scripted = not has_torch or scenario != "missing_rank"
        stage._arguments = stage.scenario.arguments(stage.world)
        stage.ranks = []
        stage.start_job()
        stage.scripted = not has_torch

    def past(self) -> None:
        """Each is found, and ends."""
        for scenario, job in OVER:
            self.start(scenario, job)
            until(lambda: self.findings("open"), f"{scenario}: a finding")
            time.sleep(3.0)  # its stack and what it waits for
            for rank in self._stage.ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGTERM)
            until(lambda: not self.findings("open"), f"{scenario}: its end")

    def present(self) -> Mapping[str, str]:
        """Ids of the open findings by kind."""
        for scenario, job in NOW:
            self.start(scenario, job)

        def found() -> Mapping[str, str]:
            all_of_them = self.findings("open")
            stalls = [one for one in all_of_them if one["kind"] == "stall"]
            is_explained = any(
                one["suspects"] and "waits_for" in one["suspects"][0] for one in stalls
            )
            ids = {one["kind"]: one["id"] for one in all_of_them}
            return ids if ids.keys() >= KINDS and is_explained else {}

        ids: Mapping[str, str] = until(found, "all findings")
        time.sleep(6.0)  # rates, curves and the map
        return ids


def take(browser: Browser, address: str, ids: Mapping[str, str], folder: Path) -> None:
    pages = {
        "overview": "/",
        "finding": f"/findings/{ids['stall']}",
        "memory": f"/findings/{ids['memory_spike']}",
        "straggler": f"/findings/{ids['straggler']}",
        "job": "/jobs/llm-7b",
        "history": "/history",
    }
    shoot(browser, address, pages, folder, full_page=True)


def incident(browser: Browser, scenario: str, folder: Path) -> None:
    """The first screens of the overview, and of the finding if there is one."""
    with Stage(SCENARIOS[scenario], 3, STALL_AFTER_S) as stage:
        service = stage.start_service()
        stage.start_agent(service)
        stage.start_job()
        client, pages = Client(service.http), {f"{scenario}-overview": "/"}
        until(lambda: any(one["agents"] for one in client.get("/api/v1/jobs")["jobs"]), "a job")
        time.sleep(5.0)  # it trains
        stage.inject()
        if scenario == "healthy":
            for rank in stage.ranks:
                os.killpg(rank.pid, signal.SIGINT)
            until(lambda: client.get("/api/v1/jobs")["jobs"][0]["ended"], "its end")
        else:
            opened = until(lambda: client.get("/api/v1/findings")["findings"], f"{scenario}: one")
            pages[f"{scenario}-finding"] = f"/findings/{opened[0]['id']}"
        time.sleep(4.0)  # stacks, and the rate of collectives
        shoot(browser, service.http, pages, folder, full_page=False)


def shoot(
    browser: Browser, address: str, pages: Mapping[str, str], folder: Path, *, full_page: bool
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for scheme in SCHEMES:
            context = browser.new_context(
                viewport={"width": width, "height": HEIGHTS[width]}, color_scheme=scheme
            )
            page = context.new_page()
            for name, path in pages.items():
                page.goto(f"http://{address}{path}")
                settle(page)
                path_of = folder / f"web-{name}-{width}-{scheme}.png"
                page.evaluate(ELSEWHERE, str(Path(__file__).parents[1]))
                path_of.write_bytes(small(page.screenshot(full_page=full_page)))
            context.close()


def settle(page: Page) -> None:
    """The page is connected, and nothing of it loads any more."""
    page.get_by_role("banner").get_by_text("live", exact=True).wait_for()
    page.wait_for_function("() => !document.querySelector('.loading')")
    page.wait_for_timeout(700)  # canvases are drawn in the next frames


def small(png: bytes) -> bytes:
    """The same with 256 colours: the most frequent ones as they are, because areas have these, and
    some that cover the rest, because the state of the connection is a few pixels."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    pixels = np.asarray(image).reshape(-1, 3)
    colours, place, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    common = np.argsort(-counts, kind="stable")
    palette, rest = colours[common[:KEPT]], colours[common[KEPT:]]
    if len(rest):
        few = Image.fromarray(rest[np.newaxis]).quantize(
            COLOURS - KEPT, method=Image.Quantize.MAXCOVERAGE
        )
        others = np.unique(np.asarray(few.convert("RGB")).reshape(-1, 3), axis=0)
        palette = np.concatenate([palette, others])
    # Pillow's own search for the nearest colour of a palette is not exact.
    away = ((colours[:, np.newaxis].astype(int) - palette.astype(int)) ** 2).sum(axis=2)
    nearest = away.argmin(axis=1).astype(np.uint8)
    small_one = Image.fromarray(nearest[place].reshape(image.height, image.width), "P")
    small_one.putpalette(palette.reshape(-1).tolist())
    out = io.BytesIO()
    small_one.save(out, "PNG", optimize=True)
    return out.getvalue()


def main() -> None:
    if CHROMIUM is None:
        raise SystemExit(f"screenshots: {ABSENT}: install Debian's package")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with (
        Stage(SCENARIOS["missing_rank"], 4, STALL_AFTER_S) as stage,
        chromium("--force-color-profile=srgb") as browser,  # its memory rises before the jobs begin
    ):
        scene = Scene(stage)
        browser.new_page().goto(f"http://{scene.address}/")
        scene.past()
        ids = scene.present()
        take(browser, scene.address, ids, folder)
    with chromium("--force-color-profile=srgb") as browser:
        for scenario in INCIDENTS:
            incident(browser, scenario, folder)
    total = sum(path.stat().st_size for path in folder.glob("web-*.png"))
    print(f"screenshots: {folder}: {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
