"""Signing in with a browser: the token becomes a cookie, which counts like the header."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Callable
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.service.access.grants import Tokens
from frd.service.http.routes import WebOptions
from frd.service.http.web.pages import Pages, is_page
from frd.service.http.web.session import COOKIE
from tests.world.http_api import Answer, Client, Service, finding

OPERATOR, READER, AGENT = "o" * 32, "r" * 32, "a" * 32
PATH = "/api/v1/session"
OUT = {"required": True, "signed_in": False, "role": None}


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    path = tmp_path / "tokens"
    path.write_text(f"{OPERATOR} role=operator\n{READER} role=reader\n{AGENT} role=agent\n")
    path.chmod(0o600)
    return Tokens(path)


@pytest.fixture
def client(service: Service, tokens: Tokens) -> Client:
    return Client(service, WebOptions(tokens))


def sign_in(client: Client, token: str, **more: Any) -> Answer:
    return client.post(PATH, {"token": token}, **more)


def cookie_of(answer: Answer) -> SimpleCookie:
    return SimpleCookie(answer.headers["set-cookie"])


def encoded(token: str) -> str:
    return f"{COOKIE}={base64.urlsafe_b64encode(token.encode()).decode()}"


def test_a_service_without_tokens(service: Service) -> None:
    """Everybody may do everything, and there is nothing to sign in with."""
    client = Client(service)
    everything = {"required": False, "signed_in": True, "role": "operator"}
    assert client.get(PATH).json == everything
    answer = sign_in(client, "whatever")
    assert (answer.status, answer.json) == (200, everything)
    assert "set-cookie" not in answer.headers
    assert client.send("DELETE", PATH).json == everything


@pytest.mark.parametrize(("token", "role"), [(READER, "reader"), (OPERATOR, "operator")])
def test_signing_in(client: Client, token: str, role: str) -> None:
    """The answer says the role, and the cookie is a session that scripts cannot read."""
    answer = sign_in(client, f" {token}\n", origin="http://frd")
    assert (answer.status, answer.json) == (
        200,
        {"required": True, "signed_in": True, "role": role},
    )
    morsel = cookie_of(answer)[COOKIE]
    assert (morsel["httponly"], morsel["samesite"].lower(), morsel["path"]) == (True, "strict", "/")
    assert (morsel["max-age"], morsel["expires"], morsel["domain"]) == ("", "", "")
    assert not morsel["secure"]
    shown = client.get(PATH, cookie=f"{COOKIE}={morsel.value}")
    assert shown.json == {"required": True, "signed_in": True, "role": role}
    assert client.get(PATH).json == OUT


def test_the_cookie_is_for_https_only(service: Service, tokens: Tokens) -> None:
    """By HTTPS, and behind a proxy that speaks it: browsers send it over nothing else, and take one
    of that name from no other host. The service takes both names, the safe one first."""
    plain, behind = (
        Client(service, WebOptions(tokens, public_url=url)) for url in ("", "https://frd.example")
    )
    for answer in (sign_in(plain, READER, scheme="https"), sign_in(behind, READER)):
        morsel = cookie_of(answer)["__Host-frd_token"]
        assert (morsel["secure"], morsel["path"], morsel["domain"]) == (True, "/", "")
        safe = f"__Host-frd_token={morsel.value}"
        other = encoded("x" * 32)
        for cookie in (safe, f"{other}; {safe}", f"{safe}; {other}"):
            assert plain.get("/api/v1/jobs", cookie=cookie).status == 200
    answer = behind.send("DELETE", PATH, headers={"cookie": safe})
    assert cookie_of(answer)["__Host-frd_token"]["max-age"] == "0"
    by_http = Client(service, WebOptions(tokens, public_url="http://frd.example"))
    assert not cookie_of(sign_in(by_http, READER, scheme="https"))[COOKIE]["secure"]


PUBLIC = "https://Frd.example:443/"


@pytest.mark.parametrize(
    ("public_url", "origin", "status"),
    [
        ("", "http://frd", 200),
        ("", "https://evil.example", 403),
        ("", "http://frd.evil.example", 403),
        ("", "http://frd:81", 403),
        ("", "null", 403),
        ("", "frd", 403),
        ("", "http://[", 403),
        ("", "http://frd@evil.example", 403),
        (PUBLIC, "https://frd.example", 200),
        (PUBLIC, "http://frd", 200),
        (PUBLIC, "http://frd.example", 403),
        (PUBLIC, "https://frd.example:444", 403),
        (PUBLIC, "https://frd.example:x", 403),
        (PUBLIC, "https://evil.example", 403),
        (PUBLIC, "https://frd.example.evil.example", 403),
        (PUBLIC, "null", 403),
    ],
)
def test_another_site_cannot_sign_a_user_in_or_out(
    service: Service, tokens: Tokens, public_url: str, origin: str, status: int
) -> None:
    """Its request is refused before the token is looked at. A proxy replaces the header Host: the
    origin of `public_url` is that of the page, with the port or without, if it is the usual one.
    Scheme, host and port must be the same."""
    client = Client(service, WebOptions(tokens, public_url=public_url))
    signed_in = sign_in(client, READER, origin=origin)
    signed_out = client.send("DELETE", PATH, headers={"origin": origin})
    assert (signed_in.status, signed_out.status) == (status, status)
    if status == 403:
        assert signed_in.json["error"].partition(":")[0] == "origin"
        assert "set-cookie" not in signed_out.headers


def test_refused_sign_ins_are_counted(service: Service, tokens: Tokens) -> None:
    """As other requests with an unknown token, or with one whose role may not read."""
    web = WebOptions(tokens)
    client = Client(service, web)
    requests: list[Callable[[], Answer]] = [
        lambda: sign_in(client, "x" * 32),
        lambda: client.get(PATH, authorization=f"Bearer {'x' * 32}"),
        lambda: client.get(PATH, cookie=encoded("x" * 32)),
        lambda: client.get("/api/v1/jobs"),
    ]
    for request in requests:
        before = web.refusals.http["token"]
        request()
        assert +web.refusals.http == {"token": before + 1}
    client.get(PATH)
    client.get(PATH, authorization=f"Bearer {READER}")
    sign_in(client, READER)
    assert +web.refusals.http == {"token": 4}
    sign_in(client, AGENT)
    assert +web.refusals.http == {"token": 4, "role": 1}


def test_no_cache_keeps_what_a_cookie_authorizes(client: Client) -> None:
    """Answers of the API say so, refused ones too, unless they have another rule."""
    for path, cookie in (("/api/v1/jobs", encoded(READER)), ("/api/v1/jobs", ""), (PATH, "")):
        headers = client.get(path, cookie=cookie).headers
        assert headers["cache-control"] == "private, no-store"
    summary = client.get("/api/v1/jobs/train", "view=summary", cookie=encoded(READER))
    own = summary.headers["cache-control"]
    assert own in ("no-cache", "private, no-store")
    assert client.get("/").headers["cache-control"] == "no-cache"
    assert "cache-control" not in client.get("/-/healthy").headers


@pytest.mark.parametrize("token", [AGENT, "x" * 32, READER[:-1], f"{READER} x", "é" * 20])
def test_a_token_that_is_unknown_or_for_agents(client: Client, token: str) -> None:
    """401, and no cookie; the answer does not say which of both it is."""
    answer = sign_in(client, token)
    assert (answer.status, answer.json["error"]) == (
        401,
        "token: unknown, or only for agents: ask who runs the service for one",
    )
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"token": " "}, "token: 0 characters"),
        ({"token": "x" * 3000}, "token: 3000 characters"),
        ({"token": 1}, "token"),
        ({}, "token"),
        ({"token": READER, "role": "operator"}, "unknown field"),
        (b"\xff", "body"),
    ],
)
def test_a_body_that_cannot_be_used(client: Client, body: object, says: str) -> None:
    """400 that says what is wrong; of another type than JSON, which other sites may send, too."""
    answer = client.post(PATH, body)
    assert (answer.status, says in answer.json["error"]) == (400, True)
    assert client.post(PATH, {"token": READER}, content_type="text/plain").status == 400


def test_signing_out(client: Client) -> None:
    """The cookie ends, with the attributes that it has, without which browsers would keep it."""
    cookie = encoded(READER)
    answer = client.send("DELETE", PATH, headers={"cookie": cookie, "origin": "http://frd"})
    assert (answer.status, answer.json) == (200, OUT)
    morsel = cookie_of(answer)[COOKIE]
    assert (morsel.value, morsel["max-age"], morsel["path"]) == ("", "0", "/")
    assert morsel["httponly"]
    assert client.get("/api/v1/jobs", cookie=f"{COOKIE}=").status == 401


# -- what the cookie is good for ---------------------------------------------------------------


def test_the_cookie_counts_like_the_header(client: Client) -> None:
    """A reader reads; what needs an operator is refused, with the reader's role as reason. A
    command that sends a token means that one, whatever cookie comes with it."""
    cookie = encoded(READER)
    assert client.get("/metrics", cookie=cookie).status == 200
    close = f"/api/v1/findings/{finding(1).id}/close"
    for path, body in (("/api/v1/jobs/train/dumps", {}), (close, {"because": "x"})):
        assert client.post(path, body, cookie=cookie).status == 403
    assert client.get("/api/v1/jobs").status == 401
    assert client.get("/api/v1/jobs", cookie=f"other=1; {cookie}; more=2").status == 200
    assert client.get("/api/v1/dumps/x", cookie=cookie).status == 403
    assert client.get("/api/v1/dumps/x", cookie=encoded(OPERATOR)).status == 404
    assert client.get("/api/v1/jobs", cookie=encoded(AGENT)).status == 403
    assert client.get("/api/v1/jobs", cookie=encoded("x" * 32)).status == 401
    good, bad = f"Bearer {READER}", f"Bearer {'x' * 32}"
    assert client.get("/api/v1/jobs", authorization=bad, cookie=cookie).status == 401
    assert client.get("/api/v1/jobs", authorization=good, cookie=encoded("x" * 32)).status == 200
    assert client.get("/api/v1/jobs", authorization="Basic x", cookie=cookie).status == 401


@pytest.mark.parametrize("value", ["", "x", "====", "a" * 5, "/w==", "é", '"', READER, "%20"])
def test_a_cookie_that_is_none(client: Client, value: str) -> None:
    """Not Base64, or not text: no token, and no fault."""
    assert client.get("/api/v1/jobs", cookie=f"{COOKIE}={value}").status == 401
    assert client.get(PATH, cookie=f"{COOKIE}={value}").json == OUT


def test_what_a_page_may_do_with_the_cookie(client: Client) -> None:
    """An operator is signed in. The page of the service may close a finding, another site may not;
    neither takes a dump: browsers send its origin, and commands send none."""
    cookie = encoded(OPERATOR)
    close, because = f"/api/v1/findings/{finding(1).id}/close", {"because": "x"}
    dumps, own, evil = "/api/v1/jobs/train/dumps", "http://frd", "https://evil.example"
    for origin, path, body in ((own, dumps, {}), (evil, dumps, {}), (evil, close, because)):
        answer = client.post(path, body, origin=origin, cookie=cookie)
        assert (answer.status, answer.json["error"].partition(":")[0]) == (403, "origin")
    assert client.service.asked == []
    assert client.post(close, because, origin=own, cookie=cookie).status == 200
    assert client.post("/api/v1/jobs/train/dumps", {}, cookie=cookie).status == 201


def test_what_needs_no_token(client: Client) -> None:
    """Supervisors, links to runbooks, and the page, which reveals nothing; everything else does."""
    for path in (
        "/-/healthy", "/-/ready", PATH, "/runbooks/", "/", "/history", "/jobs/train",
        "/findings/ab12", "/web/app.css",
    ):  # fmt: skip
        assert client.get(path).status == 200, path
    for path in (
        "/metrics", "/api/v1/jobs", "/api/v1/jobs/train", "/api/v1/health", "/api/v1/events",
        "/api/v1/findings", f"/api/v1/findings/{finding(1).id}/timeline", "/api/v1/history",
        "/api/v1/cluster", "/api/v1/session/x", "/web", "/jobs", "//", "/nothing", "",
    ):  # fmt: skip
        answer = client.get(path)
        assert (answer.status, answer.headers.get("www-authenticate")) == (401, "Bearer"), path


# -- the web page: its paths, its headers, and nothing but its files -------------------------------


FOLDER = Path(frd.__file__).parent / "web"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())


@pytest.fixture
def visitor(service: Service) -> Client:
    return Client(service)


@pytest.mark.parametrize(
    "path", ["/", "/history", "/jobs/train", "/jobs/a/b c\nd", "/findings/ab12", "/findings/"]
)
def test_each_path_of_people_is_the_page(visitor: Client, path: str) -> None:
    """A link to a job or a finding leads to the one page, also if it is unknown here."""
    answer = visitor.get(path)
    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    assert answer.body == (FOLDER / "index.html").read_bytes()
    assert is_page(path)


def test_an_unknown_path(visitor: Client) -> None:
    """A browser gets the page, with status 404 and whatever it has kept; a program gets JSON, also
    for a method that a path does not take."""
    known = visitor.get("/").headers["etag"]
    answer = visitor.get("/findngs/7", accept="text/html,*/*;q=0.8", if_none_match=known)
    assert (answer.status, answer.body) == (404, (FOLDER / "index.html").read_bytes())
    assert "content-security-policy" in answer.headers
    for path in ("/findngs/7", "/api/v2/jobs", "/x/../etc\n"):
        assert visitor.get(path, accept="*/*").json["error"].startswith("path: ")
    assert visitor.post("/findngs/7", {}).status == 405
    assert visitor.post("/api/v1/jobs", {}).status == 405


def test_what_the_page_may_do(visitor: Client) -> None:
    """It runs the scripts of the service and no inline ones, asks no other host, and is in no frame
    of another page."""
    for path in ("/", "/web/js/app.js"):
        headers = visitor.get(path).headers
        policy = dict(
            part.strip().partition(" ")[::2]
            for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        for what in ("script-src", "style-src", "img-src", "connect-src", "form-action"):
            assert policy[what] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_all_files_are_served(visitor: Client) -> None:
    """Each with the type that `nosniff` makes a browser insist on."""
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert {".js", ".css", ".html"} <= {path.suffix for path in FILES}
    for path in FILES:
        answer = visitor.get(f"/web/{path.relative_to(FOLDER).as_posix()}")
        assert (answer.status, answer.body) == (200, path.read_bytes())
        if path.suffix in types:
            assert answer.content_type.partition(";")[0] == types[path.suffix]


def test_what_the_page_refers_to_exists(visitor: Client) -> None:
    """Scripts, styles and icons of the page are files of the service."""
    found = re.findall(r'(?:src|href)="(/web/[^"]+)"', visitor.get("/").body.decode())
    assert found
    for path in found:
        assert visitor.get(path).status == 200, path


def test_a_browser_that_has_a_file(visitor: Client) -> None:
    """It asks with the tag that it has: 304 without a body, with the headers that confine it."""
    first = visitor.get("/web/app.css")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    again = visitor.get("/web/app.css", if_none_match=tag)
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert "content-security-policy" in again.headers
    assert visitor.get("/web/app.css", if_none_match='W/"other"').status == 200
    assert visitor.get("/").headers["etag"] != tag


def test_a_browser_that_unpacks(visitor: Client) -> None:
    """With gzip the file is smaller, and the same."""
    plain = visitor.get("/web/js/app.js")
    packed = visitor.get("/web/js/app.js", accept_encoding="gzip, deflate")
    assert packed.headers["content-encoding"] == "gzip"
    assert (packed.headers["etag"], packed.headers["vary"]) == (
        plain.headers["etag"],
        "accept-encoding",
    )
    assert len(packed.body) < len(plain.body)
    assert gzip.decompress(packed.body) == plain.body
    assert "content-encoding" not in plain.headers


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing.js",
        "js",
        "js/",
        "../__init__.py",
        "../../etc/passwd",
        "js/../index.html",
        "/etc/passwd",
        "%2e%2e/__init__.py",
        "..%2f__init__.py",
        "..\\__init__.py",
        "index.html\0",
        "a\nb",
        "\udcff",
    ],
)
def test_nothing_else_is_served(visitor: Client, name: str) -> None:
    """A name is looked up among the files that were read at the start: a path leads nowhere."""
    answer = visitor.get(f"/web/{name}")
    assert answer.status == 404
    assert answer.json["error"].startswith(f"file: {name!r}: unknown here")


def test_a_service_without_a_page(service: Service) -> None:
    """`frd serve --no-web`: its paths are unknown ones, and the API is as usual."""
    visitor = Client(service, WebOptions(has_page=False))
    for path in ("/", "/history", "/jobs/train", "/findings/x", "/web/app.css"):
        answer = visitor.get(path)
        assert (answer.status, answer.json["error"]) == (
            404,
            f"path: {path}: unknown path: see the documented API",
        )
    assert visitor.get("/api/v1/jobs").status == 200


def test_the_page_is_only_read(visitor: Client) -> None:
    """Other methods than GET and HEAD are refused, as everywhere."""
    assert visitor.send("HEAD", "/").status == 200
    for path in ("/", "/jobs/train", "/web/app.css", "/api/v1/jobs/train", "/api/v1/findings/x"):
        for method in ("POST", "PUT", "DELETE"):
            answer = visitor.send(method, path)
            assert (answer.status, f"no {method} here" in answer.json["error"]) == (405, True)


def test_files_are_read_once(tmp_path: Path) -> None:
    """A file that changes or goes away on the disk does not change the page."""
    (tmp_path / "sub").mkdir()
    for name in ("index.html", "sub/a.js", "NOTICE"):
        (tmp_path / name).write_text(name)
    pages = Pages(tmp_path)
    (tmp_path / "index.html").unlink()
    (tmp_path / "sub/a.js").write_text("changed")
    assert {name: file.plain.decode() for name, file in pages._files.items()} == {
        "index.html": "index.html",
        "sub/a.js": "sub/a.js",
        "NOTICE": "NOTICE",
    }
    assert pages._files["NOTICE"].media_type == "text/plain; charset=utf-8"
