"""Server-sent events: what a viewer gets when the state of the service changes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from frd.do_now import shown_json
from frd.engine.views import StatusView
from frd.errors import StoreError
from frd.forms import utc_text
from frd.model import CollectiveRef, Finding, Severity, Witness
from frd.service.access.grants import Tokens
from frd.service.http.routes import create_app
from frd.service.http.web import events as module
from tests.world.event_feed import LISTS, Feeding, news, request, streamed
from tests.world.http_api import Service, closed, finding, job_view
from tests.world.views import NOW


@pytest.fixture
def with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feeding]:
    file = tmp_path / "tokens"
    file.write_text("a" * 16 + "\n")
    file.chmod(0o600)
    service = Service(tmp_path, [job_view("train")], [])
    yield Feeding(service, monkeypatch, Tokens(file))
    service.close()


# -- answers -----------------------------------------------------------------------------------


async def test_answers_come_together(feeding: Feeding) -> None:
    """Two lists that are new arrive in one write, and nothing comes again that has not changed."""
    async with feeding.viewer(*LISTS) as stream:
        await feeding.look()
        assert [name for name, _ in await news(stream)] == ["jobs", "health"]
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert not waiting.done()
        await feeding.look(2)
        assert await asyncio.wait_for(waiting, 5) == (b'event: jobs\ndata: {"n":3,"more":""}\n\n')


async def test_a_new_viewer_gets_the_last_answers(feeding: Feeding) -> None:
    """It comes between two looks: the answers are those that the others have."""
    async with feeding.viewer(*LISTS) as first:
        await feeding.look()
        await news(first)
        async with feeding.viewer(*LISTS) as second:
            assert [name for name, _ in await news(second)] == ["jobs", "health"]
        assert len(feeding.asked) == 2


async def test_how_often_an_answer_comes(feeding: Feeding) -> None:
    """Jobs and a job each 2 s, health each 5 s, looked at each second for a minute."""
    async with feeding.viewer(*LISTS, ("job", "train")):
        for _ in range(60):
            await feeding.look(1)
    names = [name for name, _ in feeding.asked]
    assert {name: names.count(name) for name in set(names)} == {"jobs": 30, "health": 12, "job": 30}


@pytest.mark.parametrize("size", [10, 20_000, 60_000, 500_000])
async def test_a_viewer_gets_a_bounded_number_of_bytes(feeding: Feeding, size: int) -> None:
    """However large the answers are: less than 2 MB a minute, except for the very first ones; and
    each of them comes again."""
    feeding.size = size
    sent = 0
    topics = [*LISTS, ("job", "train")]
    async with feeding.viewer(*topics) as stream:
        await feeding.look()
        await news(stream)
        for _ in range(600):
            before = feeding.feed._number
            await feeding.look(1)
            if feeding.feed._number != before:
                sent += len(await anext(stream))
    assert sent / 10 < 2_000_000
    assert {name for name, _ in feeding.asked[3:]} == {"jobs", "health", "job"}


async def test_what_the_handlers_are_asked(feeding: Feeding) -> None:
    """The token of the viewers goes with it, and nothing else of their request: neither what they
    ask of the stream, nor how they want it packed."""
    async with feeding.viewer(*LISTS, ("job", "a/b c")):
        await feeding.look()
    asked = dict(feeding.asked)
    for of in asked.values():
        assert of.headers.items() == [("authorization", "Bearer x")]
        assert of.method == "GET"
    assert dict(asked["job"].query_params) == {"view": "summary"}
    assert asked["job"].path_params["job"] == "a/b c"
    assert "memory" not in asked["jobs"].query_params


@pytest.mark.parametrize(
    "error",
    [HTTPException(404, "job: 'x': unknown here"), StoreError("job: 'x': unknown here")],
)
async def test_an_answer_that_is_an_error(feeding: Feeding, error: Exception) -> None:
    """The viewer gets its text, in the form of errors of the API, and all else as usual."""
    feeding.fails["job"] = error
    async with feeding.viewer(("job", "x"), *LISTS) as stream:
        await feeding.look()
        found = await news(stream)
    assert [name for name, _ in found] == ["job", "jobs", "health"]
    assert found[0][1] == {"error": "job: 'x': unknown here"}


async def test_a_fault_of_one_answer_delays_no_other(feeding: Feeding) -> None:
    """One of the handlers breaks: viewers get what the others say, as soon as it is there."""
    feeding.fails["job"] = RuntimeError("a fault")
    async with feeding.viewer(("job", "x"), *LISTS) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with contextlib.suppress(RuntimeError):
            await feeding.look()
        data = await asyncio.wait_for(waiting, 1)
        while not (b"event: jobs" in data and b"event: health" in data):
            data += await asyncio.wait_for(anext(stream), 1)


async def test_an_answer_that_hangs_delays_nothing_else(feeding: Feeding) -> None:
    """Another replica does not answer for ten seconds: findings and other answers come as usual.
    The question is not asked again meanwhile; an answer that may be older than the finding is."""
    topic = ("job", "train")
    hanging = feeding.hang["job"] = asyncio.Event()
    feeding.show()
    async with feeding.viewer(topic, *LISTS) as stream:
        await feeding.look()
        assert [name for name, _ in await news(stream)] == ["jobs", "health"]
        feeding.show(finding(1))
        await feeding.look(1)
        assert [name for name, _ in await news(stream)] == ["finding", "jobs", "health"]
        await feeding.look(9)
        assert [name for name, _ in await news(stream)] == ["jobs", "health"]
        assert [name for name, _ in feeding.asked].count("job") == 1
        hanging.set()
        await feeding.feed._asking[topic]
        assert [name for name, _ in await news(stream)] == ["job"]
        await feeding.look()
        assert [name for name, _ in feeding.asked].count("job") == 1 + 1


async def test_a_quiet_stream_shows_that_it_is_well(
    feeding: Feeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without news there is a tick, with the time of the last evaluation."""
    monkeypatch.setattr(module, "_QUIET_S", 0)
    async with feeding.viewer() as stream:
        assert await news(stream) == [("tick", {"at": utc_text(NOW)})]
        assert await news(stream) == [("tick", {"at": utc_text(NOW)})]


