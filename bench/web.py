"""What the web page costs: a browser with a job of 16,384 ranks, and the service with 50 viewers.

A real `frd serve` gets the job through real gRPC: 256 agents of 64 ranks in 40 groups each send
their watermarks every two seconds. At any time some of them wait for one of their ranks, so that
the map of the job differs at each publication. All measurements are of one run: the service without
viewers, with 50 (raw HTTP clients in another process, which ask for what the page asks for), and
without again; then a real Chromium that loads the page of the job and follows it. The service's
event loop is measured inside it: the longest callbacks, by what they serve.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import math
import os
import re
import resource
import signal
import statistics
import sys
import tempfile
import time
from asyncio.events import Handle
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.ingest import JOB, SIGNATURE, _cpu_s, _rss_bytes, group, line, started, stream
from bench.report import show
from frd.model import (
    AttemptKey,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    WatermarkColumns,
)
from frd.wire.codec import encode_agent
from frd.wire.messages import (
    PROTOCOL,
    AttemptDecl,
    Declare,
    GroupDecl,
    Hello,
    RankDecl,
    SignatureDecl,
    Statuses,
    Watermarks,
)
from tests.world.daemons import get

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Response

EACH: Final = 64
"""Ranks of an agent."""
GROUPS: Final = 40
"""Of each rank: two of the world, three of its node, and slices across nodes."""
SLICES: Final = (2, 4, 8, 16, 32, 64, 256)
"""Nodes of a slice."""
EVERY_S: Final = 2.0
STALL_AFTER_S: Final = 10.0
CYCLE_S: Final = 60.0
HELD_S: Final = 8.0
"""Once in a cycle, each node waits so long for its sixth rank: long enough to be seen in the map,
too short to be a stall."""
LATE: Final = 5
VIEWERS: Final = 50
ARRIVAL_S: Final = 15.0
"""After so long, viewers that came together have all that a page loads first."""
LOADS: Final = 5
PAGE: Final = f"/jobs/{JOB}"
_SAMPLE_S: Final = 0.01
_SHORT_S: Final = 0.0005
"""Callbacks that take less are not looked at."""
_SHOW_CALLBACKS: Final = "FRD_BENCH_CALLBACKS"
"""A variable of the environment: print the longest callbacks of each kind."""
_MAP: Final = re.compile(rb'"map":"([^"]*)"')
_OF_VIEWERS: Final = ("run_asgi", "_Feed", "Transport", "_Connection")
"""In the names of callbacks that serve HTTP; gRPC, for agents, does not use asyncio's sockets."""


# -- the job ---------------------------------------------------------------------------------------


class Node:
    """An agent with `EACH` ranks."""

    def __init__(self, number: int, nodes: int) -> None:
        self.number = number
        self._world = nodes * EACH
        first = number * EACH
        here = range(first, first + EACH)
        self._groups = [
            group("0", "default_pg", range(self._world)),
            group("1", "WORLD_COPY", range(self._world)),
            *(group(f"node-{i}-{number}", f"NODE_{i}", here) for i in range(3)),
        ]
        shared = list(range(len(self._groups)))
        members = []
        for slot in range(EACH):
            own = len(self._groups)
            for index in range(GROUPS - len(shared)):
                size = min(SLICES[index % len(SLICES)], nodes)
                block = number // size * size
                ranks = range(block * EACH + slot, min(block + size, nodes) * EACH, EACH)
                self._groups.append(group(f"{index}-{block}-{slot}", f"SLICE_{index}", ranks))
            members.append([*shared, *range(own, len(self._groups))])
        self._group = np.array(members, np.uint32).reshape(-1)
        self._rank = np.repeat(np.arange(EACH, dtype=np.uint32), GROUPS)
        self._held = self._group == 2
        self._lags = self._held & (self._rank == LATE)
        self._held_at: tuple[int, int] | None = None
        """Seq and time."""

    def introduction(self) -> list[bytes]:
        now, name = NodeNs(time.time_ns()), str(self.number)
        infos = [
            RankInfo(self.number * EACH + i, self._world, f"n{name}", f"b{name}", 1000 + i, i)
            for i in range(EACH)
        ]
        declare = Declare(
            attempts=(AttemptDecl(0, AttemptKey(JOB, 0), self._world),),
            ranks=tuple(RankDecl(i, 0, info) for i, info in enumerate(infos)),
            groups=tuple(GroupDecl(i, 0, one) for i, one in enumerate(self._groups)),
            signatures=(SignatureDecl(0, SIGNATURE),),
        )
        live = tuple(RankStatus(i, RankState.LIVE, now) for i in range(EACH))
        hello = Hello(PROTOCOL, "bench", f"n{name}", f"b{name}", f"s{name}", now, NodeRawNs(now))
        return [encode_agent(event) for event in (hello, declare, Statuses(live))]

    def watermarks(self, seq: int, nodes: int) -> bytes:
        """All ranks have completed `seq` in all their groups and are in the next one; but see
        `HELD_S`."""
        now = time.time_ns()
        enqueued = np.full(len(self._group), seq + 1, np.int64)
        completed = np.full(len(self._group), seq, np.int64)
        head = np.full(len(self._group), now - 1_000_000, np.int64)
        if (now / 1e9 + self.number * CYCLE_S / nodes) % CYCLE_S < HELD_S:
            at, since = self._held_at = self._held_at or (seq, now)
            enqueued[self._held], completed[self._held], head[self._held] = at + 1, at, since
            enqueued[self._lags], head[self._lags] = at, 0
        else:
            self._held_at = None
        columns = WatermarkColumns(
            rank=self._rank,
            group=self._group,
            enqueued=enqueued,
            started=np.full(len(self._group), -1, np.int64),
            completed=completed,
            head_created_ns=head,
            seen_rank=np.arange(EACH, dtype=np.uint32),
            as_of_ns=np.full(EACH, now, np.int64),
        )
        return encode_agent(Watermarks(0, columns, NodeNs(now), NodeRawNs(now)))


