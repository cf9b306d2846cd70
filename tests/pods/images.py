"""`python -m tests.pods.images`: the images that these tests need, made without a registry.

- the *base*: Debian by debootstrap, with the Python that runs this below /usr/local, under the very
  name that the Dockerfile has as its BASE. It replaces that image, which a machine without access
  to a registry cannot get: the same Debian and the same minor version of Python;
- *frd*: what the Dockerfile builds, unchanged, under the name that the chart uses;
- *training*: the base with torch, which is mounted, not copied, and a job that can be broken;
- *systemd*: the base with systemd as PID 1.

An image is made again only if what it is made of has changed. pip's settings are those of this
machine, for the build alone: nothing of them is in an image.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from tests.helm.chart import render
from tests.pods.engine import FOLDER, ROOT, EngineError, configure, make_network, podman

TRAINING: Final = "training:1"
"""As in examples/kubernetes/job.yaml."""
SYSTEMD: Final = "systemd:1"
TORCH: Final = "/opt/torch"
"""Where torch and its dependencies are mounted."""
_HERE: Final = Path(__file__).parent
_BUILD_S: Final = 1200.0
_ALSO: Final = ("ca-certificates", "netbase", "tzdata")
"""Packages that the real base image has as well."""


def base_name() -> str:
    """What the Dockerfile builds on."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    (name,) = re.findall(r"^ARG BASE=(\S+)", text, re.MULTILINE)
    return str(name)


def frd_name() -> str:
    """What the chart's pods run."""
    image: str = render().pod()["containers"][0]["image"]
    return image


def site_packages() -> Path:
    """Of this environment, which has torch."""
    return Path(sysconfig.get_path("purelib"))


def make(names: Sequence[str]) -> None:
    """The images of these names, and those that they are made of."""
    configure()
    steps: dict[str, Callable[[], None]] = {
        "base": _base,
        "frd": _frd,
        "training": lambda: _derived("training", TRAINING),
        "systemd": lambda: _derived("systemd", SYSTEMD),
    }
    with _lock():
        _pause()
        for name, step in steps.items():
            if name == "base" or name in names:
                step()
        podman("image", "prune", "--force")
        make_network()


