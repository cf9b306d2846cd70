"""Checks whether the agent that runs here has what it needs, as in the sidecar of a pod.

No job can be started where the agent runs: there is no torch. What is checked is the running agent,
with its own options: users, pid namespaces, capabilities, a stack and the cgroup of a rank, and its
way to the service. Nothing is written, and the ranks do not notice.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from frd.errors import FrdError, ServiceUnavailable
from frd_agent import exec as starter
from frd_agent import tap
from frd_agent.config import Config, load
from frd_agent.launch.checks import Check, agent_check, may_trace, recorders_check, stacks_check
from frd_agent.memory.host import cgroup
from frd_agent.proc import Vital, capabilities, content, namespace_of, read_all, status_line
from frd_agent.ranks.process import HIDDEN
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.reader import NoStack, advice, from_py_spy
from frd_agent.ranks.tap_files import SocketDir, TapFile
from frd_agent.ranks.token_files import unreadable
from frd_agent.uplink.route import Target, ending
from frd_agent.uplink.route import advice as advice_on

_STACK_S: Final = 10.0
_CONNECT_S: Final = 5.0
_MAX_COMMAND: Final = 64 * 1024


def running_agent(run_dir: Path | None) -> tuple[int, Config] | None:
    """Pid and configuration of this user's agent in this container or machine, of `run_dir` if
    there are several; None if there is none, or jobs can be started here, where torch is.

    Raises:
        ConfigError: its configuration cannot be used.
    """
    from frd_agent.cli import first_of, run

    if importlib.util.find_spec("torch") is not None:
        return None
    for pid, stat in sorted(read_all().items()):
        options = _options(pid) if stat.vital is not Vital.GONE and _is_mine(pid) else None
        if options is not None:
            given = run.make_context("frd-agent run", options, resilient_parsing=True).params
            given.pop("check")
            config = load(first_of(given.pop("configs")), given)
            if run_dir in (None, config.run_dir):
                return pid, config
    return None


def _options(pid: int) -> list[str] | None:
    """What follows ``frd-agent run`` on its command line; None if it is another program."""
    line = content(f"{pid}/cmdline", _MAX_COMMAND)
    words = line.decode("utf-8", "replace").split("\0")
    for at, word in enumerate(words[:4]):
        if os.path.basename(word) in ("frd-agent", "frd_agent") and "run" in words[at + 1 : at + 2]:
            return words[at + 2 : -1]
    return None


def _is_mine(pid: int) -> bool:
    """It has the rights and the files of this process."""
    mine, its = ((status_line(one, "Uid"), namespace_of(one, "mnt")) for one in ("self", pid))
    return mine == its


def of_agent(agent: int, config: Config) -> Iterator[Check]:
    """The checks of the agent with that pid."""
    run_dir = config.run_dir
    holder = starter.watcher(str(run_dir))
    yield agent_check(str(run_dir), holder)
    yield _run_dir(run_dir)
    files = TapFile.scan(run_dir)
    yield from (Check.failed("users", text) for text in unreadable(run_dir, files).texts)
    ranks = _ranks(run_dir, files)
    yield _ranks_of(ranks)
    yield from recorders_check(files)
    seen = [(rank, pid) for rank, process in ranks if (pid := process.readable) is not None]
    if len(seen) < len(ranks):
        yield Check.warning("pid namespace", HIDDEN)
    yield _capabilities(agent, [pid for _, pid in seen])
    for rank, pid in seen[:1]:
        yield _stack(rank, pid)
        yield _cgroup(rank, pid)
    if not ranks:
        yield stacks_check(holder)
    for _, process in ranks:
        process.close()
    yield from _service(config)


def _run_dir(run_dir: Path) -> Check:
    name = "run directory"
    try:
        owner = run_dir.stat().st_uid
    except OSError as error:
        return Check.failed(name, f"{run_dir}: {error.strerror}: no rank has published here yet")
    if not os.access(run_dir, os.R_OK | os.W_OK | os.X_OK):
        why = f"{run_dir}: belongs to uid {owner}, this is uid {os.geteuid()}"
        return Check.failed(name, f"{why}: {tap.same_user(owner)}")
    return Check.ok(name, f"{run_dir}, of uid {owner}; this is uid {os.geteuid()}")


def _ranks(run_dir: Path, files: Sequence[TapFile]) -> list[tuple[int, RankProcess]]:
    """Living ranks, by number."""
    sockets = SocketDir(run_dir)
    found = [
        (file.content.rank, RankProcess(file.content, sockets.of(file), owner=file.owner))
        for file in files
        if file.content is not None
    ]
    sockets.close()
    return sorted((one for one in found if one[1].was_alive), key=lambda one: one[0])


def _ranks_of(ranks: Sequence[tuple[int, RankProcess]]) -> Check:
    if not ranks:
        return Check.warning("ranks", "none publishes now: look again when the job has started")
    return Check.ok("ranks", f"{len(ranks)} can be read")


def _capabilities(agent: int, ranks: Sequence[int]) -> Check:
    """The kernel lets a process be read by one that has at least its capabilities."""
    name, mine = "capabilities", capabilities(agent, "CapPrm")
    more = [pid for pid in ranks if capabilities(pid, "CapPrm") & ~mine]
    if more and not may_trace(agent):
        return Check.warning(
            name,
            f"pid {more[0]} has capabilities that the agent lacks, so it cannot be read while its "
            "GIL is held: drop them in the training container, or give the agent SYS_PTRACE "
            "(agent.sidecar.capabilities of the chart)",
        )
    return Check.ok(name, f"{mine:#x}, enough for the ranks that can be seen")


def _stack(rank: int, pid: int) -> Check:
    try:
        asyncio.run(from_py_spy(pid, _STACK_S))
    except NoStack as error:
        what_to_do = advice(error) or "look at the agent's log"
        return Check.warning("stacks", f"rank {rank}: {error}: {what_to_do}")
    return Check.ok("stacks", f"that of rank {rank} can be read from outside")


def _cgroup(rank: int, pid: int) -> Check:
    found = cgroup.find(pid)
    reading = found.read() if found is not None else None
    if found is None or reading is None:
        why = "not seen, so a kill by the kernel may have no name, and its limit is not known"
        return Check.warning("cgroup", f"rank {rank}: {why}")
    limit = f"{found.limit} bytes" if found.limit else "none"
    return Check.ok(
        "cgroup", f"rank {rank}: {found.name}, {reading.used} bytes used, limit {limit}"
    )


def _service(config: Config) -> Iterator[Check]:
    try:
        asyncio.run(_connect(config))
    except (FrdError, OSError, TimeoutError) as error:
        why = str(error) or f"no connection within {_CONNECT_S:g} s"
        yield Check.failed("service, gRPC", f"{config.service}: {why}")
        return
    yield Check.ok("service, gRPC", f"{config.service} accepts connections")
    if config.metrics != "off":
        yield _welcome(config)


async def _connect(config: Config) -> None:
    """
    Raises:
        FrdError, OSError, TimeoutError: the first address of the service cannot be connected to.
    """
    endpoint = config.endpoint()
    target = Target(endpoint.addresses[0])
    async with asyncio.timeout(_CONNECT_S), endpoint.connect(target, None) as link:
        if not await link.connected():
            _, details = await ending(link.stream())
            raise ServiceUnavailable(advice_on(details))


def _welcome(config: Config) -> Check:
    """Whether the service has accepted the agent and its token, as the agent says."""
    name, url = "agent's stream", f"http://{config.metrics}/metrics"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=_CONNECT_S) as answer:
            lines = answer.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return Check.warning(name, f"{url}: {error}: is another program on the agent's port?")
    if "frd_agent_connected 1.0" in lines:
        return Check.ok(name, f"{config.service} has accepted the agent")
    return Check.failed(name, f"{config.service} has not accepted the agent: see the agent's log")
