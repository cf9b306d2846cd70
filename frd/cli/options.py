"""Options and output that several commands share: the service's address, ranks, times, JSON,
progress.
"""

from __future__ import annotations

import functools
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from frd.address import is_loopback, split_address, without_scheme
from frd.cli import contexts
from frd.cli.client import TIMEOUT_S, Client, tls_context
from frd.cli.contexts import Context, context_names
from frd.credentials import read_token
from frd.errors import ConfigError, FrdError
from frd.forms import json_bytes, unfold_ranks, utc_ns, utc_text

DEFAULT_HTTP = "127.0.0.1:9374"

_F = TypeVar("_F", bound=Callable[..., Any])


_HTTP_PORT, _HTTPS_PORT = 80, 443
_NEVER_WRAPS = 1 << 16
_SPANS_S = {"m": 60, "h": 3600, "d": 86_400}
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
SERVICE = (
    click.option(
        "--http",
        metavar="HOST:PORT",
        envvar="FRD_HTTP",
        default=DEFAULT_HTTP,
        show_default=True,
        help="HTTP address of the service, or its URL; several, separated by commas, are tried in "
        "order.",
    ),
    click.option("--tls", is_flag=True, envvar="FRD_TLS", help="Use TLS."),
    click.option(
        "--tls-ca-file",
        type=FILE,
        envvar="FRD_TLS_CA_FILE",
        help="Use TLS, and verify the service with this CA bundle (PEM).",
    ),
    click.option(
        "--tls-cert-file",
        type=FILE,
        envvar="FRD_TLS_CERT_FILE",
        help="Client certificate (PEM), followed by its key.",
    ),
    click.option(
        "--token-file",
        type=FILE,
        envvar="FRD_TOKEN_FILE",
        help="File whose first word is the bearer token.",
    ),
    click.option(
        "--insecure", is_flag=True, help="Send the token to another machine even without TLS."
    ),
)


_CONTEXT = click.option(
    "--context",
    metavar="NAME",
    envvar="FRD_CONTEXT",
    shell_complete=context_names,
    help="The service of this context, see `frd context`.  [default: the one in use]",
)
_KEYS = Context.__struct_fields__


def with_options(function: _F, options: Sequence[Callable[[_F], _F]]) -> _F:
    for option in reversed(options):
        function = option(function)
    return function


def service_options(function: _F) -> Callable[..., Any]:
    """Adds the options of address, TLS and token; the command gets a `client`."""

    @functools.wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        client = client_of(click.get_current_context())
        rest = {key: value for key, value in given.items() if key not in (*_KEYS, "context")}
        return function(*args, client=client, **rest)

    return with_options(command, (*SERVICE, _CONTEXT))


def client_of(of: click.Context, timeout_s: float = TIMEOUT_S) -> Client:
    """As options, else variables, else the context say.

    A context is one service with its credentials: if an option, or a variable without --context,
    names a service, that gets no credentials of a context.
    """
    source = of.get_parameter_source
    weaker = [ParameterSource.DEFAULT]
    if source("context") is ParameterSource.COMMANDLINE:
        weaker.append(ParameterSource.ENVIRONMENT)
        if source("http") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--context: names a service, as --http does: leave one out", of)
    given = {key: of.params[key] for key in _KEYS}
    if source("http") in weaker and (name := of.params["context"] or contexts.load().current):
        stored = msgspec.structs.asdict(contexts.load().named(name))
        given |= {key: value for key, value in stored.items() if value and source(key) in weaker}
    return make_client(Context(**given), timeout_s)


def make_client(service: Context, timeout_s: float = TIMEOUT_S) -> Client:
    """
    Raises:
        ConfigError: an address or a file that cannot be used, or a token that all could read.
    """
    addresses, schemes = zip(*map(_address, service.http.split(",")), strict=True)
    if len({scheme == "https" for scheme in schemes}) > 1:
        raise ConfigError(
            f"address: {service.http!r}: some with TLS and some without: write all alike"
        )
    tls = None
    if "https" in schemes or service.tls or service.tls_ca_file or service.tls_cert_file:
        tls = tls_context(service.tls_ca_file, service.tls_cert_file)
    first, *others = addresses
    if service.token_file is None:
        return Client(first, timeout_s, others=others, tls=tls)
    is_local = all(is_loopback(split_address(address)[0]) for address in addresses)
    if tls is None and not service.insecure and not is_local:
        raise ConfigError(
            f"--token-file: {service.token_file}: the token would be sent unencrypted: add "
            "--tls-ca-file or --tls, or accept it with --insecure"
        )
    token = read_token("--token-file", service.token_file)
    return Client(first, timeout_s, others=others, tls=tls, token=token)


def _address(text: str) -> tuple[str, str]:
    is_https = text.strip().lower().startswith("https:")
    return without_scheme(text, _HTTPS_PORT if is_https else _HTTP_PORT)