@contextmanager
def _lock() -> Iterator[None]:
    with (FOLDER / "images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _base() -> None:
    python = Path(sys.base_prefix)
    suite = base_name().rpartition("-")[2]
    packages = sorted({*_ALSO, *_libraries(python)})
    recipe = inspect.getsource(_base) + inspect.getsource(_copy_python)
    key = _digest(recipe, base_name(), sys.version, str(packages))
    if _is_made(base_name(), key):
        return
    with _said(f"base ({base_name()})"), tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        root = Path(folder) / "root"
        included = f"--include={','.join(packages)}"
        _run(["debootstrap", "--variant=minbase", included, suite, str(root), *_mirror(suite)])
        shutil.rmtree(root / "var/cache/apt/archives")
        shutil.rmtree(root / "var/lib/apt/lists")
        _copy_python(python, root)
        archive = Path(folder) / "root.tar"
        _run(["tar", "--create", "--file", str(archive), "--directory", str(root), "."])
        changes = [f"--change=LABEL frd-pods.key={key}", "--change=CMD python3"]
        podman("import", *changes, archive, f"docker.io/library/{base_name()}", within_s=_BUILD_S)


def _libraries(python: Path) -> list[str]:
    """Debian packages with the libraries that this Python is linked with, but for its windows."""
    modules = (python / f"lib/{_python()}/lib-dynload").glob("*.so")
    binaries = [python / f"bin/{_python()}", *(m for m in modules if "tkinter" not in m.name)]
    linked = subprocess.run(
        ["ldd", *map(str, binaries)], check=True, capture_output=True, text=True
    ).stdout
    paths = {str(Path(path).resolve()) for path in re.findall(r"=> (/\S+)", linked)}
    ours = sorted(path for path in paths if not path.startswith(str(python)))
    owners = subprocess.run(
        ["dpkg-query", "--search", *ours], check=False, capture_output=True, text=True
    ).stdout
    return sorted(set(re.findall(r"^([^:\s]+):", owners, re.MULTILINE)))


def _mirror(suite: str) -> list[str]:
    """Where this machine gets its own Debian from, if that is the same one."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {suite}"]
    sites = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.split()
    return sites[:1]


def _copy_python(python: Path, root: Path) -> None:
    """The interpreter and its library, without what others installed into it, and a fresh pip."""
    local = root / "usr/local"
    shutil.copy(python / f"bin/{_python()}", local / "bin")
    for link in ("python3", "python"):
        (local / "bin" / link).symlink_to(_python())
    for library in (python / "lib").glob("libpython3*.so*"):
        shutil.copy(library, local / "lib", follow_symlinks=False)
    skipped = shutil.ignore_patterns("site-packages", "test", "__pycache__", "idlelib", "config-*")
    shutil.copytree(python / f"lib/{_python()}", local / f"lib/{_python()}", ignore=skipped)
    (local / f"lib/{_python()}/site-packages").mkdir()
    _run(["ldconfig", "-r", str(root)])
    _run(["chroot", str(root), f"/usr/local/bin/{_python()}", "-m", "ensurepip"])
    (local / "bin/pip").symlink_to("pip3")


def _python() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _frd() -> None:
    """The Dockerfile, unchanged, with no access to a registry of images."""
    sent = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    files = [ROOT / "Dockerfile", ROOT / ".dockerignore", *_files(ROOT / name for name in sent)]
    key = _digest(_key(base_name()), *_contents(files))
    if _is_made(frd_name(), key):
        return
    with _said(f"frd ({frd_name()})"):
        _build(ROOT / "Dockerfile", ROOT, frd_name(), key, pip_settings())


def _derived(name: str, tag: str) -> None:
    folder = _HERE / "contexts" / name
    key = _digest(_key(base_name()), *_contents(_files([folder])))
    if _is_made(tag, key):
        return
    with _said(f"{name} ({tag})"):
        base = [f"--build-arg=BASE={base_name()}"]
        _build(folder / "Containerfile", folder, tag, key, base)


def _build(file: Path, context: Path, tag: str, key: str, options: Sequence[str]) -> None:
    """Without the cache of layers, which would grow with every change."""
    fixed = ["--pull=never", "--network=host", "--no-cache", "--layers=false"]
    named = [f"--label=frd-pods.key={key}", f"--tag={tag}", f"--file={file}"]
    podman("build", *fixed, *named, *options, context, within_s=_BUILD_S)


def pip_settings() -> list[str]:
    """pip's configuration on this machine as one file, and the files that it names, as mounts."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    settings: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = yaml.safe_load(value)
    file = FOLDER / "pip.conf"
    lines = [f"{name} = {value}" for name, value in settings.items()]
    file.write_text("\n".join(["[global]", *lines, ""]))
    words = {word for value in settings.values() for word in str(value).split()}
    paths = {Path(word.removeprefix("file://")) for word in words}
    # The folder of an index and that of its files are siblings.
    local = {path.parent if path.name == "simple" else path for path in paths if path.is_absolute()}
    mounts = {file: Path("/etc/pip.conf")} | {path: path for path in local if path.exists()}
    return [f"--volume={source}:{target}:ro" for source, target in mounts.items()]


def _pause() -> None:
    """podman makes the image of the process that holds a pod when the first one is created: here,
    because two at a time would be in each other's way."""
    name = "frd-pods-first"
    podman("pod", "rm", "--force", name, check=False)
    podman("pod", "create", "--name", name)
    podman("pod", "rm", "--force", name)


def _is_made(tag: str, key: str) -> bool:
    try:
        return _key(tag) == key
    except EngineError:
        return False


def _key(tag: str) -> str:
    (image,) = json.loads(podman("image", "inspect", tag).stdout)
    return str((image["Labels"] or {}).get("frd-pods.key"))


def _files(paths: Sequence[Path] | Iterator[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else [path]
        found += (one for one in inside if one.is_file() and one.parent.name != "__pycache__")
    return sorted(found)


def _contents(paths: Sequence[Path]) -> list[str]:
    """Each path in the repository, its mode and its content."""
    return [
        f"{path.relative_to(ROOT)} {path.stat().st_mode & 0o111:o} "
        + hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    ]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise EngineError(f"{command[0]}: {(done.stdout + done.stderr).strip()[-2000:]}")


@contextmanager
def _said(what: str) -> Iterator[None]:
    print(f"frd: pods: making the image {what}", flush=True)
    began = time.monotonic()
    yield
    print(f"frd: pods: made in {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.pods.images", description=__doc__)
    known = ["frd", "training", "systemd"]
    parser.add_argument("names", nargs="*", metavar="NAME", help="(default: all)")
    names = parser.parse_args().names or known
    if unknown := sorted(set(names).difference(known)):
        parser.error(f"{', '.join(unknown)}: no such image: one of {', '.join(known)}")
    try:
        make(names)
    except EngineError as error:
        sys.exit(f"frd: pods: {error}")


if __name__ == "__main__":
    main()
