"""Parses the command that starts a job: the job's name, its Python, whether it is the whole job.

A command is parsed, never run. For an unknown command the answer is the program's name and "not a
whole job".
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Final

_TORCHRUN: Final = ("torch.distributed.run", "torch.distributed.launch")
_LAUNCHERS: Final = (*_TORCHRUN, "accelerate.commands.launch", "deepspeed.launcher.runner")
_TAKES_MODULE: Final = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
_SCRIPTS: Final = (".py", ".sh")
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME: Final = 64
_MAX_BRIEF: Final = 200
_RANK_VARIABLES: Final = (
    *("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"),
)


def default_job(cmd: Sequence[str]) -> str:
    """Script and user, such as ``train-alice``."""
    return _ODD.sub("-", f"{_program(cmd)}-{_user()}")[:_MAX_NAME]


def brief(cmd: Sequence[str]) -> str:
    """Program and script, such as ``torchrun train.py``; arguments may hold secrets."""
    if not cmd:
        return ""
    takes_module = [word for before, word in pairwise(cmd) if before == "-m"]
    scripts = [script for word in cmd[1:] if (script := _script(word)) is not None]
    return " ".join((PurePath(cmd[0]).name, *(scripts or takes_module)[:1]))[:_MAX_BRIEF]


def _script(word: str) -> str | None:
    """The script that a word names: itself, or the last part of what a shell is to run, as in
    ``bash -c "KEY=secret python train.py"``, whose other parts may hold secrets."""
    if not word.endswith(_SCRIPTS):
        return None
    last = word.rsplit(maxsplit=1)[-1]
    if "=" in last:
        return None  # an option or a variable
    return PurePath(last).name if "://" in last else last


def _program(cmd: Sequence[str]) -> str:
    takes_module = False
    words = iter(cmd)
    for word in words:
        if takes_module and word in ("-m", "--module"):
            module = next(words, "")
            if module and module not in _LAUNCHERS:
                return module.removesuffix(".__main__").rpartition(".")[2]
        elif (script := _script(word)) is not None:
            return PurePath(script).stem
        takes_module = takes_module or _TAKES_MODULE.fullmatch(PurePath(word).name) is not None
    return PurePath(cmd[0]).name


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid{os.getuid()}"


def has_id(cmd: Sequence[str], environ: Mapping[str, str]) -> bool:
    """True if torchrun or Slurm has been given an identity for the job."""
    ids = ("--rdzv-id", "--rdzv_id")
    is_flag_given = any(word.partition("=")[0] in ids for word in _own_words(cmd))
    return is_flag_given or "SLURM_JOB_ID" in environ or "PET_RDZV_ID" in environ


def _own_words(cmd: Sequence[str]) -> Iterator[str]:
    """The words of `cmd` before the script and its arguments."""
    for word in cmd:
        if word.endswith(_SCRIPTS):
            return
        yield word


def is_whole_job(cmd: Sequence[str], environ: Mapping[str, str]) -> bool:
    """True if this command surely starts all ranks of a job: torchrun for one node.

    Only then may this node alone choose the job's name and the number of the run: ranks of other
    nodes would not know them.
    """
    if any(name in environ for name in _RANK_VARIABLES):
        return False
    starts = [at for at, word in enumerate(cmd) if _is_torchrun(cmd, at, word)]
    if not starts:
        return False
    nodes = environ.get("PET_NNODES", "1")
    words = _own_words(cmd[starts[0] + 1 :])
    for word in words:
        name, given, value = word.replace("_", "-").partition("=")
        if name == "--standalone":
            return True
        if name == "--nnodes":
            nodes = value if given else next(words, "")
    return nodes in ("1", "1:1")


def _is_torchrun(cmd: Sequence[str], at: int, word: str) -> bool:
    return PurePath(word).name == "torchrun" or (
        word in _TORCHRUN and at > 0 and cmd[at - 1] == "-m"
    )


def interpreter(cmd: Sequence[str]) -> tuple[str, bool]:
    """The Python that this command starts, and whether that is certain."""
    if not cmd:
        launcher = shutil.which("torchrun")
        return (_shebang(launcher) if launcher else None) or sys.executable, True
    for word in cmd:
        name = PurePath(word).name
        if name.startswith("python") and (path := shutil.which(word)) is not None:
            return path, True
    program = shutil.which(cmd[0])
    if program is not None and (python := _shebang(program)) is not None:
        return python, True
    return shutil.which("python3") or shutil.which("python") or sys.executable, False


def _shebang(program: str) -> str | None:
    try:
        with open(program, "rb") as file:
            first, second = file.readline(512), file.readline(512)
    except OSError:
        return None
    line = first.decode("utf-8", "replace").strip()
    if line == "#!/bin/sh":  # what pip writes where the path is too long for a first line
        line = second.decode("utf-8", "replace").replace("'''exec'", "#!").strip()
    words = line.removeprefix("#!").replace('"', "").split()
    if not line.startswith("#!") or not words:
        return None
    if PurePath(words[0]).name == "env":
        words = words[1:]
    is_python = bool(words) and PurePath(words[0]).name.startswith("python")
    return shutil.which(words[0]) if is_python else None
