"""An archive of dumps is read like the folder that it was made of, and cannot do more."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from frd.errors import DumpError
from frd.flight.trace import Trace
from frd.offline.load.folder import load_dumps
from frd.readers import pool
from frd.readers.pool import ReaderProcess
from tests.world.dump_files import T0, as_torch, document, entry

AT = T0 // 10**9 - 100_000_000
"""Even, because zip files count time in steps of 2 s."""


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[Path]:
    """Nothing is left in the folder of temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not [*folder.iterdir()]


def dumps(folder: Path) -> Path:
    for rank in range(4):
        path = folder / f"host{rank // 2}" / f"dump_{rank}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_torch(document([entry(at) for at in range(rank + 1)], range(4))))
        os.utime(path, (AT - AT % 2,) * 2)
    return folder


def tarred(mode: Literal["w", "w:gz"]) -> Callable[[Path, Path], None]:
    def pack(folder: Path, archive: Path) -> None:
        with tarfile.open(archive, mode) as out:
            out.add(folder, folder.name)

    return pack


def zipped(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.rglob("*")):
            out.write(path, path.relative_to(folder))


def loaded(path: Path) -> Trace:
    (trace,) = load_dumps([path])
    return trace


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("d.tar", tarred("w")),
        ("d.tar.gz", tarred("w:gz")),
        ("D.TGZ", tarred("w:gz")),
        ("d.zip", zipped),
    ],
)
def test_an_archive_is_a_folder(
    tmp_path: Path, name: str, pack: Callable[[Path, Path], None]
) -> None:
    """The same ranks, entries and times; files are named as members of the archive."""
    folder, archive = dumps(tmp_path / "d"), tmp_path / name
    pack(folder, archive)
    plain, packed = loaded(folder), loaded(archive)
    assert [len(of) for of in packed.ranks.values()] == [1, 2, 3, 4]
    assert packed.groups == plain.groups
    assert [of.dumped_until_ns for of in packed.ranks.values()] == [
        of.dumped_until_ns for of in plain.ranks.values()
    ]
    assert f"/{name}/" in packed.ranks[3].source
    assert packed.ranks[3].source.endswith("host1/dump_3")
    assert f"/{name}" in packed.folder
    assert packed.warnings == ()


def test_messages_name_the_members(tmp_path: Path) -> None:
    """Warnings and errors name the archive and the member, below the temporary folder."""
    folder, archive = dumps(tmp_path / "d"), tmp_path / "d.tar"
    (folder / "host0" / "dump_0").write_bytes(b"broken")
    tarred("w")(folder, archive)
    (warning,) = loaded(archive).warnings
    assert "/d.tar/d/host0/dump_0: neither JSON nor a pickle" in warning
    for path in folder.rglob("dump_*"):
        path.write_bytes(b"broken")
    tarred("w")(folder, archive)
    with pytest.raises(DumpError, match=rf"{archive}/d/host0/dump_0: .*{archive}\S* does not"):
        loaded(archive)


def test_a_compressed_dump_is_no_archive(tmp_path: Path) -> None:
    """A single dump that ends in .gz is read as before."""
    path = tmp_path / "dump_3.gz"
    path.write_bytes(gzip.compress(as_torch(document([entry()], range(4)))))
    assert [*loaded(path).ranks] == [3]


