"""A usage error is one line with the command whose help to read; shells complete commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from frd.cli import USAGE, run
from frd_agent.cli import run_cli
from tests.world.daemons import run_program
from tests.world.http_service import ENDED, FINDING, Service, answer, says_status

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("frd bogus", "bogus: no such command: see `frd --help`"),
        ("frd statsu", "statsu: no such command, did you mean status: see `frd --help`"),
        ("frd findings --wach", "--wach: no such option, did you mean --watch: see `frd findings"),
        ("frd findings export --format x", "--format: 'x' is not one of 'json', 'csv': see `frd"),
        ("frd findings ab12 --xyzzy", "--xyzzy: no such option: see `frd findings show --help`"),
        ("frd findings -o jsn", "'jsn' is not one of 'json', 'name', 'wide', did you mean json: "),
        ("frd demo --scenario mising_rank", "did you mean missing_rank: see `frd demo --help`"),
        ("frd status --context a --http b:1", "--context: names a service, as --http does: leave"),
        (
            "frd findings --since soon",
            "write a time such as 2026-11-20T10:00:00Z, or 7d, 12h, 30m",
        ),
        ("frd findings export --since soon", "write a time such as"),
        ("frd findings --job a export", "write it after export"),
        ("frd findings close ab12", "--because: missing: see `frd findings close --help`"),
        ("frd check", "--config: missing: see `frd check --help`"),
        ("frd dump -o x --ranks 3-1", "--ranks: '3-1': the range must run upwards: see `frd dump"),
        ("frd dump", "-o / --output: missing: see `frd dump --help`"),
        ("frd analyze --ranks", "--ranks: needs a value: see `frd analyze --help`"),
        ("frd analyze", "missing"),
        ("frd analyze --scheduler tcp://x:1", "missing"),
        ("frd analyze D --scheduler tcp://x:1", "--scheduler: applies to traces: add --traces"),
        ("frd analyze D -o x.csv", "CSV has the spans of traces: add --traces"),
        ("frd analyze --traces T --entries", "--entries: applies to dumps: name"),
        ("frd analyze --traces T --memory", "missing"),
        ("frd analyze --memory", "FILE..: missing"),
        ("frd analyze --memory .", "is a folder: name the files"),
        ("frd analyze --memory a --entries", "--entries: applies to dumps"),
        ("frd analyze --memory a --stall-after 1", "--stall-after: applies to dumps"),
        ("frd analyze --memory a --min-rise much", "much: not a number of bytes: write 67108864"),
        ("frd analyze . --plot a.svg", "--plot: applies to files of telemetry: add --memory"),
        ("frd analyze . --clock-uncertainty 1", "add --memory"),
        *(
            (f"frd analyze --memory a {option} {value}", f"{option}: {value}: out of range: write")
            for option in ("--warmup", "--clock-uncertainty")
            for value in ("nan", "inf", "1e+300")
        ),
        ("frd-agent run --service nowhere", "service: 'nowhere': "),
        ("frd status x", "x: unexpected argument: see `frd status --help`"),
        *(
            (f"frd status --http {typed}", "write")
            for typed in (
                *("http://127.0.0.1:9374/api/v1", "ftp://127.0.0.1:21", "http://u:p@h:1"),
                *("https://a:1,http://b:1", "https://a:1,b:1", "a:1,", "a:1,,b:1"),
            )
        ),
        ("frd status --watch --json", "--watch: cannot be combined with --json: leave one out: s"),
        ("frd-agent bogus", "bogus: no such command: see `frd-agent --help`"),
        ("frd-agent run --x", "--x: no such option: see `frd-agent run --help`"),
        ("frd-agent run --log-format xml", "--log-format: 'xml' is not one of 'text', 'json': see"),
        ("frd-agent exec", "COMMAND...: missing: see `frd-agent exec --help`"),
    ],
)
def test_a_usage_error_is_one_line(
    typed: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``frd: error: what: which: what to do``, exit code 2, for both programs."""
    program, *words = typed.split()
    assert (run if program == "frd" else run_cli)(words) == USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("frd: error: ")
    assert err.count("\n") == 1
    if "did you mean" not in err:  # older releases of click do not guess
        says = says.replace(", did you mean status", "")
    assert says in err


