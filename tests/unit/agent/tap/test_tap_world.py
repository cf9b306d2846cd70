"""What the tap reads from torch, on stand-ins of the few attributes that it touches."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frd_agent import tap
from tests.world.run_dir import TOKEN


class Group:
    """A ProcessGroup, as far as the tap looks."""

    def __init__(self, rank: int, size: int, desc: str, devices: tuple[str, ...]) -> None:
        self.rank, self.size, self.group_desc = lambda: rank, lambda: size, desc
        self._device_types = [SimpleNamespace(type=device) for device in devices]


class World:
    """torch's `_world`."""

    def __init__(self) -> None:
        self.default_pg: Group | None = None
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.pg_map: dict[Any, tuple[str, Any]] = {}
        self.store = SimpleNamespace()

    def add(
        self,
        name: str,
        desc: str,
        ranks: list[int],
        config: str = "cpu:gloo",
        devices: tuple[str, ...] = ("cpu",),
        *,
        store: Any = None,
        at: int = 1,
    ) -> Group:
        """`at`: the rank of this process in the group."""
        group = Group(at, len(ranks), desc, devices)
        prefix = SimpleNamespace(underlying_store=store or self.store)
        self.pg_map[group] = config, SimpleNamespace(underlying_store=prefix)
        self.pg_names[group] = name
        self.pg_backend_config[group] = config
        self.pg_group_ranks[group] = {rank: i for i, rank in enumerate(ranks)}
        return group

    def init(self, **more: Any) -> None:
        self.default_pg = self.add("0", "default_pg", [0, 1, 2, 3], **more)

    def destroy(self) -> None:
        self.default_pg = None
        self.pg_names.clear()
        self.pg_group_ranks.clear()
        self.pg_backend_config.clear()
        self.pg_map.clear()


@pytest.fixture
def world() -> World:
    world = World()
    world.init()
    return world


def membership(world: World) -> tap.Membership:
    return tap.Membership(SimpleNamespace(_world=world))


