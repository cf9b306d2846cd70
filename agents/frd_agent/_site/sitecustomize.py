"""Puts the tap into every Python rank below `frd-agent exec`, by way of PYTHONPATH.

Python imports this at start. It starts `frd_tap_start` and then undoes itself: its folder leaves
`sys.path`, and the sitecustomize that it shadowed is imported.
"""

# mypy: ignore-errors
# (annotations would not parse on any Python)

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Import what would have been imported without us, in our place."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        sys.modules["sitecustomize"] = this
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    except BaseException:
        sys.modules["sitecustomize"] = this
        raise


try:
    import frd_tap_start  # noqa: F401
except Exception as error:  # half an installation: the program runs on
    try:  # noqa: SIM105 -- the start of every Python imports nothing for it
        sys.stderr.write("frd: warning: tap: %s: this process runs on without it\n" % (error,))  # noqa: UP031 -- Python 2
    except Exception:  # no stderr, or one that no process reads
        pass
_chain()