# -- viewers -----------------------------------------------------------------------------------


async def test_viewers_share_a_feed(with_tokens: Feeding) -> None:
    """Two with one token, however they write it: each answer is asked for once. A third one has
    another token, and gets what that may see."""
    feeding, events = with_tokens, with_tokens.events
    streams = [
        events._follow(request(token), job)
        for token, job in (("Bearer a", None), ("bEARER  a ", "train"), ("Bearer b", None))
    ]
    for stream in streams:
        await anext(stream)
    assert (len(events._feeds), events._viewers) == (2, 3)
    for stream in streams:
        assert b"event: jobs" in await asyncio.wait_for(anext(stream), 5)
    tokens = [of.headers["authorization"] for name, of in feeding.asked if name == "jobs"]
    assert sorted(tokens) == ["Bearer a", "Bearer b"]
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


async def test_without_tokens_there_is_one_feed(feeding: Feeding) -> None:
    """Headers that clients make up neither make feeds nor reach other replicas."""
    streams = [feeding.events._follow(request(f"Bearer {n}"), None) for n in range(5)]
    for stream in streams:
        await anext(stream)
    assert [*feeding.events._feeds] == [""]
    await asyncio.wait_for(anext(streams[0]), 5)
    assert all("authorization" not in of.headers for _, of in feeding.asked)
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


async def test_nothing_runs_without_viewers(feeding: Feeding) -> None:
    """The last viewer leaves while an answer hangs: all tasks end. So does a question about a job
    whose last viewer leaves."""
    before = asyncio.all_tasks()
    feeding.hang = {name: asyncio.Event() for name in ("jobs", "health", "job")}
    first, second = (feeding.events._follow(request(), job) for job in (None, "train"))
    await anext(first)
    await anext(second)
    while len(feeding.asked) < 3:
        await asyncio.sleep(0)
    (feed,) = feeding.events._feeds.values()
    running = [*feed._running, *feed._asking.values()]
    of_job = feed._asking["job", "train"]
    await second.aclose()  # type: ignore[attr-defined]
    await asyncio.gather(of_job, return_exceptions=True)
    assert [task for task in running if task.done()] == [of_job]
    await first.aclose()  # type: ignore[attr-defined]
    await asyncio.gather(*running, return_exceptions=True)
    assert all(task.cancelled() for task in running)
    assert asyncio.all_tasks() == before