async def feed(address: str, nodes: int) -> None:
    """All agents until killed; prints a line when all have introduced themselves."""
    connected = 0

    async def agent(node: Node) -> None:
        nonlocal connected
        async with stream(address) as call:
            for message in node.introduction():
                await call.write(message)
            connected += 1
            if connected == nodes:
                print("connected", flush=True)
            await asyncio.sleep(node.number * EVERY_S / nodes)
            seq, due = 0, time.monotonic()
            while True:
                await call.write(node.watermarks(seq, nodes))
                seq, due = seq + 1, due + EVERY_S
                await asyncio.sleep(max(due - time.monotonic(), 0))

    await asyncio.gather(*(agent(Node(number, nodes)) for number in range(nodes)))


# -- the service -----------------------------------------------------------------------------------


@dataclass
class Loop:
    """What the event loop of the service does, since the last report."""

    longest: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By kind of callback: wall clock and processor time, in seconds."""
    lags: list[float] = field(default_factory=list)
    """How late it woke, in seconds, a hundred times a second."""
    _collects: tuple[float, float] = (0.0, 0.0)

    def note(self, name: str, took: float, used: float) -> None:
        if took > self.longest.get(name, (0.0, 0.0))[0]:
            self.longest[name] = took, used

    def collects(self, phase: str, info: Mapping[str, int]) -> None:
        """The garbage collector works in whichever callback it is due."""
        if phase == "start":
            self._collects = time.perf_counter(), time.thread_time()
        else:
            began, used = self._collects
            took = time.perf_counter() - began
            self.note(f"garbage {info['generation']}", took, time.thread_time() - used)

    def watch(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.lags.append(max(loop.time() - due, 0.0))
        again = loop.time() + _SAMPLE_S
        loop.call_at(again, self.watch, loop, again)

    def report(self, path: Path) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps([self.longest, self.lags]))
        fresh.rename(path)
        self.longest.clear()
        self.lags.clear()


def serve(report: Path, arguments: list[str]) -> None:
    """`frd serve` that measures its event loop and writes to `report` at SIGUSR1."""
    seen = Loop()
    run: Callable[[Handle], None] = Handle._run
    is_watched = False

    def measured(handle: Handle) -> None:
        nonlocal is_watched
        if not is_watched:
            is_watched, loop = True, asyncio.get_running_loop()
            seen.watch(loop, loop.time())
        began, used = time.perf_counter(), time.thread_time()
        run(handle)
        took = time.perf_counter() - began
        if took > _SHORT_S:
            seen.note(_name(handle), took, time.thread_time() - used)

    vars_of: Any = Handle
    vars_of._run = measured
    gc.callbacks.append(seen.collects)
    signal.signal(signal.SIGUSR1, lambda *_: seen.report(report))
    from frd.cli import run as frd  # noqa: PLC0415  # after the patch, and in this process only

    sys.exit(frd(["serve", *arguments]))


def _name(handle: Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]  # private
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return f"{type(owner).__name__}.{getattr(callback, '__name__', callback)}"


@dataclass
class Served:
    pid: int
    grpc: str
    http: str
    report: Path

    def loop(self) -> dict[str, float]:
        """Of the event loop since the last time, in ms: how late it woke, and the longest callback
        that serves viewers, by the wall clock and in processor time."""
        self.report.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        while not self.report.exists():
            time.sleep(0.05)
        longest, lags = json.loads(self.report.read_text())
        if _SHOW_CALLBACKS in os.environ:
            print(json.dumps(longest), file=sys.stderr)
        of_viewers = [
            times for name, times in longest.items() if any(part in name for part in _OF_VIEWERS)
        ]
        wall, used = ([1000 * times[i] for times in of_viewers] for i in (0, 1))
        ordered = sorted(lags) or [0.0]
        return {
            "lag_p50_ms": 1000 * ordered[len(ordered) // 2],
            "lag_p99_ms": 1000 * ordered[math.ceil(len(ordered) * 0.99) - 1],
            "lag_max_ms": 1000 * ordered[-1],
            "callback_wall_ms": max(wall, default=0.0),
            "callback_cpu_ms": max(used, default=0.0),
        }


@contextlib.contextmanager
def service() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", f"{folder}/data")
        stall = ("--stall-after", str(STALL_AFTER_S))
        report = Path(folder) / "callbacks.json"
        # These agents answer no pings, so that their clocks stay unknown.
        os.environ["FRD_POLICY__CLOCK_UNSYNCHRONIZED_AFTER_S"] = "1e6"
        with started(__file__, "--serve", str(report), *flags, *stall) as process:
            ready = json.loads(line(process))
            yield Served(process.pid, ready["grpc"], ready["http"], report)


# -- viewers ---------------------------------------------------------------------------------------


@dataclass
class Viewer:
    """Asks for what the page of the job asks for, over two connections."""

    host: str
    port: int
    received: int = 0
    maps: int = 0
    updates: int = 0
    _etag: str = ""
    _reader: asyncio.StreamReader = field(init=False)
    _writer: asyncio.StreamWriter = field(init=False)

    async def view(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self.host, self.port)
        for path in (PAGE, "/api/v1/session", "/api/v1/jobs", "/api/v1/health"):
            await self._get(path)
        await self._get(f"/api/v1/jobs/{JOB}?view=summary")
        await self._follow()

    async def _get(self, path: str, **headers: str) -> dict[str, str]:
        """Returns the answer's headers."""
        said = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self._writer.write(self._head(path, f"accept-encoding: gzip\r\n{said}"))
        answer = await self._answer(self._reader)
        body = await self._reader.readexactly(int(answer.get("content-length", "0")))
        self.received += len(body)
        return answer

    def _head(self, path: str, headers: str = "") -> bytes:
        return f"GET {path} HTTP/1.1\r\nhost: {self.host}\r\n{headers}\r\n".encode()

    async def _answer(self, reader: asyncio.StreamReader) -> dict[str, str]:
        head = await reader.readuntil(b"\r\n\r\n")
        self.received += len(head)
        lines = head.decode("latin-1").split("\r\n")[1:-2]
        return {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        writer.write(self._head(f"/api/v1/events?job={JOB}", "accept: text/event-stream\r\n"))
        await self._answer(reader)
        waiting = b""
        while True:
            size = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(size, 16) + 2)
            self.received += len(size) + len(chunk)
            *events, waiting = (waiting + chunk[:-2]).split(b"\n\n")
            for event in events:
                await self._take(event)

    async def _take(self, event: bytes) -> None:
        if event.startswith(b"event: hello\n"):
            await self._get("/api/v1/findings?state=open&limit=1000")
        elif event.startswith(b"event: job\n") and (found := _MAP.search(event)):
            self.updates += 1
            if f'W/"{found[1].decode()}"' != self._etag:
                has = {"if_none_match": self._etag} if self._etag else {}
                answer = await self._get(f"/api/v1/jobs/{JOB}?view=map", **has)
                self._etag, self.maps = answer.get("etag", self._etag), self.maps + 1


