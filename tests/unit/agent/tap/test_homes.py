"""Which directories a rank of one user publishes in: others can change nothing there."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from frd_agent import tap, untrusted_files
from frd_agent.config import load
from frd_agent.launch import commands
from frd_agent.launch.run_lock import Holder, RunLock
from frd_agent.proc import own_start_ticks
from tests.world.run_dir import forked, volume

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of two users")

CLONE_NEWUSER, PR_SET_DUMPABLE = 0x10000000, 4
RANK, OTHER, NOBODY = 61_001, 61_002, 65_534
SAFE, OPEN = "", "other users may change what is in it"
NOT_MINE = f"belongs to uid {OTHER}, not to uid {RANK}"


class Part(NamedTuple):
    """Of a path: a directory, a mount, or a link."""

    owner: int = RANK
    mode: int = 0o700
    is_mount: bool = False
    link: str = ""


STICKY = Part(0, 0o1777)
EMPTY_DIR = Part(0, 0o777, is_mount=True)
WITH_GROUP = Part(0, 0o2777, is_mount=True)
MINE = Part()

CASES: dict[str, tuple[list[Part], str]] = {
    "own": ([MINE], SAFE),
    "readable": ([Part(mode=0o755)], SAFE),
    "of another user": ([Part(OTHER)], NOT_MINE),
    "of another user, who lets it write": ([Part(OTHER, 0o777)], NOT_MINE),
    "of another user, sticky": ([Part(OTHER, 0o1777)], NOT_MINE),
    "of root": ([Part(0, 0o755)], f"belongs to uid 0, not to uid {RANK}"),
    "own, for all": ([Part(mode=0o777)], OPEN),
    "own, for a group": ([Part(mode=0o770)], OPEN),
    "own, sticky": ([Part(mode=0o1777)], OPEN),
    "of root, for all users": ([STICKY], SAFE),
    "of an unknown user, for all users": ([Part(NOBODY, 0o1777)], OPEN),
    "of an unknown user, in /tmp": ([STICKY, Part(NOBODY, 0o1777)], OPEN),
    "volume in a user namespace": ([Part(NOBODY, 0o777, is_mount=True)], SAFE),
    "of root, for all, not sticky": ([Part(0, 0o777)], OPEN),
    "volume of a pod": ([EMPTY_DIR], SAFE),
    "volume of a pod with fsGroup": ([WITH_GROUP], SAFE),
    "volume of another user": ([Part(OTHER, 0o777, is_mount=True)], NOT_MINE),
    "own, in a sticky directory": ([STICKY, MINE], SAFE),
    "of another user in a sticky directory": ([STICKY, Part(OTHER)], NOT_MINE),
    "own, in a volume": ([EMPTY_DIR, MINE], SAFE),
    "own, in a volume with fsGroup": ([WITH_GROUP, Part(mode=0o2700)], SAFE),
    "own, in a host's directory": ([Part(0, 0o755), STICKY, MINE], SAFE),
    "own, in /tmp of a user namespace": ([Part(NOBODY, 0o1777), MINE], SAFE),
    "own, where all may rename it": ([Part(0, 0o777), MINE], OPEN),
    "own, where a group may rename it": ([Part(0, 0o775), MINE], OPEN),
    "own, where one user may rename it": ([Part(OTHER, 0o755), MINE], NOT_MINE),
    "own, far below one of another user": ([Part(OTHER, 0o755), Part(0), MINE], NOT_MINE),
    "link": ([STICKY, Part(link="real")], f"is a symbolic link of uid {RANK}"),
    "link of another user": ([STICKY, Part(OTHER, link="real")], "is a symbolic link"),
    "below a link of root": ([Part(0, link="real"), MINE], SAFE),
    "below an own link": ([Part(link="real"), MINE], SAFE),
    "below a link of another user": ([STICKY, Part(OTHER, link="real"), MINE], "symbolic link"),
    "below a link into an open directory": ([Part(0, link="open"), MINE], OPEN),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def made(root: Path, parts: list[Part], stack: ExitStack) -> Path:
    """The path of directories with these owners. The links lead to `real` and `open` in `root`."""
    for name, mode in (("real", 0o755), ("open", 0o777)):
        (root / name).mkdir()
        (root / name).chmod(mode)
    path = root
    for number, part in enumerate(parts):
        path /= f"part{number}"
        if part.link:
            path.symlink_to(root / part.link)
        elif part.is_mount:
            stack.enter_context(volume(path, part.mode))
        else:
            path.mkdir()
            path.chmod(part.mode)
        os.chown(path, part.owner, part.owner, follow_symlinks=False)
        if not part.link:
            path.chmod(part.mode)  # the kernel drops bits when the owner changes
    return path


@pytest.mark.parametrize("name", CASES)
def test_who_could_change_what_is_in_it(name: str, tmp_path: Path, stack: ExitStack) -> None:
    """Of the directory, of its parents, and of links on the way."""
    parts, why = CASES[name]
    path = made(tmp_path, parts, stack)
    if why == SAFE:
        tap.check_home(str(path), RANK)
    else:
        with pytest.raises(PermissionError, match=why) as caught:
            tap.check_home(str(path), RANK)
        assert caught.value.errno is None, "it says itself what is wrong"
        assert "--run-dir" in str(caught.value)


@pytest.mark.parametrize(
    "name", [name for name, (parts, why) in CASES.items() if why and not parts[-1].link]
)
def test_nothing_is_made_in_one_that_is_not_safe(
    name: str, tmp_path: Path, stack: ExitStack
) -> None:
    """The run directory would be in it: it is refused before anything is made."""
    path = made(tmp_path, CASES[name][0][:-1] or CASES[name][0], stack)
    try:
        tap.check_home(str(path / "new"), RANK)
    except FileNotFoundError:
        return  # what is wrong is the directory itself, and no parent
    except PermissionError:
        with pytest.raises(PermissionError):
            tap.check_home(str(path / "new"), RANK, make=True)
    assert not (path / "new").exists()


def test_what_is_made_is_private(tmp_path: Path) -> None:
    """The last part has mode 0700; made twice, it stays; what is no directory is refused."""
    path = tmp_path / "a" / "b"
    tap.make_run_dir(str(path))
    tap.make_run_dir(str(path))
    assert [one.stat().st_mode & 0o777 for one in (path.parent, path)] == [0o755, 0o700]
    (path / "file").touch()
    with pytest.raises(PermissionError, match="not a directory"):
        tap.make_run_dir(str(path / "file"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(PermissionError, match="not a directory"):
        tap.make_run_dir(str(tmp_path / "loop" / "x"))


def test_relative_links(tmp_path: Path) -> None:
    """As /var/run is one to /run: each part of what it leads to is checked."""
    tap.make_run_dir(str(tmp_path / "real" / "run"))
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "link").symlink_to("../../real/./")
    tap.check_home(str(tmp_path / "deep" / "er" / "link" / "run"), 0)
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(PermissionError, match=OPEN):
        tap.check_home(str(tmp_path / "deep" / "er" / "link" / "run"), 0)


def in_user_namespace(do: Callable[[], Any]) -> Any:
    """The JSON value that `do` gives in a forked process of the user, who is root in a user
    namespace. None if none can be made."""

    def enter() -> Any:
        os.setresgid(RANK, RANK, RANK)
        os.setresuid(RANK, RANK, RANK)
        library = ctypes.CDLL(None)
        library.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        if library.unshare(CLONE_NEWUSER):
            return None
        Path("/proc/self/uid_map").write_text(f"0 {RANK} 1")
        return do()

    return forked(enter)


def test_a_rootless_user_namespace() -> None:
    """/tmp belongs to a user that the namespace does not know, and is sticky."""

    def publish() -> list[Any]:
        run_dir = f"/tmp/frd-test-{os.getpid()}"
        tap.make_run_dir(run_dir)
        tap.write_whole(run_dir, "0" * 12, ".json", "{}")
        names = os.listdir(run_dir)
        os.unlink(f"{run_dir}/{names[0]}")
        os.rmdir(run_dir)
        return [os.stat("/tmp").st_uid, os.getuid(), names]

    found = in_user_namespace(publish)
    if found is None:
        pytest.skip("no user namespace can be made")
    assert found == [NOBODY, 0, [f"{'0' * 12}.json"]]


def test_a_directory_of_another_user_in_a_user_namespace() -> None:
    """Another user has made the run directory for all: in the namespace its owner looks like that
    of /tmp. Neither a tap nor an agent uses it, also if it takes the place of the rank's own."""
    run_dir = Path(f"/tmp/frd-test-{os.getpid()}")
    run_dir.mkdir()
    run_dir.chmod(0o1777)
    os.chown(run_dir, OTHER, OTHER)
    run_dir.chmod(0o1777)

    def attempts() -> list[str]:
        uses: list[Callable[[], Any]] = [
            lambda: tap.make_run_dir(str(run_dir)),
            lambda: untrusted_files.check_home(run_dir),
            lambda: tap.write_whole(str(run_dir), "0" * 12, ".json", "{}"),
        ]
        said = []
        for use in uses:
            try:
                use()
            except PermissionError as error:
                said.append(str(error).split(": ")[1])
        return said

    try:
        found = in_user_namespace(attempts)
        if found is None:
            pytest.skip("no user namespace can be made")
        assert found == [OPEN] * 3
        assert os.listdir(run_dir) == []
    finally:
        shutil.rmtree(run_dir)