async def test_the_last_viewer_ends_a_feed(feeding: Feeding) -> None:
    """A feed works as long as it has a viewer; answers without one are forgotten."""
    events = feeding.events
    first, second = (events._follow(request(), job) for job in ("train", None))
    for stream in (first, second):
        await anext(stream)
        await asyncio.wait_for(anext(stream), 5)
    (feed,) = events._feeds.values()
    running = [*feed._running]
    assert len(running) == 2
    while ("job", "train") not in feed._sent:
        await asyncio.wait_for(anext(first), 5)
    await first.aclose()  # type: ignore[attr-defined]
    assert (events._viewers, ("job", "train") in feed._sent) == (1, False)
    assert not any(task.cancelling() for task in running)
    await second.aclose()  # type: ignore[attr-defined]
    await asyncio.gather(*running, return_exceptions=True)
    assert (events._viewers, events._feeds, events._hosts) == (0, {}, {})
    assert all(task.cancelled() for task in running)


async def test_a_stream_ends_after_a_while(
    feeding: Feeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client connects again, with a token that may have been withdrawn meanwhile."""
    monkeypatch.setattr(module, "LONGEST_S", 0)
    chunks = [chunk async for chunk in feeding.events._follow(request(), None)]
    assert chunks[0].startswith(b"event: hello\n")
    assert (feeding.events._viewers, feeding.events._feeds) == (0, {})


async def test_the_number_of_viewers_is_bounded(feeding: Feeding) -> None:
    """Two hundred are enough: 503 that says what to do instead."""
    feeding.events._viewers = module.MAX_VIEWERS
    with pytest.raises(HTTPException, match="events: 200 viewers already: ask the API") as refused:
        await feeding.events.stream(request())
    assert refused.value.status_code == 503


async def test_the_number_of_streams_of_a_host_is_bounded(
    feeding: Feeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host takes only a part of the streams; another one gets its own."""
    assert module.MAX_VIEWERS_OF_HOST == 100
    monkeypatch.setattr(module, "MAX_VIEWERS_OF_HOST", 1)
    stream = feeding.events._follow(request(), None)
    await anext(stream)
    with pytest.raises(HTTPException, match=r"events: 127\.0\.0\.1 has 1 streams") as refused:
        await feeding.events.stream(request())
    assert refused.value.status_code == 503
    assert (await feeding.events.stream(request(host="127.0.0.2"))).status_code == 200
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await feeding.events.stream(request())).status_code == 200


# -- the whole application ---------------------------------------------------------------------


async def test_a_stream_of_the_application(tmp_path: Path) -> None:
    """Hello, the lists, and the summary of the job, as the API has them; nothing stores the
    stream, and no proxy holds it back."""
    service = Service(tmp_path, [job_view("a/b c")])
    app = create_app(service.view)
    start, found = await streamed(
        app, "job=a/b%20c", lambda got: {"jobs", "health", "job"} <= dict(got).keys()
    )
    headers = dict(start["headers"])
    assert start["status"] == 200
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-store", b"no")
    assert found[0] == ("hello", {"at": utc_text(NOW)})
    shown = dict(found)
    assert [one["job"] for one in shown["jobs"]["jobs"]] == ["a/b c"]
    assert shown["health"]["services"][0]["agents"] == 1
    assert (shown["job"]["job"], "map" in shown["job"]) == ("a/b c", True)
    service.close()


