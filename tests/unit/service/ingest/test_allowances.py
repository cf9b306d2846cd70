"""What a stream declares is counted while it lasts, and freed when it ends."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from frd.engine.policy import Policy
from frd.errors import WireError
from frd.model import AlignedNs, AttemptKey, GroupInfo, NodeNs, NodeRawNs, RankInfo, Signature
from frd.service.access.admission import MAX_DECLARED, Allowance
from frd.service.ingest.declarations import DeclaredAttempt, DeclaredRank, objects_in
from frd.service.ingest.streams import Stream, Streams
from frd.wire.codec import encode_agent
from frd.wire.messages import (
    PROTOCOL,
    AttemptDecl,
    Declare,
    GroupDecl,
    Hello,
    RankDecl,
    SignatureDecl,
)
from tests.world.sessions import quiet_streams

KEY = AttemptKey("a", 0)
ATTEMPT = Declare(attempts=(AttemptDecl(0, KEY, 0),))
SIZES = ((7_000, 64, 64),) * 8


@pytest.fixture
def streams() -> Streams:
    return quiet_streams()


def stream(streams: Streams, peer: Counter[str], most: int) -> Stream:
    made = streams.open()
    made.session.declared.allowance = Allowance("10.0.0.1", peer, most)
    hello = Hello(PROTOCOL, "0", "n", "boot", f"s{made.id}", NodeNs(5 * 10**9), NodeRawNs(1))
    streams.take(made, encode_agent(hello))
    streams.take(made, encode_agent(ATTEMPT))
    return made


def signatures() -> Iterator[Declare]:
    """Without end."""
    for first in itertools.count(0, 250):
        each = (
            SignatureDecl(n, Signature("nccl", f"op{n}", SIZES)) for n in range(first, first + 250)
        )
        yield Declare(signatures=tuple(each))


def test_a_stream_may_not_declare_without_end(streams: Streams) -> None:
    """Signatures with many sizes: the stream is refused at a million objects; what it held counts
    no more when it has ended."""
    peer = Counter[str]()
    greedy = stream(streams, peer, 1 << 40)
    messages = map(encode_agent, signatures())
    with pytest.raises(WireError, match="over 1048576 objects on one stream"):
        all(streams.take(greedy, message) for message in messages)
    assert peer["10.0.0.1"] > MAX_DECLARED
    streams.close(greedy)
    assert not peer


def test_the_streams_of_a_peer_share_an_allowance(streams: Streams) -> None:
    """Each of three streams is far from its own limit; the third does not fit any more, until the
    first has ended."""
    peer, declare = Counter[str](), encode_agent(next(signatures()))
    most = 3 * objects_in(next(signatures()), len(declare))
    first, second, third = (stream(streams, peer, most) for _ in range(3))
    for one in (first, second):
        streams.take(one, declare)
    with pytest.raises(WireError, match=r"10\.0\.0\.1 holds over \d+ objects: raise limits\.obj"):
        streams.take(third, declare)
    for one in (third, first):
        streams.close(one)
    streams.take(stream(streams, peer, most), declare)


def test_what_messages_without_content_hold(streams: Streams) -> None:
    """Empty declarations count, too: a journal keeps each."""
    assert objects_in(Declare(), 2) == 1


def test_members_of_groups_share_their_numbers(streams: Streams) -> None:
    """Two groups of many ranks: the rank is the same object in both."""
    peer = Counter[str]()
    one = stream(streams, peer, 1 << 40)
    infos = (GroupInfo("1", "a", tuple(range(5_000))), GroupInfo("2", "b", tuple(range(9_000))))
    groups = tuple(GroupDecl(n, 0, info) for n, info in enumerate(infos))
    event = streams.take(one, encode_agent(Declare(groups=groups)))
    assert isinstance(event, Declare)
    a, b = (group.info.ranks for group in event.groups)
    assert (a, b) == (infos[0].ranks, infos[1].ranks)
    assert all(x is y for x, y in zip(a, b, strict=False))


def test_refused_jobs_without_number(streams: Streams) -> None:
    """Forty jobs for which there is no room: some are named, the others are counted."""
    streams.shared.engine.adopt(Policy(max_attempts=1))
    one = stream(streams, Counter(), 1 << 40)
    for n in range(1, 41):
        attempt, info = AttemptDecl(n, AttemptKey(f"job{n}", 0), 1), RankInfo(0, 1, "n", "b", n)
        ranks = (RankDecl(n - 1, n, info),)
        streams.take(one, encode_agent(Declare(attempts=(attempt,), ranks=ranks)))
    refused = streams.refused_ranks(AlignedNs(2))
    assert [one.ranks for one in refused] == [*[1] * 32, 8]
    assert refused[-1].job == "(others)"


def test_a_stream_that_has_ended_is_freed(streams: Streams) -> None:
    """Its declarations go with it, not at the next collection of cycles, which is switched off."""
    one = stream(streams, Counter(), 1 << 40)
    ranks = tuple(RankDecl(n, 0, RankInfo(n, 8, "n", "boot", 100 + n)) for n in range(8))
    streams.take(one, encode_agent(Declare(ranks=ranks)))
    gc.collect()
    gc.disable()
    try:
        assert sum(isinstance(one, DeclaredRank) for one in gc.get_objects()) == 8
        streams.close(one)
        del one
        left = [one for one in gc.get_objects() if isinstance(one, DeclaredRank | DeclaredAttempt)]
        assert left == []
    finally:
        gc.enable()


def test_a_forgotten_attempt_is_freed(streams: Streams) -> None:
    """A stream declares 40 attempts of a job, of which the engine keeps 8: nor does the stream."""
    one = stream(streams, Counter(), 1 << 40)
    for n in range(1, 40):
        streams.take(one, encode_agent(Declare(attempts=(AttemptDecl(n, AttemptKey("a", n), 0),))))
    one.session.settle(AlignedNs(2))
    held = [attempt for attempt in one.session.declared.attempts if attempt.handles is not None]
    assert [attempt.declared.key.attempt for attempt in held] == [*range(32, 40)]