def test_a_program_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, both print their help to stderr; exit code 2."""
    for start, program in ((run, "frd"), (run_cli, "frd-agent")):
        assert start([]) == USAGE
        out, err = capsys.readouterr()
        assert (out, err.splitlines()[0][: len(program) + 7]) == ("", f"Usage: {program}")


def test_bash_completes_jobs_and_findings(service: Service, tmp_path: Path) -> None:
    """Names and ids of the service that the line names, not one that a shell would execute; without
    a service, nothing and no error."""
    says_status(service, {**ENDED, "job": "a$(reboot)"}, {**ENDED, "job": "al'l"})
    service.says("/api/v1/findings", answer(FINDING, {**FINDING, "id": "cd34"}))
    at = f"--http {service.address}"
    (tmp_path / "frd").mkdir()
    (tmp_path / "frd/contexts.toml").write_text("[contexts.prod]\nhttp = 'h:1'\n")
    words = {
        f"frd status {at} --job a": "a/b",
        f"frd findings {at} a": "ack assign ab12",
        f"frd findings show {at} c": "cd34",
        f"frd findings ack {at} a": "ab12",
        f"frd findings silence {at} c": "cd34",
        f"frd findings silence {at} --job a": "a/b",
        f"frd report {at} a": "ab12",
        f"frd dump {at} --finding a": "ab12",
        "frd status --context p": "prod",
        "frd status --http 127.0.0.1:1 --job a": "",
        "frd findings --http nowhere --job a": "",
    }
    done = completed(*words, XDG_CONFIG_HOME=str(tmp_path))
    assert dict(zip(words, done, strict=True)) == words


def completed(*typed: str, **environment: str) -> list[str]:
    """What a real bash proposes for each command line."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    lines = "\n".join(f"complete_it {line}" for line in typed)
    script = f"""
        eval "$(frd completion bash)"
        complete_it() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
                        "_$(tr - _ <<< "$1")_completion" "$1"; echo "${{COMPREPLY[*]}}"; }}
        {lines}
    """
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = run_program([bash, "-c", script], env=os.environ | path | environment)
    assert done.stderr == ""
    return [line.strip() for line in done.stdout.splitlines()]


def test_bash_completes_commands_and_options() -> None:
    """A real bash with the script of `frd completion bash`: both programs, subcommands, options."""
    words = {
        "frd st": "status",
        "frd findings --si": "--since",
        "frd findings cl": "close",
        "frd completion ''": "bash zsh fish",
        "frd-agent ex": "exec",
    }
    assert dict(zip(words, completed(*words), strict=True)) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_for_both_programs(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each script names both programs, with the variables that call click's completion."""
    assert run(["completion", shell]) == 0
    out = capsys.readouterr().out
    for word in (f"_FRD_COMPLETE={shell}_complete", f"_FRD_AGENT_COMPLETE={shell}_complete"):
        assert word in out


# -- how the two daemons set gRPC up ---------------------------------------------------------------


_AT_IMPORT = """
import os, runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder())
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("frd", ["serve", "--data-dir", "data"]), ("frd_agent", ["run", "--run-dir", "run"])],
)
def test_threads_of_the_event_engine_are_off(
    module: str, arguments: list[str], tmp_path: Path
) -> None:
    """gRPC reads the variable when it is imported: by then it is set, and gRPC knows the names."""
    command = [sys.executable, "-c", _AT_IMPORT, module, *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    value = _run(command, env, tmp_path).stdout.strip()
    assert "-event_engine_client" in value
    used = [sys.executable, "-c", "import grpc.aio; grpc.insecure_channel('127.0.0.1:1')"]
    assert not _run(used, env | {"GRPC_EXPERIMENTS": value}, tmp_path).stderr


def _run(command: list[str], env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
