"""Configuration: what overrides what, and how a mistake is reported."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from frd import config
from frd.address import join_address, split_address, without_scheme
from frd.credentials import token_in
from frd.engine.policy import Policy
from frd.errors import ConfigError
from frd_agent import config as agent_config


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("FRD_"):
            monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    path = folder / "frd.toml"
    path.write_text(text, "utf-8")
    return path


def test_defaults_are_those_of_the_engine() -> None:
    """Without a file, a variable or a flag the engine gets its own defaults."""
    assert config.load().policy == Policy()
    assert config.load() == config.Config()


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each source sets one key more than the source above it, and every key takes the highest."""
    file = written(
        tmp_path, "[policy]\nstall_after_s = 20\nclose_after_s = 20\nlost_after_s = 20\n"
    )
    monkeypatch.setenv("FRD_POLICY__STALL_AFTER_S", "30")
    monkeypatch.setenv("FRD_POLICY__CLOSE_AFTER_S", "30")
    policy = config.load(file, {"policy.stall_after_s": 40.0, "grpc": None}).policy
    assert (policy.stall_after_s, policy.close_after_s, policy.lost_after_s) == (40, 30, 20)
    assert policy.failed_for_s == Policy().failed_for_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stall_after_s = 3", "stall_after_s: unknown key: did you mean policy.stall_after_s?"),
        ("[policy]\nmax_rank = 3", "policy.max_rank: unknown key: did you mean policy.max_ranks?"),
        ("zzz = 1", "zzz: unknown key: see docs/configuration.md for the keys"),
        ("policy = 3", "policy: 3: must be a table of keys"),
        ("[policy]\nstall_after_s = 0.5", "policy.stall_after_s: 0.5: must be greater than or eq"),
        ("[policy]\nstall_after_s = 'soon'", "policy.stall_after_s: 'soon': must be a valid num"),
        ("[policy]\nstall_after_s = inf", "policy.stall_after_s: inf: must be a finite number"),
        ("[policy]\nlost_after_s = 0", "policy.lost_after_s: 0: must be greater than 0"),
        ("[policy]\nmax_pairs = 3", "policy.max_pairs: removed: delete this line"),
        ("[policy]\nmemory_link_s = 3", "policy.memory_link_s: removed: delete this line"),
        ("[policy]\nmemory_horizon_s = 3", "policy.memory_horizon_s: removed: delete this line"),
        ("[cluster]\ndurable = true", "cluster.durable: removed: delete this line"),
        ("[cluster]\nlog_bytes = 3", "cluster.log_bytes: removed: delete this line"),
        ("[policy]\nstall_after_max_s = 5", "policy.stall_after_s: 10: must not exceed policy.st"),
        ("[store]\ndump_count = -1", "store.dump_count: -1: must be greater than or equal to 0"),
        ("grpc = '9373'", "grpc: '9373': write HOST:PORT"),
        ("http = '::1:9374'", "http: '::1:9374': write an IPv6 address in brackets"),
        ("http = 'localhost:70000'", "http: 'localhost:70000': write HOST:PORT"),
        ("[log]\nlevel = 'loud'", "log.level: 'loud': must be 'debug', 'info', 'warning' or 'e"),
        ("notify = 'https://chat'", "notify: set, not shown: must be a list"),
        ("[expected_agents]\nj = 0", "expected_agents.j: 0: must be greater than 0"),
        ("web = 'perhaps'", "web: 'perhaps': must be a valid boolean"),
        ("public_url = 'frd.example'", "public_url: 'frd.example': write http:// or https:// and"),
        ("public_url = 'ftp://frd.example'", "public_url: 'ftp://frd.example': write http:// or"),
        ("public_url = 'https://a b'", "public_url: 'https://a b': write http:// or https:// and"),
        ("public_url = 'https://h:70000'", "public_url: 'https://h:70000': write http:// or http"),
        ("public_url = 'https://h/frd'", "public_url: 'https://h/frd': the page needs all paths o"),
        ("public_url = 'https://h?a=b'", "public_url: 'https://h?a=b': the page needs all paths o"),
        ("public_url = 'https://h/#x'", "public_url: 'https://h/#x': the page needs all paths of"),
        ("alertmanager_url = 'am.example'", "alertmanager_url: 'am.example': write http:// or ht"),
        ("alertmanager_url = 'https://h/a?b'", "alertmanager_url: 'https://h/a?b': has more than"),
        ("public_url = 'https://u:pass@h'", "public_url: set, not shown: holds a user name: leave"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_begins_with_the_key(
    tmp_path: Path, text: str, message: str
) -> None:
    """The error says what is wrong with which key, and what to write."""
    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[policy", "a = '\x00'", "a = b"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    """The error names the broken file and what is wrong in it; a file that is absent is an error,
    never a silent default."""
    with pytest.raises(ConfigError, match=r"^config: .*nope: No such file"):
        config.load(tmp_path / "nope")
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"^config: {path}: .*: write TOML$"):
        config.load(path)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("FRD_POLICY__STALL_AFTR_S", "policy.stall_aftr_s: unknown key: did you mean policy.stal"),
        ("FRD_POLICY__MAX_PAIRS", "policy.max_pairs: removed: delete this line .environment: FRD"),
        ("FRD_POLICI__STALL_AFTER_S", "polici.stall_after_s: unknown key: did you mean policy.st"),
        ("FRD_EXPECTED_AGENTS__JOB", "expected_agents: FRD_EXPECTED_AGENTS__JOB: case is lost"),
        ("FRD_EXPECTED_AGENTS", "environment: .*expected_agents.*: write the value as JSON"),
    ],
)
def test_a_mistake_in_the_environment_is_reported_too(
    monkeypatch: pytest.MonkeyPatch, variable: str, message: str
) -> None:
    """A variable that looks like a key but is not one is an error."""
    monkeypatch.setenv(variable, "{3")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        config.load()


def test_keys_of_the_agent_that_were_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its file and in its environment."""
    with pytest.raises(ConfigError, match=r"^ring_fill: removed: delete this line$"):
        agent_config.load(written(tmp_path, "ring_fill = 0.5"))
    monkeypatch.setenv("FRD_AGENT_OUTBOX_ROWS", "5000")
    with pytest.raises(ConfigError, match=r"^outbox_rows: removed: delete this line \(environment"):
        agent_config.load()


def test_variables_that_are_not_configuration_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tap's variables and Kubernetes' service links are ignored."""
    for name in ("FRD_JOB", "FRD_RUN_DIR", "FRD_PORT_9373_TCP", "FRD_SERVICE_HOST"):
        monkeypatch.setenv(name, "x")
    assert config.load() == config.Config()


def test_toml_of_a_configuration_gives_it_back(tmp_path: Path) -> None:
    """`frd check` prints a file that means the same, odd job names included."""
    odd = {"a.b": 1, 'q"\\\n\x7f': 2, "plain_1": 3, "": 4}
    there = config.load(None, {"expected_agents": odd, "http": "[::1]:0", "log.format": "json"})
    assert config.load(written(tmp_path, config.as_toml(there))) == there


def test_a_relative_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The XDG specification requires it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert config.load().data_dir == tmp_path / "frd"
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    assert config.load().data_dir == Path.home() / ".local/state/frd"


def test_an_address_to_listen_on_may_be_a_url() -> None:
    """A pasted URL works; https without a certificate is an error."""
    assert config.load(flags={"http": "http://127.0.0.1:80/"}).http == "127.0.0.1:80"
    assert config.load(flags={"grpc": "http://127.0.0.1"}).grpc == "127.0.0.1:9373"
    with pytest.raises(ConfigError, match=r"^http: https://.*: needs a certificate: set tls"):
        config.load(flags={"http": "https://127.0.0.1:9374"})
    with pytest.raises(ConfigError, match=r"^grpc: .*: more than an address: write HOST:PORT"):
        config.load(flags={"grpc": "http://127.0.0.1:9373/x"})


@pytest.mark.parametrize("key", ["advertise_grpc", "advertise_http"])
@pytest.mark.parametrize("address", ["frd-1.example", "frd-1:0", "http://frd-1:9374", "::1:9373"])
def test_an_address_that_others_cannot_dial(
    key: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica would advertise no HOST:PORT: that is an error at start, not one of every agent."""
    monkeypatch.setenv(f"FRD_CLUSTER__{key.upper()}", address)
    with pytest.raises(ConfigError, match=f"^cluster.{key}: '{address}': write|: port 0: write"):
        config.load()
    monkeypatch.setenv(f"FRD_CLUSTER__{key.upper()}", "frd-1.example:9373")
    assert getattr(config.load().cluster, key) == "frd-1.example:9373"


@pytest.mark.parametrize(
    ("written_as", "url"),
    [
        ("", ""),
        ("https://frd.example", "https://frd.example"),
        ("HTTPS://Frd.Example:8443/", "https://frd.example:8443"),
        ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]:80"),
    ],
)
def test_the_public_address_has_one_form(written_as: str, url: str) -> None:
    """A link is this address with a path behind it, so that there is no slash at its end."""
    assert config.load(flags={"public_url": written_as}).public_url == url


CERTIFICATE = {"tls.cert_file": "/c", "tls.key_file": "/k"}


@pytest.mark.parametrize(
    ("flags", "bound", "own"),
    [
        ({"http": "127.0.0.1:0"}, "127.0.0.1:4711", "http://127.0.0.1:4711"),
        ({"http": "127.0.0.1:9380"}, "", "http://127.0.0.1:9380"),
        (CERTIFICATE, "127.0.0.1:9374", "https://127.0.0.1:9374"),
        ({"insecure": True}, "0.0.0.0:9374", f"http://{socket.gethostname()}:9374"),
        ({"insecure": True}, "[::]:9374", f"http://{socket.gethostname()}:9374"),
        ({"cluster.advertise_http": "frd-0.frd:80"}, "0.0.0.0:9374", "http://frd-0.frd:80"),
    ],
)
def test_where_a_service_is_found(flags: dict[str, object], bound: str, own: str) -> None:
    """By others at its own address; by people there, too, unless they have to use another one."""
    found = config.load(flags=flags)
    assert config.own_url(found, bound) == config.public_url(found, bound) == own
    elsewhere = config.load(flags={**flags, "public_url": "https://frd.example/"})
    assert config.own_url(elsewhere, bound) == own
    assert config.public_url(elsewhere, bound) == "https://frd.example"


# -- the token in a file, as agents and commands read it -------------------------------------------


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (b"secret-of-32-characters\n", "secret-of-32-characters"),
        (b"  secret role=agent job=train\nother\n", "secret"),
        ("secret  # für uns".encode(), "secret"),
        (b"", ""),
        (b" \n\t\n", ""),
        ("geheimnüs".encode(), ""),
        (b"bell\x07", ""),
        (b"\xff\xfe", ""),
    ],
)
def test_the_first_word_that_a_header_can_carry(data: bytes, token: str) -> None:
    """The text after the token is for the service; a word that no header can carry is no token."""
    assert token_in(data) == token