def member(name: str, kind: bytes = tarfile.REGTYPE, **changes: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mtime = kind, AT
    for key, value in changes.items():
        setattr(info, key, value)
    return info


def tar_of(archive: Path, *members: tarfile.TarInfo, data: bytes = b"") -> Path:
    with tarfile.open(archive, "w") as out:
        for one in members:
            if one.isreg():
                one.size = len(data)
            out.addfile(one, io.BytesIO(data))
    return archive


@pytest.mark.parametrize("name", ["../dump_0", "/tmp/dump_0", "a/../../dump_0"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    """Nothing is written outside: one error line that names the member."""
    archive = tar_of(tmp_path / "d.tar", member(name), data=b"x")
    with pytest.raises(
        DumpError, match=rf"^{archive}: cannot .*'{name}': leads out of the archive"
    ):
        loaded(archive)
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as out:
        out.writestr(name, b"x")
    with pytest.raises(DumpError, match="leads out of the archive"):
        loaded(tmp_path / "d.zip")
    assert not (tmp_path / "dump_0").exists()


def test_folders_too_deep_to_be_removed(tmp_path: Path) -> None:
    """Each member is some hundred folders deeper than the one before: one error line."""
    names = ["a/" * depth + "dump_0" for depth in (31, *range(200, 1951, 250))]
    archive = tar_of(tmp_path / "d.tar", *map(member, names), data=b"x")
    with pytest.raises(DumpError, match=rf"^{archive}: cannot .*more than 32 folders deep"):
        loaded(archive)


def test_no_more_is_written_for_a_process_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent of the process that unpacks changes after two members."""
    parents = iter([7, 7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    archive = tar_of(tmp_path / "d.tar", *(member(f"d_{at}") for at in range(5)))
    assert "has ended" in pool.write_members(archive, tmp_path / "into")
    assert len([*(tmp_path / "into").iterdir()]) == 2


def test_only_regular_files(tmp_path: Path) -> None:
    """Links and devices are not made: a link to another file does not become a dump."""
    secret = tmp_path / "secret"
    secret.write_bytes(as_torch(document([entry()], range(4))))
    archive = tar_of(
        tmp_path / "d.tar",
        member("dump_1", tarfile.SYMTYPE, linkname=str(secret)),
        member("dump_2", tarfile.FIFOTYPE),
        member("dump_3", tarfile.LNKTYPE, linkname="dump_0"),
        member("dump_0", mtime=2**62),
        data=secret.read_bytes(),
    )
    assert [*loaded(archive).ranks] == [0]


@pytest.mark.parametrize("name", ["d.tar", "d.tar.gz", "d.zip"])
def test_a_damaged_archive(tmp_path: Path, name: str) -> None:
    """Cut short anywhere, overwritten in the middle, or something else: one error line."""
    folder, archive = dumps(tmp_path / "d"), tmp_path / name
    (zipped if name == "d.zip" else tarred("w:gz" if name == "d.tar.gz" else "w"))(folder, archive)
    whole = archive.read_bytes()
    at = 1600 if name == "d.tar" else len(whole) // 3
    spoilt = whole[:at] + b"\xff" * 600 + whole[at + 600 :]
    for data in (b"", b"PK", whole[: len(whole) // 2], spoilt, bytes(len(whole))):
        archive.write_bytes(data)
        with pytest.raises(DumpError, match=rf"/{name}: (cannot be unpacked|no file with)"):
            loaded(archive)


@pytest.mark.parametrize(("count", "data"), [(3, b""), (1, bytes(8193))], ids=["many", "large"])
def test_too_much_in_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, data: bytes
) -> None:
    """One large file, or many small ones of a block each: refused before the limit is passed."""
    members = (member(f"d_{at}") for at in range(count))
    archive = tar_of(tmp_path / "d.tar", *members, data=data)
    monkeypatch.setattr(pool, "_MAX_UNPACKED_BYTES", 8192)
    error = pool.write_members(archive, tmp_path / "into")
    assert f"'d_{count - 1}': over 8192 bytes" in error
    assert len([*(tmp_path / "into").glob("*")]) == count - 1


def test_a_header_that_needs_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that unpacks to a name of 256 MiB costs the process that reads it, no more."""
    monkeypatch.setattr(pool, "ReaderProcess", partial(ReaderProcess, 128 << 20))
    archive, header = tmp_path / "d.tar.gz", member("x", tarfile.XHDTYPE, size=256 << 20)
    with gzip.open(archive, "wb", compresslevel=1) as out:
        out.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(256 << 20))
    with pytest.raises(DumpError, match=rf"^{archive}: "):
        loaded(archive)


def test_no_room_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder may be written to: an archive is an error with advice, a folder is read."""
    folder, archive = dumps(tmp_path / "d"), tmp_path / "d.tar"
    tarred("w")(folder, archive)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        with pytest.raises(DumpError, match=rf"^{archive}: .*: set TMPDIR"):
            loaded(archive)
        assert len(loaded(folder).ranks) == 4