async def view(address: str, viewers: int, seconds: float) -> dict[str, float]:
    host, _, port = address.rpartition(":")
    all_of_them = [Viewer(host, int(port)) for _ in range(viewers)]
    tasks = [asyncio.create_task(viewer.view()) for viewer in all_of_them]
    await asyncio.sleep(ARRIVAL_S)
    print("viewing", flush=True)
    began, before = time.monotonic(), _totals(all_of_them)
    await asyncio.sleep(seconds)
    minutes = (time.monotonic() - began) / 60
    after = _totals(all_of_them)
    assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    names = ("bytes_a_minute", "maps_a_minute", "updates_a_minute")
    return {
        name: round((now - then) / viewers / minutes, 1)
        for name, now, then in zip(names, after, before, strict=True)
    }


def _totals(viewers: list[Viewer]) -> tuple[int, int, int]:
    """Bytes, maps and summaries that all of them have received."""
    return (
        sum(viewer.received for viewer in viewers),
        sum(viewer.maps for viewer in viewers),
        sum(viewer.updates for viewer in viewers),
    )


def cost(served: Served, seconds: float) -> dict[str, float]:
    """Of the service during `seconds`."""
    served.loop()
    began, used = time.monotonic(), _cpu_s(served.pid)
    time.sleep(seconds)
    share = (_cpu_s(served.pid) - used) / (time.monotonic() - began)
    return {"cpu_share": share, **served.loop()}


