"""What the kubelet makes of a pod's specification, as commands of podman.

Users, capabilities, limits, variables and volumes are those of the manifest. A key that is not
known here is an error: the tests claim to run what the manifest says. Not imitated: probes but for
those of `cluster`, service accounts, scheduling, devices (resources such as nvidia.com/gpu), OOM
scores, and cgroup v2, which depends on the machine.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Object = dict[str, Any]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_POD_KEYS: Final = _words(
    "automountServiceAccountToken affinity containers enableServiceLinks hostPID initContainers "
    "priorityClassName restartPolicy securityContext serviceAccountName shareProcessNamespace "
    "subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
)
_CONTAINER_KEYS: Final = _words(
    "args command env image imagePullPolicy livenessProbe name ports readinessProbe resources "
    "restartPolicy securityContext startupProbe volumeMounts workingDir"
)
_SECURITY_KEYS: Final = _words(
    "allowPrivilegeEscalation capabilities fsGroup fsGroupChangePolicy readOnlyRootFilesystem "
    "runAsGroup runAsNonRoot runAsUser seccompProfile"
)
_UNITS: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass(frozen=True)
class Template:
    """A pod to be, with what a controller and the API server know of it."""

    name: str
    namespace: str
    spec: Object
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the controller adds to all containers."""
    claims: tuple[str, ...] = ()
    """Names of volumes that the controller claims for it."""
    node: str = "node-a"

    def __post_init__(self) -> None:
        _known(self.spec, _POD_KEYS)
        _known(self.spec.get("securityContext", {}), _SECURITY_KEYS)
        for container in (*self.spec.get("initContainers", ()), *self.spec["containers"]):
            _known(container, _CONTAINER_KEYS)
            _known(container.get("securityContext", {}), _SECURITY_KEYS)

    @property
    def sidecars(self) -> list[Object]:
        """They start before the others, and are started again when they end."""
        return [c for c in self.spec.get("initContainers", ()) if c.get("restartPolicy")]

    def shares(self) -> str:
        """The namespaces of a pod."""
        return "net,ipc,uts" + (",pid" if self.spec.get("shareProcessNamespace") else "")


def options(template: Template, container: Object, volumes: Mapping[str, Path]) -> list[str]:
    """Of `podman run` for this container."""
    security = template.spec.get("securityContext", {}) | container.get("securityContext", {})
    return [
        *_user(security),
        *_rights(security),
        *_limits(container.get("resources", {}).get("limits", {})),
        *(f"--env={name}={value}" for name, value in variables(template, container).items()),
        *_mounts(container, volumes),
        *(["--pid=host"] if template.spec.get("hostPID") else []),
        *([f"--workdir={container['workingDir']}"] if "workingDir" in container else []),
    ]


def command(container: Object) -> list[str]:
    """Options, image and arguments: `command` replaces the image's entry point."""
    program = container.get("command", [])
    entry = [f"--entrypoint={program[0]}"] if program else []
    return [*entry, container["image"], *program[1:], *container.get("args", ())]


def variables(template: Template, container: Object) -> dict[str, str]:
    """The environment: a value may name variables before it."""
    found: dict[str, str] = dict(template.env)
    for entry in container.get("env", ()):
        if "value" in entry:
            value = re.sub(
                r"\$\((\w+)\)", lambda match: found.get(match[1], match[0]), entry["value"]
            )
        else:
            value = _field(template, entry["valueFrom"]["fieldRef"]["fieldPath"])
        found[entry["name"]] = value
    return found


def make_volumes(template: Template, objects: Iterable[Object], folder: Path) -> dict[str, Path]:
    """Folders of the pod's volumes below `folder`, which is also the node's root for hostPath."""
    group = template.spec.get("securityContext", {}).get("fsGroup")
    found: dict[str, Path] = {}
    known = [o for o in objects if o["metadata"]["namespace"] == template.namespace]
    for volume in (*template.spec.get("volumes", ()), *({"name": n} for n in template.claims)):
        path = folder / template.name / volume["name"]
        (kind,) = volume.keys() - {"name"} or {"claim"}
        files: Iterator[tuple[str, bytes, int]] | None = None
        match kind:
            case "emptyDir":
                _folder(path, 0o777)
            case "claim":
                _folder(path, 0o755)
            case "hostPath":
                path = folder / "node" / volume[kind]["path"].lstrip("/")
                if not path.exists() and volume[kind].get("type") == "DirectoryOrCreate":
                    _folder(path, 0o755)
            case "secret" | "configMap" | "projected":
                files = _files(kind, volume[kind], known)
            case _:
                raise ValueError(f"volume {volume['name']}: {kind}: not imitated here")
        if files is not None:
            _write(path, files, group)
        elif group is not None and kind != "hostPath":
            os.chown(path, -1, group)
            path.chmod(path.stat().st_mode | 0o2770)
        found[volume["name"]] = path
    return found