def test_the_name_of_a_mount(tmp_path: Path, stack: ExitStack) -> None:
    """The kernel writes spaces and backslashes of it as numbers."""
    for name in ("a b", "a\\b", "a\tb\n"):
        stack.enter_context(volume(tmp_path / name, 0o777))
        tap.check_home(str(tmp_path / name), RANK)


def test_a_directory_that_another_user_has_put_in_its_place(tmp_path: Path) -> None:
    """The job's directory was removed while a rank lives: the rank writes nothing there, neither
    into a pipe nor into a file that waits for it."""
    run_dir = tmp_path / "run"
    tap.make_run_dir(str(run_dir))
    files = tap.Files(str(run_dir), "0" * 12)
    files.write_identity("{}")
    files.write_counters(1, 1, [])
    writes: list[Any] = [lambda: files.write_identity("{}"), lambda: files.write_counters(1, 1, [])]
    (run_dir / f".{'0' * 12}.tmp").symlink_to("/etc/hosts")
    files.write_identity("{}")
    for name in os.listdir(run_dir):
        (run_dir / name).unlink()
    os.mkfifo(run_dir / f"{'0' * 12}.shm")
    with pytest.raises(OSError, match="No such device"):
        writes[1]()
    os.chown(run_dir, OTHER, OTHER)
    for write in writes:
        with pytest.raises(PermissionError, match=f"belongs to uid {OTHER}"):
            write()
    assert os.listdir(run_dir) == [f"{'0' * 12}.shm"]