_SERVE = (
    click.option("--config", type=PATH, metavar="FILE", help="TOML file; see `frd check`."),
    click.option(
        "--grpc", metavar="HOST:PORT", help="Where agents connect.  [default: 127.0.0.1:9373]"
    ),
    click.option(
        "--http", metavar="HOST:PORT", help="Page, metrics and API.  [default: 127.0.0.1:9374]"
    ),
    click.option(
        "--data-dir",
        type=PATH,
        metavar="DIR",
        help="Findings, journal, dumps.  [default: $XDG_STATE_HOME/frd, else ~/.local/state/frd]",
    ),
    click.option(
        "--stall-after",
        type=float,
        metavar="SECONDS",
        help="Floor of the stall threshold.  [default: 10]",
    ),
    click.option("--no-web", is_flag=True, default=None, help="Serve no page for browsers."),
)


def serve_options(function: _F) -> _F:
    """Adds the options of `frd serve` that `frd up` passes on."""
    return with_options(function, _SERVE)


def serve_flags(
    grpc: str | None,
    http: str | None,
    data_dir: Path | None,
    stall_after: float | None,
    no_web: bool | None,
) -> dict[str, object]:
    """The keys of the configuration that `serve_options` set; None: not given."""
    return {
        "grpc": grpc,
        "http": http,
        "data_dir": data_dir,
        "policy.stall_after_s": stall_after,
        "web": False if no_web else None,
    }


def json_option(function: _F) -> _F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def output_option(function: _F) -> Callable[..., Any]:
    """Adds -o and --json; the command gets a `form`: json, name or wide, else drawn on a terminal
    and lines in a pipe."""

    @functools.wraps(function)
    def command(*args: Any, output: str | None, as_json: bool, **given: Any) -> Any:
        usual = "drawn" if console().is_terminal else "lines"
        return function(*args, form="json" if as_json else output or usual, **given)

    words = "json, names only, or more columns; else a line each in a pipe."
    forms = click.Choice(["json", "name", "wide"])
    return click.option("-o", "--output", type=forms, help=words)(json_option(command))


def ranks(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Callback of an option: a set of ranks such as ``0-3,7``, as sorted numbers."""
    try:
        return None if value is None else unfold_ranks(value)
    except ValueError as error:
        raise click.BadParameter(str(error).removeprefix("ranks: ")) from None


def when(_: click.Context, __: click.Parameter, value: str | None, sign: int = -1) -> str | None:
    """Callback of an option: `value` is a time or an age (`7d`), or with `sign` 1 a span from now;
    the result is ISO 8601 in UTC."""
    try:
        if span := re.fullmatch(r"(\d{1,6})([mhd])", value or ""):
            ns = int(span[1]) * _SPANS_S[span[2]] * 1_000_000_000
            return utc_text(time.time_ns() + sign * ns)
        return None if value is None else utc_text(utc_ns(value))
    except ValueError as error:
        raise click.BadParameter(f"{error}, or 7d, 12h, 30m") from None


def ranks_option(words: str) -> Callable[[_F], _F]:
    return click.option("--ranks", metavar="0-3,7", callback=ranks, help=words)


def since_option(words: str) -> Callable[[_F], _F]:
    help_ = f"{words} then or later: 7d, 12h, 30m ago, or a time."
    return click.option("--since", metavar="WHEN", callback=when, help=help_)


class SeveralValues(click.Command):
    """A command whose option ``--traces`` takes all values up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*_repeated(args, "--traces")])


def _repeated(args: Iterable[str], option: str) -> Iterator[str]:
    """``--traces a b`` as ``--traces a --traces b``."""
    is_named, has_value = False, False
    for word in args:
        if word.startswith("-") and word != "-":
            is_named, has_value = word == option, False
        elif is_named:
            if has_value:
                yield option
            has_value = True
        yield word


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(json_bytes(value), indent=2).decode("utf-8"))


class _Screen(Console):
    def print(self, *objects: Any, crop: bool = False, **how: Any) -> None:
        """A line that is not to be broken, such as a command, is not cut at the window's edge."""
        super().print(*objects, crop=crop, **how)


def console() -> Console:
    """Rich uses colours, redraws and wraps only if stdout is a terminal."""
    screen = _Screen(highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen.width = _NEVER_WRAPS
    return screen


@contextmanager
def progress(what: str, unit: int = 1) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, only if that is a terminal.

    The `with` block gets a function to call with the number done and the total; `unit` of them are
    shown as one.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda n, total: bar.update(task, completed=n // unit, total=total // unit)


# -- what shells complete from the service ------------------------------------------------------

_SHELL_WAITS_S = 1.0
"""A shell waits for the answer; after an error there are no proposals."""


def job_names(of: click.Context, _: click.Parameter, typed: str) -> list[str]:
    return _known(of, "/api/v1/jobs", "jobs", "job", typed)


def finding_ids(of: click.Context, _: click.Parameter | None, typed: str) -> list[str]:
    return _known(of, "/api/v1/findings", "findings", "id", typed)


def _known(of: click.Context, path: str, key: str, name: str, typed: str) -> list[str]:
    """Not what a shell would have to quote: a job may have any name, also that of a command."""
    try:
        known = [str(one[name]) for one in client_of(of, _SHELL_WAITS_S).get(path)[key]]
    except (FrdError, click.ClickException, LookupError, TypeError):
        return []
    return [one for one in known if one.startswith(typed) and shlex.quote(one) == one]