def with_viewers(served: Served, viewers: int, seconds: float) -> dict[str, Any]:
    """Compared with the service without viewers before and afterwards."""
    before = cost(served, seconds / 2)
    command = ("--view", served.http, "--viewers", str(viewers), "--seconds", str(seconds + 2))
    with started(__file__, *command) as process:
        line(process)
        arrival = served.loop()
        during = cost(served, seconds)
        seen = json.loads(line(process))
    after = cost(served, seconds / 2)
    without = {name: (before[name] + after[name]) / 2 for name in before}
    return {
        "viewers": viewers,
        "cpu_share_of_viewers": round(during["cpu_share"] - without["cpu_share"], 3),
        "lag_max_ms_when_all_come": round(arrival["lag_max_ms"]),
        "without_viewers": _rounded(without),
        "with_viewers": _rounded(during),
        **seen,
    }


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}


# -- a browser -------------------------------------------------------------------------------------

_NOTE_DRAWING: Final = """
new MutationObserver(() => {
  const canvas = document.querySelector(".heat canvas[data-draw-ms]");
  if (canvas && !window.drawn) window.drawn = performance.now();
}).observe(document, {
  subtree: true, childList: true, attributes: true, attributeFilter: ["data-draw-ms"],
});
"""
_TIMES: Final = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
  drawn: window.drawn, draw: Number(document.querySelector(".heat canvas").dataset.drawMs)
})"""
_AROUND_US: Final = (-300_000, 700_000)
"""What happens so long before and after the page asks for a map counts as the update."""
_TRACED: Final = ["toplevel", "disabled-by-default-devtools.timeline", "devtools.timeline"]


def first_paint(browser: Browser, address: str) -> dict[str, float]:
    """Milliseconds from the navigation, with an empty cache: medians and the longest."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(LOADS):
        context = browser.new_context()
        page = context.new_page()
        page.add_init_script(_NOTE_DRAWING)
        page.goto(f"http://{address}{PAGE}")
        page.wait_for_function("() => window.drawn")
        for name, value in page.evaluate(_TIMES).items():
            found[name].append(value)
        context.close()
    return {
        "first_contentful_paint_ms": round(statistics.median(found["paint"])),
        "map_drawn_ms": round(statistics.median(found["drawn"])),
        "map_drawn_longest_ms": round(max(found["drawn"])),
        "canvas_ms": round(statistics.median(found["draw"]), 1),
    }


