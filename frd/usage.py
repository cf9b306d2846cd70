"""What the command lines of `frd` and `frd-agent` share: exit codes, errors of one line, and the
examples of every `--help`; and how a line on stderr is written.

Knows click, and no command.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

import click

from frd.errors import ConfigError, FrdError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""
_PRIORITIES: Final = ((logging.ERROR, "<3>"), (logging.WARNING, "<4>"), (logging.INFO, "<6>"))

_NO_COMMAND = re.compile(r"No such command '?(.*?)'?\.")
_NO_TEMPORARY = "No usable temporary directory"
"""So says Python's tempfile, as in a container whose root is read-only."""
_QUOTED = re.compile("'(.*?)' is not one of")
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")


def calm_grpc() -> None:
    """Call it before gRPC is imported, which reads the variable then. The four threads of its event
    engine would each wake some ten times for every message; without it the thread that waits for
    answers does the work: 18 wake-ups a second in place of 58 with three pings a second (1.85)."""
    engine_off = "-event_engine_client,-event_engine_listener"
    os.environ.setdefault("GRPC_EXPERIMENTS", engine_off)


def examples(*lines: str) -> str:
    """The epilog of a command: command lines, each with or without a comment."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def run(program: click.Command, name: str, arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. Commands return theirs, None for 0."""
    try:
        code = program.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        return complain(usage_error(error, name, arguments), USAGE)
    except ConfigError as error:
        return complain(str(error), USAGE)
    except FrdError as error:
        return complain(str(error), FAILED)
    except click.Abort:
        return INTERRUPTED
    except FileNotFoundError as error:
        if _NO_TEMPORARY not in str(error):
            raise
        return complain(f"temporary folder: {error.strerror}: set TMPDIR to a writable one", FAILED)
    return code if isinstance(code, int) else 0


def complain(message: str, code: int) -> int:
    # The message may quote the name of a job, or the answer of a server that is not frd.
    line = f"frd: error: {plain(' '.join(message.split()))}"
    print(f"{priority(logging.ERROR)}{line}", file=sys.stderr)
    return code


def priority(level: int) -> str:
    """What a line of this level of `logging` begins with if stderr goes to systemd's journal, which
    removes it and stores the priority; otherwise empty."""
    try:
        stderr = os.fstat(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or replaced by what is no file
        return ""
    if os.environ.get("JOURNAL_STREAM") != f"{stderr.st_dev}:{stderr.st_ino}":
        return ""
    return next((text for least, text in _PRIORITIES if level >= least), "<7>")


def plain(text: str) -> str:
    """`text` on one line, with control characters escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def usage_error(error: click.ClickException, program: str, arguments: Sequence[str]) -> str:
    """``what: which: what to do`` of an error that click found in `arguments`."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else _path(program, arguments)
    words = " ".join(_words(error).split()).rstrip(".?")
    return f"{words}: see `{path} --help`"


def _words(error: click.ClickException) -> str:
    match error:
        case click.NoSuchOption():
            return f"{error.option_name}: no such option{_did_you_mean(error.possibilities)}"
        case click.MissingParameter(param=param) if param is not None:
            return f"{_name(param)}: missing"
        case click.BadParameter(param_hint=str(hint)):
            return f"{hint}: {error.message}"
        case click.BadParameter(param=param) if param is not None:
            return f"{_name(param)}: {error.message.rstrip('.')}{_choice_meant(param, error)}"
        case click.BadOptionUsage():
            return f"{error.option_name}: needs a value"
    text = error.format_message()
    if found := _NO_COMMAND.match(text):
        return f"{found[1]}: no such command{_did_you_mean(getattr(error, 'possibilities', None))}"
    if found := _EXTRA.match(text):
        return f"{found[1]}: unexpected argument"
    return text


def guess(name: str, known: Iterable[str]) -> str:
    """``, did you mean status``; empty if nothing known looks like `name`."""
    return _did_you_mean(get_close_matches(name, known, n=3))


def _did_you_mean(possibilities: Sequence[str] | None) -> str:
    return f", did you mean {' or '.join(possibilities)}" if possibilities else ""


def _choice_meant(parameter: click.Parameter, error: click.BadParameter) -> str:
    """click says which choices there are, and quotes what was given."""
    given = _QUOTED.match(error.message)
    known = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
    return guess(given[1], known) if given else ""


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return " / ".join(sorted(parameter.opts, key=len))
    return parameter.make_metavar(click.Context(click.Command(None)))


def _path(program: str, arguments: Sequence[str]) -> str:
    """A guess: the parser does not say in which command the error was."""
    named = arguments[:1] if arguments and not arguments[0].startswith("-") else ()
    return " ".join((program, *named))
