"""`python -m scripts.requirements UV`: writes the hashes of all files of each pinned release into
requirements/, so that pip takes no other file: `make requirements`.

The pins are edited by hand; uv, whose path is the argument, asks the package index that it is
configured to use. It resolves nothing: pip must find each dependency among the pins. Lines that are
neither a pin nor a hash stay as they are, and come first.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "requirements"
_COMPILE: Final = (
    *("pip", "compile", "--quiet", "--no-deps", "--universal", "--python-version", "3.11"),
    *("--generate-hashes", "--no-annotate", "--no-header", "-"),
)
NOT_IN_THE_INDEX: Final = "torch-cpu.txt"
"""Its hash stays as it is."""


def pins(text: str) -> dict[str, list[str]]:
    """The hashes of each pin, ``name==version`` with its marker."""
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", "").splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            pin, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
            found[pin.strip()] = hashes
    return found


def head(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("#", "-r "))]


def hashed(uv: str, text: str) -> str:
    """The content of a file, with the hashes that the index has now."""
    wanted = "\n".join(pins(text))
    done = subprocess.run(
        [uv, *_COMPILE], input=wanted, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"frd: requirements: {done.stderr.strip()}")
    lines = head(text)
    for pin, hashes in pins(done.stdout).items():
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{one}" for one in hashes)]))
    return "\n".join([*lines, ""])


def main() -> None:
    for path in sorted(FOLDER.glob("*.txt")):
        if path.name == NOT_IN_THE_INDEX:
            continue
        path.write_text(hashed(sys.argv[1], path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