def quantity(text: str | int) -> int:
    """Bytes of a quantity of memory."""
    number, unit = re.fullmatch(r"(\d+)(\w*)", str(text)).groups()  # type: ignore[union-attr]  # else an error
    return int(number) * _UNITS[unit]


def _user(security: Mapping[str, Any]) -> list[str]:
    if "runAsUser" not in security:
        assert not security.get("runAsNonRoot"), "only an image's own user could be another"
        return []
    user = [f"--user={security['runAsUser']}:{security.get('runAsGroup', 0)}"]
    assert not (security.get("runAsNonRoot") and security["runAsUser"] == 0)
    groups = [f"--group-add={security['fsGroup']}"] if "fsGroup" in security else []
    return [*user, *groups]


def _rights(security: Mapping[str, Any]) -> list[str]:
    capabilities = security.get("capabilities", {})
    found = [f"--cap-drop={name.lower()}" for name in capabilities.get("drop", ())]
    found += [f"--cap-add={name}" for name in capabilities.get("add", ())]
    if security.get("allowPrivilegeEscalation") is False:
        found.append("--security-opt=no-new-privileges")
    if security.get("readOnlyRootFilesystem"):
        found += ["--read-only", "--read-only-tmpfs=false"]
    profile = security.get("seccompProfile", {}).get("type", "Unconfined")
    if profile != "RuntimeDefault":
        assert profile == "Unconfined"
        found.append("--security-opt=seccomp=unconfined")
    return found


def _limits(limits: Mapping[str, Any]) -> list[str]:
    found = []
    if "memory" in limits:
        size = quantity(limits["memory"])
        found += [f"--memory={size}b", f"--memory-swap={size}b"]
    if "cpu" in limits:
        text = str(limits["cpu"])
        cpus = int(text.removesuffix("m")) / 1000 if text.endswith("m") else float(text)
        found.append(f"--cpus={cpus}")
    return found


def _mounts(container: Object, volumes: Mapping[str, Path]) -> list[str]:
    found = []
    for mount in container.get("volumeMounts", ()):
        _known(mount, frozenset({"name", "mountPath", "readOnly"}))
        mode = "ro" if mount.get("readOnly") else "rw"
        found.append(f"--volume={volumes[mount['name']]}:{mount['mountPath']}:{mode}")
    return found


def _field(template: Template, path: str) -> str:
    if label := re.fullmatch(r"metadata\.labels\['(.+)'\]", path):
        return template.labels[label[1]]
    return {
        "metadata.name": template.name,
        "metadata.namespace": template.namespace,
        "spec.nodeName": template.node,
    }[path]


def _folder(path: Path, mode: int) -> None:
    path.mkdir(parents=True)
    path.chmod(mode)


def _files(
    kind: str, volume: Mapping[str, Any], objects: Sequence[Object]
) -> Iterator[tuple[str, bytes, int]]:
    """Name, content and mode of each file."""
    if kind == "projected":
        for source in volume["sources"]:
            ((part, what),) = source.items()
            for name, content, _ in _files(part, what, objects):
                yield name, content, volume.get("defaultMode", 0o644)
        return
    name = volume.get("secretName", volume.get("name"))
    wanted = {"secret": "Secret", "configMap": "ConfigMap"}[kind]
    (thing,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (wanted, name))
    data: Mapping[str, str] = thing["data"]
    items = volume.get("items", [{"key": key, "path": key} for key in data])
    for item in items:
        text = data[item["key"]]
        content = base64.b64decode(text) if kind == "secret" else text.encode()
        yield item["path"], content, volume.get("defaultMode", 0o644)


def _write(path: Path, files: Iterable[tuple[str, bytes, int]], group: int | None) -> None:
    """As the kubelet does: links to files in a folder that is replaced as a whole."""
    version = path / "..1"
    version.mkdir(parents=True)
    (path / "..data").symlink_to(version.name)
    for name, content, mode in files:
        file = version / name
        file.write_bytes(content)
        file.chmod(mode if group is None else mode | 0o440)
        if group is not None:
            os.chown(file, -1, group)
        (path / name).symlink_to(f"..data/{name}")


def _known(thing: Mapping[str, Any], keys: frozenset[str]) -> None:
    if unknown := thing.keys() - keys:
        raise ValueError(f"{', '.join(sorted(unknown))}: not imitated here")