def updates(browser: Browser, address: str, seconds: float) -> dict[str, float]:
    """The work of the page's main thread, in processor time: around each new map with its summary,
    and in all; its longest task also by the wall clock; and what the page receives."""
    context = browser.new_context()
    page = context.new_page()
    received, maps = _counted(page)
    page.goto(f"http://{address}{PAGE}")
    page.wait_for_selector(".heat canvas[data-draw-ms]")
    page.wait_for_timeout(3_000)  # what is loaded first
    received[0] = maps[0] = 0
    browser.start_tracing(page=page, categories=_TRACED)
    page.wait_for_timeout(1000 * seconds)
    got, drawn = received[0], maps[0]
    trace = json.loads(browser.stop_tracing())
    context.close()
    tasks = _tasks(trace)
    used = [task["tdur"] / 1000 for task in tasks]
    around = [
        sum(
            ms
            for ms, task in zip(used, tasks, strict=True)
            if _AROUND_US[0] <= task["ts"] - at < _AROUND_US[1]
        )
        for at in _maps_asked_us(trace)
    ]
    return {
        "updates": drawn,
        "update_ms": round(statistics.median(around), 1),
        "update_longest_ms": round(max(around), 1),
        "main_thread_share": round(sum(used) / 1000 / seconds, 3),
        "longest_task_ms": round(max(used), 1),
        "longest_task_wall_ms": round(max(task["dur"] for task in tasks) / 1000, 1),
        "bytes_a_minute_in_chromium": round(got * 60 / seconds),
    }


def _counted(page: Page) -> tuple[list[int], list[int]]:
    """Bytes that the page receives, compressed as they are, and answers with a map."""
    received, maps = [0], [0]
    streams: set[str] = set()
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")

    def begins(event: dict[str, Any]) -> None:
        if event["type"] == "EventSource":
            streams.add(event["requestId"])

    def data(event: dict[str, Any]) -> None:
        if event["requestId"] in streams:
            received[0] += event["dataLength"]

    def ends(event: dict[str, Any]) -> None:
        received[0] += int(event["encodedDataLength"])

    def answered(answer: Response) -> None:
        maps[0] += "view=map" in answer.url

    session.on("Network.responseReceived", begins)
    session.on("Network.dataReceived", data)
    session.on("Network.loadingFinished", ends)
    page.on("response", answered)
    return received, maps


def _maps_asked_us(trace: dict[str, Any]) -> list[int]:
    """When the page asked for a map: between the summary that names it and its drawing."""
    return [
        event["ts"]
        for event in trace["traceEvents"]
        if event["name"] == "ResourceSendRequest" and "view=map" in event["args"]["data"]["url"]
    ]


def _tasks(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The tasks of the page's main thread: that of the busiest renderer."""
    events = trace["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        thread = event["pid"], event["tid"]
        if thread in mains and event["name"] == "RunTask" and "tdur" in event:
            tasks[thread].append(event)
    return max(tasks.values(), key=lambda them: sum(task["tdur"] for task in them))


# -- processes -------------------------------------------------------------------------------------


def wait_for_job(served: Served, ranks: int) -> None:
    """Until all ranks are known, and the map has begun to change."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            found = get(served.http, f"/api/v1/jobs/{JOB}?view=summary")
            if found["ranks"] == {"live": ranks} and found["waits"]:
                return
        time.sleep(1.0)
    raise SystemExit("web: the job is not complete: see the service's log")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from tests.e2e.web.browser import ABSENT, CHROMIUM, chromium  # noqa: PLC0415  # in one only

    if CHROMIUM is None:
        return {"skipped": f"{ABSENT}: install Debian's package"}
    nodes = options.ranks // EACH
    with ExitStack() as stack:
        served = stack.enter_context(service())
        feeding = ("--feed", served.grpc, "--nodes", str(nodes))
        line(stack.enter_context(started(__file__, *feeding)))
        wait_for_job(served, nodes * EACH)
        time.sleep(10.0)
        result: dict[str, Any] = {"ranks": nodes * EACH, "groups_a_rank": GROUPS}
        result["service"] = with_viewers(served, options.viewers, options.seconds)
        result["rss_bytes"] = _rss_bytes(served.pid)
        with chromium() as browser:
            result["browser"] = {
                **first_paint(browser, served.http),
                **updates(browser, served.http, options.seconds),
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--feed", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--view", metavar="ADDRESS", help=argparse.SUPPRESS)
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.feed:
        asyncio.run(feed(options.feed, options.nodes))
    elif options.view:
        print(json.dumps(asyncio.run(view(options.view, options.viewers, options.seconds))))
    else:
        show(measure(options), as_json=options.json)


if __name__ == "__main__":
    main()
