"""`python -m scripts.sbom FOLDER`: writes FOLDER/frd-VERSION.cdx.json, a CycloneDX list of all that
service and agent consist of: `make sbom`.

The packages are those that the image installs (requirements/), with the hashes of all files that
pip accepts for them, and with the licences that this environment's copies state; then the files of
others in the web page, as NOTICE lists them, and the image's base. The same sources give the same
bytes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from frd.version import __version__
from scripts.requirements import FOLDER, pins

ROOT: Final = FOLDER.parent
WEB: Final = ROOT / "frd/web"
_LICENCES: Final = LicenseFactory()
_NAMESPACE: Final = uuid.UUID("6f2d4f6e-7a5b-5e0c-9a3e-0d1f8c2b7a94")


def bom() -> Bom:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    frd = _component(PackageURL("pypi", None, project["name"], __version__), project["license"])
    frd.type = ComponentType.APPLICATION
    packages = {one.name: one for one in _packages()}
    others = [*_vendored(), _base()]
    made = Bom(components=[*packages.values(), *others])
    made.metadata.component = frd
    direct = {_name(one) for one in project["dependencies"]}
    direct |= {_name(one) for one in project["optional-dependencies"]["cluster"]}
    made.register_dependency(frd, [*(packages[name] for name in direct), *others])
    for name, package in packages.items():
        made.register_dependency(
            package, [packages[one] for one in _needs(name) if one in packages]
        )
    return made


def written(made: Bom) -> str:
    """JSON whose serial number is a digest of its content. It has a time only if SOURCE_DATE_EPOCH
    says which.

    Raises:
        ValueError: it is not valid CycloneDX.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    made.metadata.timestamp = datetime.fromtimestamp(int(epoch or 0), UTC)
    made.serial_number = _NAMESPACE
    made.serial_number = uuid.uuid5(_NAMESPACE, JsonV1Dot6(made).output_as_string())
    form = json.loads(JsonV1Dot6(made).output_as_string())
    if epoch is None:
        del form["metadata"]["timestamp"]
    text = json.dumps(form, indent=2)
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(str(fault))
    return text + "\n"


def _packages() -> Iterator[Component]:
    for file in ("service.txt", "cluster.txt"):
        for pin, hashes in pins((FOLDER / file).read_text("utf-8")).items():
            name, version = re.split("==", pin.partition(";")[0].strip())
            package = _component(PackageURL("pypi", None, name, version), _licence(name))
            files = [HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes]
            where = XsUri(str(package.purl))
            kind = ExternalReferenceType.DISTRIBUTION
            comment = "all files of this release"
            reference = ExternalReference(type=kind, url=where, hashes=files, comment=comment)
            package.external_references.add(reference)
            yield package


def _vendored() -> Iterator[Component]:
    """The files of others in the web page.

    Raises:
        ValueError: a file is not the one that NOTICE describes.
    """
    notice = (WEB / "NOTICE").read_text("utf-8")
    for path, text in re.findall(r"^(vendor/\S+)\n((?:  .*\n)+)", notice, re.MULTILINE):
        stated = dict(re.findall(r"^  (\w+): +(.*)$", text, re.MULTILINE))
        digest = sha256((WEB / path).read_bytes()).hexdigest()
        if digest != stated["sha256"]:
            raise ValueError(f"{path}: its digest is {digest}: NOTICE says {stated['sha256']}")
        licences = dict(re.findall(r"(\w+): ([\w.-]+)", stated["licence"]))
        for name, version in re.findall(r"(\w+) (\d[\d.]*\d)", stated["name"]):
            purl = PackageURL("npm", None, name.lower(), version, subpath=f"frd/web/{path}")
            one = _component(purl, licences.get(name, stated["licence"]))
            one.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
            yield one


def _base() -> Component:
    (image,) = re.findall(
        r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE
    )
    name, _, tag = image.partition(":")
    base = _component(PackageURL("docker", "library", name, tag), None)
    base.type = ComponentType.CONTAINER
    return base


def _component(purl: PackageURL, licence: str | None) -> Component:
    known = [_LICENCES.make_from_string(licence)] if licence else []
    return Component(
        name=purl.name, version=purl.version, purl=purl, bom_ref=str(purl), licenses=known
    )


def _licence(name: str) -> str | None:
    """What the installed copy of a package states; None if it states none, or is not installed."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    expressions = stated.get_all("License-Expression") or []
    names = [one for one in stated.get_all("License") or () if "\n" not in one]
    classes = [one for one in stated.get_all("Classifier") or () if one.startswith("License ::")]
    return next(iter([*expressions, *names, *(one.split(" :: ")[-1] for one in classes)]), None)


def _needs(name: str) -> set[str]:
    try:
        return {_name(one) for one in metadata.requires(name) or () if "extra ==" not in one}
    except metadata.PackageNotFoundError:
        return set()


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def main() -> None:
    path = Path(sys.argv[1]) / f"frd-{__version__}.cdx.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(written(bom()), "utf-8")
    print(f"frd: sbom: {path}")


if __name__ == "__main__":
    main()