# -- HOST:PORT in, host and port out, and back -----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:9374", ("127.0.0.1", 9374)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
    ],
)
def test_an_address_is_split_and_joined(text: str, where: tuple[str, int]) -> None:
    """Splitting and joining are inverse."""
    assert split_address(text) == where
    assert join_address(*where) == text


@pytest.mark.parametrize(
    "text",
    ["", "9374", ":9374", "host", "host:", "host:-1", "host:65536", "::1:9374", "h:٣", "[]:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """The message repeats what was written."""
    with pytest.raises(ConfigError, match=r"^address: "):
        split_address(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9374", ("127.0.0.1:9374", "")),
        ("http://host:9374", ("host:9374", "http")),
        (" http://host:9374/ ", ("host:9374", "http")),
        ("HTTPS://host", ("host:9373", "https")),
        ("http://[::1]", ("[::1]:9373", "http")),
        ("http://[::1]:80/", ("[::1]:80", "http")),
    ],
)
def test_a_url_is_an_address_with_a_scheme(text: str, expected: tuple[str, str]) -> None:
    """What a browser shows is taken for what it means."""
    assert without_scheme(text, 9373) == expected


@pytest.mark.parametrize(
    "text", ["ftp://host:1", "http://", "http:///", "http://host:1/metrics", "http://u@host:1"]
)
def test_a_url_that_is_more_than_an_address_is_refused(text: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ConfigError, match=r"^address: .*: write HOST:PORT$"):
        without_scheme(text, 9373)
