"""Reads the end of a rank's log, as a separate program: the file system may not answer, and then
only this process hangs. It is run as a plain file, with the standard library alone.

Files are named by a job, which may want an agent of root to read the files of others. So it becomes
the user of the rank first, and the kernel decides. A file is opened for reading only when it is
known to be a regular one: to open a pipe or a device has effects on others.

One argument, in JSON: ``uid``, ``gid``, and ``files``: paths, each with the inode that it must have
(0: any), and whether the path itself may be a link; the first one that can be read counts. On
stdout: a line of JSON with the ``path``, or ``why`` no file can be read; then the bytes.
"""

from __future__ import annotations

import json
import os
import stat
import sys

MOST_BYTES = 16 * 1024


def main() -> None:
    asked = json.loads(sys.argv[1])
    path, data, why = "", b"", become(asked["uid"], asked["gid"])
    for name, inode, may_be_link in () if why else asked["files"]:
        try:
            data = tail(name, inode, may_be_link)
            path = os.readlink(name) if may_be_link else name
            break
        except (OSError, ValueError) as error:
            why += f"{'; ' * bool(why)}{name}: {getattr(error, 'strerror', error)}"
    head = json.dumps({"path": path, "why": "" if path else why})
    sys.stdout.buffer.write(head.encode("ascii") + b"\n" + data)


def become(uid: int, gid: int) -> str:
    """Take the identity of the rank's user for good; returns why that is not possible."""
    if os.geteuid() == uid:
        return ""
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError:
        return f"the agent may not read as the rank's user {uid}"
    return ""


def tail(path: str, inode: int, may_be_link: bool) -> bytes:
    """
    Raises:
        OSError: it cannot be read, or is another file than the one that is wanted.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (0 if may_be_link else os.O_NOFOLLOW)
    known = os.open(path, flags)
    found = os.fstat(known)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "no regular file")
    if found.st_uid != os.geteuid() and not found.st_mode & stat.S_IROTH:
        raise OSError(0, "of another user")  # which capabilities of the agent could read
    if inode not in (0, found.st_ino):
        raise OSError(0, "replaced by another file since the rank wrote there")
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    opened = os.open(f"/proc/self/fd/{known}", flags)
    return os.pread(opened, MOST_BYTES, max(found.st_size - MOST_BYTES, 0))


if __name__ == "__main__":
    main()