def test_exec_says_why_and_runs_the_command(tmp_path: Path) -> None:
    """The directory is another user's, or its parent is open, or the folder of the dumps is a link:
    one line on stderr, the command runs, and nothing is written there."""
    run_dir = tmp_path / "open" / "run"
    command = [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(run_dir), "--"]
    show = [sys.executable, "-c", "import os; print('TORCH_FR_DUMP_TEMP_FILE' in os.environ)"]

    def said() -> tuple[str, list[str]]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("FRD_")}
        done = subprocess.run(
            [*command, *show], capture_output=True, text=True, env=env, check=True
        )
        lines = [line for line in done.stderr.splitlines() if "no agent watches" not in line]
        return done.stdout.strip(), lines

    run_dir.mkdir(parents=True)
    os.chown(run_dir, OTHER, OTHER)
    printed, (line,) = said()
    assert printed == "False"
    assert f"{run_dir}: belongs to uid {OTHER}, not to uid 0" in line
    assert line.endswith("the command runs without being watched")
    os.chown(run_dir, 0, 0)
    run_dir.parent.chmod(0o777)
    assert OPEN in said()[1][0]
    assert os.listdir(run_dir) == []
    run_dir.parent.chmod(0o755)
    (run_dir / "dumps").symlink_to(tmp_path)
    printed, (line,) = said()
    assert printed == "False"
    assert line.endswith("runs without dump files of torch")
    assert "is a symbolic link" in line
    (run_dir / "dumps").unlink()
    assert said() == ("True", [])


