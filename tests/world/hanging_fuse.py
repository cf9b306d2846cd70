"""A file system in user space whose server stops answering: the nearest thing to a dead server.

It has two files, ``shard.bin`` and ``job.pfw``. To read or sync one hangs, and so does the look-up
of ``index``.
Only root may mount it; nothing but the suspect of a test touches it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

SOURCE: Final = "nas:/export"
_IN: Final = struct.Struct("<IIQQIIIHH")
_OUT: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<6Q10I")
_SIZE: Final = 1 << 20
_LOOKUP, _GETATTR, _OPEN, _READ, _FSYNC, _INIT = 1, 3, 14, 15, 20, 26
_RELEASE, _FLUSH = 18, 25
_FILES: Final = {b"shard.bin": 2, b"job.pfw": 3}
"""With their inodes."""
_NO_REPLY: Final = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
_MNT_FORCE: Final = 1
_MNT_DETACH: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NoMount(Exception):
    """This process may not mount it, with the reason."""


class Nas:
    """A mounted file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def close(self) -> None:
        """All that hangs in it fails: before that, even a killed process does not end."""
        _LIBC.umount2(os.fsencode(self.folder), _MNT_DETACH | _MNT_FORCE)


@contextmanager
def hanging_fuse(folder: Path) -> Iterator[Nas]:
    """Mounted on `folder`.

    Raises:
        NoMount: no right, or no FUSE in this kernel.
    """
    try:
        fd = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        raise NoMount(f"/dev/fuse: {error.strerror}") from None
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    args = (SOURCE.encode(), os.fsencode(folder), b"fuse", 6, options.encode())
    if _LIBC.mount(*args):
        os.close(fd)
        raise NoMount(f"mount: {os.strerror(ctypes.get_errno())}")
    server = threading.Thread(target=_serve, args=(fd,), daemon=True)
    server.start()
    nas = Nas(folder)
    try:
        yield nas
    finally:
        nas.close()
        server.join(5)
        os.close(fd)


def _serve(fd: int) -> None:
    with suppress(OSError):  # unmounted
        while request := os.read(fd, 1 << 20):
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            answer = _answer(opcode, node, request[_IN.size :])
            if isinstance(answer, int):
                os.write(fd, _OUT.pack(_OUT.size, -answer, unique))
            elif answer is not None:
                os.write(fd, _OUT.pack(_OUT.size + len(answer), 0, unique) + answer)


def _answer(opcode: int, node: int, body: bytes) -> bytes | int | None:
    """The reply, the number of an error, or None: it hangs, or no reply is expected."""
    name = body.rstrip(b"\0")
    if opcode == _INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0, *[0] * 8)
    if opcode == _LOOKUP and name in _FILES:
        number = _FILES[name]
        return struct.pack("<4Q2I", number, 0, 60, 60, 0, 0) + _attributes(number)
    if opcode == _LOOKUP and name != b"index":
        return errno.ENOENT
    if opcode == _GETATTR:
        return struct.pack("<Q2I", 60, 0, 0) + _attributes(node)
    if opcode == _OPEN:
        return struct.pack("<Q2I", 1, 0, 0)
    if opcode in (_RELEASE, _FLUSH):
        return 0
    if opcode in (*_NO_REPLY, _LOOKUP, _READ, _FSYNC):
        return None
    return errno.ENOSYS


def _attributes(node: int) -> bytes:
    mode, size = (0o40755, 0) if node == 1 else (0o100644, _SIZE)
    return _ATTR.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