async def test_a_stream_about_an_unknown_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event says so; it is the summary as soon as the job is there."""
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    monkeypatch.setattr(module, "_PACES", dict.fromkeys(module._PACES, module._Pace(0.0, 1e9)))
    service = Service(tmp_path, [job_view("train")])

    def wanted(got: list[tuple[str, object]]) -> bool:
        if "job" in dict(got):
            service.state = dataclasses.replace(
                service.state, status_view=StatusView(NOW, [job_view("later")], [])
            )
        return len([name for name, _ in got if name == "job"]) > 1

    _, found = await streamed(create_app(service.view), "job=later", wanted)
    first, second = (data for name, data in found if name == "job")
    assert first == {"error": "job: 'later': unknown here: see /api/v1/jobs"}
    assert second["job"] == "later"
    service.close()


# -- findings as server-sent events: when they open, say something else, and close -----------------


async def seen(feeding: Feeding, *looks: tuple[float, Finding | None]) -> list[list[Finding | int]]:
    """What viewers get at each of these looks, each so many seconds after the one before."""
    found: list[list[Finding | int]] = []
    async with feeding.viewer():
        for seconds, one in looks:
            feeding.show(*([one] if one is not None else []))
            before = len(feeding.feed._findings)
            await feeding.look(seconds)
            found.append([number for number, _ in [*feeding.feed._findings][before:]])
    return found


async def test_a_finding_opens_changes_and_closes(feeding: Feeding) -> None:
    """Each of these is an event with the finding as the API has it; those that were open before are
    known from the API."""
    old, one = finding(1), finding(2)
    worse = dataclasses.replace(one, severity=Severity.CRITICAL)
    feeding.show(old)
    async with feeding.viewer() as stream:
        await feeding.look()
        for shown in (one, worse):
            feeding.show(old, shown)
            await feeding.look(1)
            assert await news(stream) == [("finding", shown_json(shown))]
        feeding.show(old)
        feeding.store(closed(worse))
        await feeding.look(1)
        assert await news(stream) == [("finding", shown_json(closed(worse)))]


OP = CollectiveRef("dp", "g", 2, 7, "all_reduce", (1,), (0,), 5.0)
WAITING = dataclasses.replace(finding(1), collective=OP)


def changed(**fields: object) -> Finding:
    return dataclasses.replace(WAITING, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        changed(severity=Severity.CRITICAL),
        changed(dump="d1"),
        changed(ended_by="ended by KeyboardInterrupt"),
        changed(acknowledged_by="alice"),
        changed(silenced_until_at=WAITING.opened_at),
        changed(witness=Witness(1, ())),
        changed(victims=(1, 2)),
        changed(suspects=()),
        changed(suspects=(dataclasses.replace(WAITING.suspects[0], rank=5),)),
    ],
)
async def test_a_finding_that_says_something_else(feeding: Feeding, other: Finding) -> None:
    """Viewers get it at the next look."""
    first, second, third = await seen(feeding, (0, WAITING), (1, other), (1, other))
    assert (first, len(second), third) == ([], 1, [])


@pytest.mark.parametrize(
    ("other", "again"),
    [
        (changed(summary="it has waited for 9 s"), 0),
        (changed(collective=dataclasses.replace(OP, waited_s=9.0)), 0),
        (changed(suspects=(dataclasses.replace(WAITING.suspects[0], evidence="other"),)), 1),
    ],
)
async def test_another_wording_comes_rarely(feeding: Feeding, other: Finding, again: int) -> None:
    """The age of a wait counts up in the browser. What the evidence says comes after ten seconds,
    once."""
    counts = [
        len(got)
        for got in await seen(
            feeding, (0, WAITING), (1, other), (8, other), (2, other), (20, other)
        )
    ]
    assert counts == [0, 0, 0, again, 0]


async def test_a_finding_that_closes_while_the_store_fails(
    feeding: Feeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end cannot be read: viewers get it when the store answers again."""
    async with feeding.viewer() as stream:
        feeding.show(finding(1))
        await feeding.look()
        feeding.show()
        store = feeding.service.store
        with monkeypatch.context() as patch:

            def fails(_: str) -> Finding:
                raise StoreError("findings database: disk I/O error")

            patch.setattr(store, "get", fails)
            with contextlib.suppress(StoreError):
                await feeding.look(1)
        feeding.store(closed(finding(1)))
        await feeding.look(1)
        data = await asyncio.wait_for(anext(stream), 1)
        assert b'"state":"closed"' in data


async def test_a_slow_viewer_starts_over(feeding: Feeding) -> None:
    """It reads nothing while three hundred findings open: it gets hello, and gets the last ones; a
    viewer that keeps up gets all of them."""
    feeding.show()
    async with feeding.viewer() as slow, feeding.viewer() as quick:
        await feeding.look()
        stuck = asyncio.ensure_future(anext(slow))
        reading = asyncio.ensure_future(anext(quick))
        await asyncio.sleep(0)
        feeding.show(finding(1))
        await feeding.look(1)
        await stuck
        got = 1
        await reading
        for count in range(100, 700, 100):
            feeding.show(*(finding(n) for n in range(1, count + 1)))
            await feeding.look(1)
            got += len(await news(quick))
        assert got == 600
        found = await news(slow)
        assert [name for name, _ in found] == ["hello"] + ["finding"] * 256
        assert found[-1][1]["id"] in {finding(n).id for n in range(501, 601)}
        waiting = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