@pytest.mark.parametrize("part", ["folder", "parent"])
def test_an_agent_of_root_changes_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The user of a run directory replaces it, or its parent, by a link right after the agent's
    check: no file of root is removed, made or emptied."""
    folder = tmp_path / "home" / "run" / "commands"
    victim = tmp_path / "victim" / "run" / "commands"
    for one in (folder, victim):
        one.mkdir(parents=True)
    for name in ("123456789.json", "agent.lock"):
        (victim / name).write_text("{}")
    for one in (tmp_path / "home", folder.parent, folder):
        os.chown(one, OTHER, OTHER)
        one.chmod(0o755)
    of_tap = tap.check_home

    def swapped(path: str, uid: int, **how: Any) -> None:
        of_tap(path, uid, **how)
        at, to = (folder, victim) if part == "folder" else (tmp_path / "home", tmp_path / "victim")
        at.rename(tmp_path / "aside")
        at.symlink_to(to)

    def back() -> None:
        at = folder if part == "folder" else tmp_path / "home"
        at.unlink()
        (tmp_path / "aside").rename(at)

    monkeypatch.setattr(tap, "check_home", swapped)
    assert commands.running(str(folder.parent)) == []
    back()
    assert not RunLock(folder, Holder(pid=1)).keep(0.0)
    assert {one.name: one.read_text() for one in victim.iterdir()} == {
        "123456789.json": "{}",
        "agent.lock": "{}",
    }


def test_the_agent_opens_the_path_that_it_checks(tmp_path: Path) -> None:
    """The check knows a path without ``..``, and the kernel would follow the link first."""
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    given = f"{tmp_path}/link/../run"
    assert load(None, {"run_dir": given}).run_dir == tmp_path / "run"


def test_a_lock_with_two_names(tmp_path: Path) -> None:
    """It may be another file of its owner: it is not emptied."""
    (tmp_path / "precious").write_text("x")
    (tmp_path / "agent.lock").hardlink_to(tmp_path / "precious")
    assert not RunLock(tmp_path, Holder(pid=1)).keep(0.0)
    assert (tmp_path / "precious").read_text() == "x"


def test_an_agent_of_root_follows_no_link(tmp_path: Path) -> None:
    """Where a user could have put a link, root neither removes files nor reads directories."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "123456789.json").write_text("{}")
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    (run_dir / "commands").symlink_to(victim)
    os.chown(run_dir, OTHER, OTHER)
    os.chown(run_dir / "commands", OTHER, OTHER, follow_symlinks=False)
    untrusted_files.check_home(run_dir)  # of the user that it watches
    assert commands.running(str(run_dir)) == []
    assert (victim / "123456789.json").exists()
    (run_dir / "commands").unlink()
    folder = run_dir / "commands"
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER, OTHER)
    start = own_start_ticks()
    (folder / f"{os.getpid()}.json").write_text(json.dumps({"start_ticks": start, "words": "x"}))
    assert commands.running(str(run_dir)) == [], "root's process, named by another user"
    os.chown(folder, 0, 0)
    os.chown(run_dir, 0, 0)
    (found,) = commands.running(str(run_dir))
    assert found.pid == os.getpid()
