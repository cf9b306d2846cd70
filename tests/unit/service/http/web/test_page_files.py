"""The web page: its paths, its headers, and nothing but its files."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import frd
from frd.service.http.routes import WebOptions
from frd.service.http.web.pages import Pages, is_page
from tests.world.http_api import Client, Service

FOLDER = Path(frd.__file__).parent / "web"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())


@pytest.fixture
def client(service: Service) -> Client:
    return Client(service)


@pytest.mark.parametrize(
    "path", ["/", "/history", "/jobs/train", "/jobs/a/b c\nd", "/findings/ab12", "/findings/"]
)
def test_each_path_of_people_is_the_page(client: Client, path: str) -> None:
    """A link to a job or a finding leads to the one page, also if it is unknown here."""
    answer = client.get(path)
    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    assert answer.body == (FOLDER / "index.html").read_bytes()
    assert is_page(path)


def test_an_unknown_path(client: Client) -> None:
    """A browser gets the page, with status 404 and whatever it has kept; a program gets JSON, also
    for a method that a path does not take."""
    known = client.get("/").headers["etag"]
    answer = client.get("/findngs/7", accept="text/html,*/*;q=0.8", if_none_match=known)
    assert (answer.status, answer.body) == (404, (FOLDER / "index.html").read_bytes())
    assert "content-security-policy" in answer.headers
    for path in ("/findngs/7", "/api/v2/jobs", "/x/../etc\n"):
        assert client.get(path, accept="*/*").json["error"].startswith("path: ")
    assert client.post("/findngs/7", {}).status == 405
    assert client.post("/api/v1/jobs", {}).status == 405


def test_what_the_page_may_do(client: Client) -> None:
    """It runs the scripts of the service and no inline ones, asks no other host, and is in no frame
    of another page."""
    for path in ("/", "/web/js/app.js"):
        headers = client.get(path).headers
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


def test_all_files_are_served(client: Client) -> None:
    """Each with the type that `nosniff` makes a browser insist on."""
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert {".js", ".css", ".html"} <= {path.suffix for path in FILES}
    for path in FILES:
        answer = client.get(f"/web/{path.relative_to(FOLDER).as_posix()}")
        assert (answer.status, answer.body) == (200, path.read_bytes())
        if path.suffix in types:
            assert answer.content_type.partition(";")[0] == types[path.suffix]


def test_what_the_page_refers_to_exists(client: Client) -> None:
    """Scripts, styles and icons of the page are files of the service."""
    found = re.findall(r'(?:src|href)="(/web/[^"]+)"', client.get("/").body.decode())
    assert found
    for path in found:
        assert client.get(path).status == 200, path


def test_a_browser_that_has_a_file(client: Client) -> None:
    """It asks with the tag that it has: 304 without a body, with the headers that confine it."""
    first = client.get("/web/app.css")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/web/app.css", if_none_match=tag)
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert "content-security-policy" in again.headers
    assert client.get("/web/app.css", if_none_match='W/"other"').status == 200
    assert client.get("/").headers["etag"] != tag


def test_a_browser_that_unpacks(client: Client) -> None:
    """With gzip the file is smaller, and the same."""
    plain = client.get("/web/js/app.js")
    packed = client.get("/web/js/app.js", accept_encoding="gzip, deflate")
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
def test_nothing_else_is_served(client: Client, name: str) -> None:
    """A name is looked up among the files that were read at the start: a path leads nowhere."""
    answer = client.get(f"/web/{name}")
    assert answer.status == 404
    assert answer.json["error"].startswith(f"file: {name!r}: unknown here")


def test_a_service_without_a_page(service: Service) -> None:
    """`frd serve --no-web`: its paths are unknown ones, and the API is as usual."""
    client = Client(service, WebOptions(has_page=False))
    for path in ("/", "/history", "/jobs/train", "/findings/x", "/web/app.css"):
        answer = client.get(path)
        assert (answer.status, answer.json["error"]) == (
            404,
            f"path: {path}: unknown path: see the documented API",
        )
    assert client.get("/api/v1/jobs").status == 200


def test_the_page_is_only_read(client: Client) -> None:
    """Other methods than GET and HEAD are refused, as everywhere."""
    assert client.send("HEAD", "/").status == 200
    for path in ("/", "/jobs/train", "/web/app.css", "/api/v1/jobs/train", "/api/v1/findings/x"):
        for method in ("POST", "PUT", "DELETE"):
            answer = client.send(method, path)
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
