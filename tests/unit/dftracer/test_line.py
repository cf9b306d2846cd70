"""One line of a trace, of every dialect, whole and damaged."""

from __future__ import annotations

import pytest

from frd.dftracer.line import BrokenLine, Event, Metadata, Phase, parse_line, records_of

V0 = (
    b' {"id":"2","name":"open","cat":"POSIX","pid":"7","tid":"8","ts":"1698080323781412",'
    b'"dur":"3430","ph":"X","args":{"hostname":"n1","ret":18,"fname":"/data/a.bat","mode":420}}'
)
V1 = (
    b'{"id":3736,"name":"read","cat":"POSIX","pid":7,"tid":8,"ts":1727387313498621,"dur":6,'
    b'"ph":"X","args":{"hhash":5692,"p_idx":-1,"level":1,"count":1022,"ret":316,"fhash":29128}}'
)
V20 = (
    b'{"id":3,"name":"read","cat":"POSIX","pid":7,"tid":8,"ts":1795464333629573,"dur":81,"ph":"X",'
    b'"args":{"hhash":"6882804a826580cd","ret":65536,"count":65536,"fhash":"a34df38c3ec3dd87"}}'
)
V22 = (
    b'{"id":3,"name":"read","cat":"POSIX","type":3,"pid":7,"tid":8,"ts":1795464333629573,"dur":81,'
    b'"ph":1,"args":{"hhash":"6882804a826580cd","ret":65536,"fhash":"a34df38c3ec3dd87"}}'
)


@pytest.mark.parametrize(
    ("line", "host", "file"),
    [
        (V0, "=n1", "=/data/a.bat"),
        (V1, "5692", "29128"),
        (V20, "6882804a826580cd", "a34df38c3ec3dd87"),
        (V22, "6882804a826580cd", "a34df38c3ec3dd87"),
    ],
)
def test_a_call_of_every_dialect(line: bytes, host: str, file: str) -> None:
    """Strings, letters, numbers and hashes become the same typed values."""
    event = parse_line(line)
    assert isinstance(event, Event)
    assert (event.phase, event.pid, event.tid) == (Phase.COMPLETE, 7, 8)
    assert event.ts > 1_690_000_000_000_000
    assert event.dur in (3430, 6, 81)
    assert (event.host, event.file) == (host, file)


def test_definitions_of_every_dialect() -> None:
    """A file's text by its hash, and a rank: numbers or strings, letters or numbers."""
    v1 = parse_line(
        b'{"id":1,"name":"HH","cat":"dftracer","pid":9,"tid":9,"ph":"M",'
        b'"args":{"name":"corona173","value":5692}}'
    )
    assert v1 == Metadata("HH", "5692", "corona173", 9)
    rank = parse_line(
        b'{"name":"CM","cat":"dftracer","type":6,"pid":9,"tid":9,"ph":4,'
        b'"args":{"hhash":"68","name":"rank","value":"3"}}'
    )
    assert rank == Metadata("CM", "rank", "3", 9, "68")


def test_counters_and_sums_are_no_spans() -> None:
    """``C`` is a counter, unless it has the count of the calls that it sums up."""
    head = b'{"name":"read","cat":"POSIX","pid":1,"tid":1,"ts":5,"ph":"C","args":{"dft_cnt":36}}'
    summed, counter = parse_line(head), parse_line(head.replace(b"dft_cnt", b"user_pct"))
    assert isinstance(summed, Event)
    assert isinstance(counter, Event)
    assert (summed.phase, summed.dur) == (Phase.AGGREGATED, None)
    assert counter.phase is Phase.COUNTER


@pytest.mark.parametrize("line", [b"", b"[", b"]  ", b"  \r\n"])
def test_what_is_no_record_is_nothing(line: bytes) -> None:
    """Brackets of the array and empty lines are no errors."""
    assert parse_line(line) is None


def test_a_trailing_comma_and_raw_bytes_are_read() -> None:
    """Strings are written without escaping: control characters, and bytes that are no UTF-8."""
    assert isinstance(parse_line(V22 + b",\n"), Event)
    event = parse_line(V0.replace(b"a.bat", b"a\x01\xff.bat"))
    assert isinstance(event, Event)
    assert event.file == "=/data/a\x01�.bat"