def test_groups_are_written_as_they_are(world: World) -> None:
    """Name, description, sorted global ranks and backend of every group."""
    world.add("5", "tail", [3, 1])
    known = membership(world)
    assert (known.rank, known.world_size, known.backends) == (1, 4, ["gloo"])
    assert json.loads(known.text()) == [
        {"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3], "backend": "gloo"},
        {"name": "5", "desc": "tail", "ranks": [1, 3], "backend": "gloo"},
    ]


@pytest.mark.parametrize(
    ("ranks", "at", "own_store", "listed"),
    [
        ([0, 1, 2], 1, True, [0, 1, 2]),
        ([1, 0], 0, True, [0, 1]),
        ([0, 1, 2], 1, False, []),
        ([0, 1, 2], 2, True, []),
        ([0, 2], 1, True, []),
        ([0, 1, 2, 3, 4], 1, True, []),
    ],
    ids=["own", "reordered", "store", "shifted", "without-this-rank", "beyond-the-world"],
)
def test_members_of_other_jobs_are_not_taken_for_ranks(
    world: World, ranks: list[int], at: int, own_store: bool, listed: list[int]
) -> None:
    """A group that this process shares with another job, at a store that is not its job's or by the
    store of this job: its numbers are not global ranks, so its members are unknown."""
    store = None if own_store else SimpleNamespace()
    world.add("weights", "", ranks, store=store, at=at)
    assert json.loads(membership(world).text())[1]["ranks"] == listed


def test_changes_are_noticed_once(world: World) -> None:
    """A new group is one change, a destroyed one another; in between there is none."""
    known = membership(world)
    assert not known.changed()
    group = world.add("1", "both", [0, 1])
    assert known.changed()
    assert not known.changed()
    del world.pg_names[group], world.pg_group_ranks[group]
    assert known.changed()
    assert len(json.loads(known.text())) == 1


def test_a_group_half_destroyed_is_left_out(world: World) -> None:
    """torch forgets the name before the ranks; caught in between, the group is no more."""
    known = membership(world)
    group = world.add("1", "both", [0, 1])
    del world.pg_names[group]
    assert known.changed()
    assert [g["name"] for g in json.loads(known.text())] == ["0"]


def test_reinitialization_is_another_generation(world: World) -> None:
    """Destroyed and created again with the same members, even between two looks."""
    known = membership(world)
    world.destroy()
    assert known.changed()
    assert (known.text(), known.generation) == ("[]", 0)
    world.init()
    assert known.changed()
    assert known.generation == 1
    world.destroy()
    world.init()
    assert known.changed()
    assert known.generation == 2


def test_no_process_group_is_kept_alive(world: World) -> None:
    """What torch has destroyed is gone, whatever the tap remembers."""
    known = membership(world)
    group = world.add("1", "both", [0, 1])
    known.changed()
    del world.pg_names[group], world.pg_group_ranks[group], world.pg_backend_config[group]
    del world.pg_map[group]
    assert sys.getrefcount(group) == 2


@pytest.mark.parametrize(
    ("config", "devices", "backends"),
    [
        ("cpu:gloo,cuda:nccl", ("cpu", "cuda"), ["gloo", "nccl"]),
        ("cpu:gloo,cuda:gloo", ("cpu", "cuda"), ["gloo"]),
        ("cpu:gloo,cuda:nccl", ("cpu",), ["gloo"]),
        ("cpu:gloo,cuda:nccl", (), ["gloo", "nccl"]),
        ("nccl", ("cuda",), ["nccl"]),
        ("", (), []),
    ],
)
def test_backends_in_use(config: str, devices: tuple[str, ...], backends: list[str]) -> None:
    """Of what is configured for every device, what is registered."""
    world = World()
    world.init(config=config, devices=devices)
    assert membership(world).backends == backends


def test_an_inherited_group_makes_no_rank(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child has its parent's groups; only its own default group makes it a rank."""
    c10d = SimpleNamespace(_world=world)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    monkeypatch.setattr(tap, "WAIT_LONG_S", 0.001)
    assert world.default_pg is not None
    inherited = world.pg_group_ranks[world.default_pg]
    stage = tap.Stage({}, is_forked=True)
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    assert tap._await_groups(stop, inherited, stage) is None
    timer.join()
    stop.clear()
    world.destroy()
    world.init()
    assert tap._await_groups(stop, inherited, stage) is c10d


def test_counters_of_both_recorders() -> None:
    """Strings become numbers; a recorder that this torch has not is passed over."""
    status = {
        "3": {
            "last_enqueued_collective": "12",
            "last_started_collective": "-1",
            "last_completed_collective": "11",
        }
    }

    def dump(includeCollectives: bool) -> bytes:
        assert not includeCollectives
        return json.dumps({"version": "2.10", "pg_status": status}).encode()

    ext = SimpleNamespace(_dump_fr_trace_json=dump)
    assert tap.Counters(ext).read() == [(tap.GENERIC, 3, 12, -1, 11)]
    both = SimpleNamespace(_dump_fr_trace_json=dump, _dump_nccl_trace_json=dump)
    assert [row[0] for row in tap.Counters(both).read()] == [tap.GENERIC, tap.NCCL]
    assert tap.Counters(None).read() == []


UUID = "01234567-89ab-cdef-0123-456789abcdef"


class Cuda:
    """torch.cuda of a rank that sees two devices and uses the second."""

    def __init__(self) -> None:
        self.initialized = False
        self.asked: list[int] = []
        self.observers: list[Callable[[int, int, int, int], None]] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 2

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert self.initialized, "asking would initialize CUDA"
        self.asked.append(device)
        return {
            "allocated_bytes": {"all": {"current": 10 * device, "peak": 30 * device}},
            "reserved_bytes": {"all": {"current": 20 * device, "peak": 40 * device}},
            "num_ooms": device,
        }

    def get_device_properties(self, device: int) -> Any:
        return SimpleNamespace(uuid=UUID, total_memory=1000)

    def attach(self, observer: Callable[[int, int, int, int], None]) -> None:
        assert self.initialized, "torch would initialize CUDA"
        self.observers.append(observer)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", fake)
    ext = SimpleNamespace(_cuda_attach_out_of_memory_observer=fake.attach)
    monkeypatch.setitem(sys.modules, "torch._C", ext)
    return fake


def test_allocator_is_asked_only_where_cuda_is_in_use(cuda: Cuda) -> None:
    """Nothing before the program initializes CUDA; afterwards the devices that the rank uses."""
    allocator = tap.Allocator()
    assert allocator.read() is None
    assert (allocator.devices(), allocator.errors(), cuda.observers) == ([], [], [])
    cuda.initialized = True
    row = (bytes.fromhex(UUID.replace("-", "")), 1000, 10, 20, 30, 1)
    assert allocator.read() == [row]
    assert allocator.devices() == [f"GPU-{UUID}"]
    cuda.asked.clear()
    assert allocator.read() == [row]
    assert cuda.asked == [1]


def test_an_allocator_without_counters_is_left_alone(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pluggable allocator raises; it is asked once and then left alone."""
    cuda.initialized = True
    monkeypatch.setattr(cuda, "memory_stats_as_nested_dict", lambda device: {})
    allocator = tap.Allocator()
    assert allocator.read() is None
    monkeypatch.delattr(cuda, "memory_stats_as_nested_dict")
    assert allocator.read() is None


def test_out_of_memory_errors_are_seen_as_they_happen(cuda: Cuda) -> None:
    """torch calls the observer with the size of the request; the last sixteen errors are kept."""
    cuda.initialized = True
    allocator = tap.Allocator()
    allocator.read()
    allocator.read()
    (observer,) = cuda.observers
    before = time.time_ns()
    for requested in range(20):
        observer(1, requested, 1000, 7)
    observer(0, 99, 1000, 0)
    errors = allocator.errors()
    assert [error[0] for error in errors] == list(range(6, 22))
    number, at_ns, uuid, requested, free = errors[0]
    assert (number, uuid.hex(), requested, free) == (6, UUID.replace("-", ""), 5, 7)
    assert before <= at_ns <= time.time_ns()
    assert errors[-1][2:] == (bytes(16), 99, 0), "a device that this rank has never used"


def test_an_observer_that_cannot_be_attached_changes_nothing(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replaced allocator refuses observers, an old torch has none: the counters come anyway."""
    cuda.initialized = True

    def refuse(observer: object) -> None:
        raise RuntimeError("does not yet support observers")

    for ext in (SimpleNamespace(_cuda_attach_out_of_memory_observer=refuse), SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "torch._C", ext)
        assert tap.Allocator().read() is not None


def test_nothing_raises_into_a_failing_allocation(cuda: Cuda) -> None:
    """Whatever torch passes to the observer, the program sees its own error and no other."""
    cuda.initialized = True
    allocator = tap.Allocator()
    allocator.record_error(*([object()] * 4))  # type: ignore[arg-type]
    allocator._failed = None  # type: ignore[assignment]
    allocator.record_error(0, 1, 2, 3)


class Recorder:
    """torch's binding, as far as the tap calls it, for one group."""

    def __init__(self) -> None:
        self.enqueued = 0
        self.dumps = 0

    def _dump_fr_trace_json(self, *, includeCollectives: bool) -> bytes:
        self.dumps += includeCollectives
        counts = {"last_enqueued_collective": str(self.enqueued), "last_completed_collective": "0"}
        entries = [{"record_id": 0}] if includeCollectives else []
        return json.dumps({"pg_status": {"0": counts}, "entries": entries}).encode()


def test_a_rank_without_server_publishes_its_recorder_at_rest(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near a limit there is no worker server: once the counters rest for some seconds, the entries
    are in a file, once; after they have moved and rest again, they are written again."""
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    monkeypatch.setattr(tap, "shortage", lambda *_, **__: "RLIMIT_NPROC: 9 of 10 in use")
    rank = tap.Tap(SimpleNamespace(_world=world), {"FRD_RUN_DIR": str(tmp_path)}, TOKEN)
    rank.serve()
    rank.publish_identity()
    identity = json.loads((tmp_path / f"{TOKEN}.json").read_text())
    assert (identity["socket"], identity["dumps"]) == (None, f"{TOKEN}.dumps")
    assert identity["socket_error"].endswith("not started: RLIMIT_NPROC: 9 of 10 in use")

    now = [100.0]
    clocks = {name: getattr(time, name) for name in ("time_ns", "monotonic_ns")}
    monkeypatch.setattr(tap, "time", SimpleNamespace(monotonic=lambda: now[0], **clocks))

    def seconds(count: int) -> int:
        """Pass; how many dumps they bring."""
        before = recorder.dumps
        for _ in range(count):
            rank.publish_counters()
            rank.publish_dumps()
            now[0] += 1
        return recorder.dumps - before

    recorder.enqueued = 5
    assert seconds(3) == 0
    assert seconds(20) == 1
    published = json.loads((tmp_path / f"{TOKEN}.dumps").read_text())
    assert published["recorders"]["fr_trace_json"]["entries"] == [{"record_id": 0}]
    assert abs(published["at_ns"] - time.time_ns()) < 60e9
    for recorder.enqueued in range(6, 30):
        assert seconds(1) == 0, "it trains"
    with monkeypatch.context() as patch:
        patch.setattr(tap, "short_of_bytes", lambda: "RLIMIT_AS: 9 of 10 in use")
        assert seconds(20) == 0
    with monkeypatch.context() as patch:
        patch.setattr(rank._files, "write_dumps", full)
        with pytest.raises(OSError, match="no space"):
            seconds(1)
    assert seconds(1) == 1, "it is tried again"


def full(*_: object) -> None:
    raise OSError("no space")


def test_a_rank_with_a_server_writes_no_dumps(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent asks the server."""
    recorder = Recorder()
    recorder.enqueued = 5
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    rank = tap.Tap(SimpleNamespace(_world=world), {"FRD_RUN_DIR": str(tmp_path)}, TOKEN)
    for _ in range(20):
        rank.publish_counters()
        rank.publish_dumps()
    assert not recorder.dumps


def test_rest_where_nothing_can_be_written(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank rests, then its disk is full, and it moves: it is no longer taken to rest."""
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    rank = tap.Tap(SimpleNamespace(_world=world), {"FRD_RUN_DIR": str(tmp_path)}, TOKEN)
    rank.publish_counters()
    rank.publish_counters()
    assert rank.rests
    monkeypatch.setattr(rank._files, "write_counters", full)
    for recorder.enqueued, rests in ((6, False), (6, True), (7, False)):
        with pytest.raises(OSError, match="no space"):
            rank.publish_counters()
        assert rank.rests is rests


class OldServer(Recorder):
    """Torch 2.9: the worker server gives NCCL's recorder, and only Python gives Gloo's."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_nccl = 0

    def _dump_nccl_trace_json(self, *, includeCollectives: bool) -> bytes:
        self.asked_nccl += includeCollectives
        return b'{"pg_status": {}}'

    def _WorkerServer(self, path: str) -> object:
        Path(path).touch()
        return object()

    def _get_handler_names(self) -> list[str]:
        return ["dump_nccl_trace_json", "ping"]


def test_a_recorder_that_the_server_lacks_is_published(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server runs, and Gloo's recorder is written at rest; NCCL's, which it gives, is not."""
    recorder = OldServer()
    recorder.enqueued = 5
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    monkeypatch.setattr(tap, "shortage", lambda *_, **__: "")
    rank = tap.Tap(SimpleNamespace(_world=world), {"FRD_RUN_DIR": str(tmp_path)}, TOKEN)
    rank.serve()
    rank.publish_identity()
    identity = json.loads((tmp_path / f"{TOKEN}.json").read_text())
    assert (identity["socket"], identity["dumps"]) == (f"{TOKEN}.sock", f"{TOKEN}.dumps")
    assert (identity["kept"], identity["off"]) == ([tap.GENERIC, tap.NCCL], "")
    rank.publish_counters()
    rank._moved_at -= tap.RESTS_S
    rank.publish_dumps()
    published = json.loads((tmp_path / f"{TOKEN}.dumps").read_text())
    assert list(published["recorders"]) == ["fr_trace_json"]
    assert not recorder.asked_nccl


@pytest.mark.parametrize(
    ("version", "environ", "ring"),
    [
        ("2.13.0+cpu", {}, (2000, "")),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "500"}, (500, "")),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "0"}, (0, "TORCH_FR_BUFFER_SIZE=0")),
        ("2.13.0", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "-1"}, (0, "TORCH_NCCL_TRACE_BUFFER_SIZE=-1")),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "", "TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, (9, "")),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "20", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, (20, "")),
        ("2.8.0", {"TORCH_FR_BUFFER_SIZE": "20"}, (20, "")),
        ("2.7.0", {"TORCH_FR_BUFFER_SIZE": "0"}, (2000, "")),
        ("2.10.0", {}, (0, "default")),
        ("2.7.0", {}, (2000, "")),
        ("", {}, (2000, "")),
    ],
)
def test_the_size_of_the_recorders(
    version: str, environ: dict[str, str], ring: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both names the first that is set counts, as in torch; up to 2.7 there is only the second.
    Without a setting, Gloo's recorder has no room up to torch 2.10."""
    monkeypatch.setitem(sys.modules, "torch.version", SimpleNamespace(__version__=version))
    assert tap.ring_of(environ) == ring


def test_the_handler_for_all_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with the recorder of the backend that the request names, and with an error where
    torch raises one: no exception leaves it."""
    asked: list[dict[str, object]] = []
    said: dict[str, object] = {}

    def dump(**how: object) -> bytes:
        asked.append(how)
        if how.get("backend") == "odd":
            raise RuntimeError("no such recorder")
        return b"{}"

    def answer(backend: str) -> tuple[object, object]:
        response = SimpleNamespace(
            set_content=lambda text, _kind: said.update(text=text),
            set_status=lambda status: said.update(status=status),
        )
        tap.trace(SimpleNamespace(get_param=lambda _name: backend), response)
        return said["status"], said["text"]

    module = SimpleNamespace(_dump_fr_trace_json=dump)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    assert answer("nccl2") == (200, "{}")
    assert answer("odd") == (500, "RuntimeError: no such recorder")
    assert asked == [{"backend": "nccl2"}, {"backend": "odd"}]


def test_what_costs_more_is_published_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication that takes 4 ms of a core comes every 2 s, one that fails once a second."""
    now, spent = [100.0], [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: spent[0])
    monkeypatch.setattr(tap, "time", clocks)
    done: list[float] = []

    def publish() -> None:
        done.append(now[0])
        spent[0] += 0.004

    throttle = tap.Throttle(0.2)
    for _ in range(30):
        throttle.run(publish)
        now[0] += 0.2
    assert done == pytest.approx([100, 102, 104])