@pytest.mark.parametrize(
    "line",
    [
        V22[:-30],
        b'{"name":"read"}',
        V22.replace(b'"ph":1', b'"ph":9'),
        V22.replace(b'"pid":7', b'"pid":"x"'),
        V22.replace(b'"ts":1', b'"ts":1' + b"0" * 30),
        V22.replace(b'"args":{', b'"args":[{') + b"]",
        b'"text"',
        b"[" * 100_000,
    ],
)
def test_a_broken_line_is_said_to_be_broken(line: bytes) -> None:
    """Cut, without its keys, of no known kind, out of range, nested without end."""
    with pytest.raises(BrokenLine):
        parse_line(line)


@pytest.mark.parametrize(
    ("args", "kept"),
    [
        ('"hhash":"68","note":"a"c","epoch":0,"step":5', {"hhash": "68", "epoch": 0, "step": 5}),
        ('"note":"C:\\dir","ret":9', {"ret": 9}),
        ('"ret":9,"note":"a"{"ret":5,"b","step":4', {"ret": 9}),
        ('"ret":9,"note":"a"b"', {"ret": 9}),
        ('"fname":"/d/a"b,c.bin","ret":"9"', {"fname": '/d/a"b,c.bin', "ret": "9"}),
    ],
)
def test_texts_that_are_not_escaped_lose_nothing_else(args: str, kept: dict[str, object]) -> None:
    """A quote or a backslash in an argument: the span, and the arguments whose value is JSON."""
    line = V22[: V22.index(b'"hhash"')] + args.encode() + b"}}"
    records, lost = records_of(line)
    assert not lost
    (event,) = records
    assert isinstance(event, Event)
    assert (event.name, event.pid, event.ts, event.dur) == ("read", 7, 1795464333629573, 81)
    assert event.args == kept
    assert records_of(line[:-1])[1]
    assert len(records_of(line + V20)[0]) == 2


def test_a_path_with_a_quote_is_defined() -> None:
    """A file name that is written unescaped still belongs to its hash."""
    line = (
        b'{"id":1,"name":"FH","cat":"dftracer","type":1,"pid":9,"tid":9,"ph":4,'
        b'"args":{"hhash":"68","name":"/d/a"b,c","value":"0123456789abcdef"}}'
    )
    assert records_of(line) == ([Metadata("FH", "0123456789abcdef", '/d/a"b,c', 9, "68")], False)


def test_half_a_surrogate_pair_is_text() -> None:
    """JSON may have it and no output can encode it: it is shown as it is written."""
    event = parse_line(V0.replace(b"a.bat", b"a\\udc80\\ud83d\\ude00").replace(b"n1", b"n\\ud800"))
    assert isinstance(event, Event)
    assert (event.file, event.host) == ("=/data/a\\udc80\N{GRINNING FACE}", "=n\\ud800")


def test_a_clock_that_stepped_back_gives_no_negative_time() -> None:
    """A negative duration, written as an unsigned number, is 0 and marked."""
    event = parse_line(V22.replace(b'"dur":81', b'"dur":18446744073709551000'))
    assert isinstance(event, Event)
    assert (event.dur, event.stepped) == (0, True)


def test_glued_records_are_taken_apart() -> None:
    """A long line is cut and loses its newline: the next record is read, the cut one is lost. Of an
    array on one line, the first and the last record have a bracket."""
    records, lost = records_of(b"[" + b",".join([V20] * 3) + b"]")
    assert (len(records), lost) == (3, False)
    records, lost = records_of(V22[:-25] + V20)
    assert [type(record) for record in records] == [Event]
    assert lost
    records, lost = records_of(V1 + V20)
    assert (len(records), lost) == (2, False)
    definition = b'{"id":1,"name":"FH","cat":"dftracer","pid":9,"tid":9,"ph":"M",'
    definition += b'"args":{"name":"/data/a","value":7}}'
    records, lost = records_of(V1[:50] + definition)
    assert records == [Metadata("FH", "7", "/data/a", 9)]
    assert lost
