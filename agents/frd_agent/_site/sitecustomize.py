"""Puts the tap into every Python rank below `frd-agent exec`, by way of PYTHONPATH.

Python imports this at start, in every interpreter of the job: other versions, other environments,
tools that never see torch. So it imports nothing, costs a fraction of a millisecond, parses on any
Python, and only when torch.distributed is being imported does it load the tap, by path. Then it
undoes itself: its folder leaves `sys.path`, and the sitecustomize that it shadowed is imported.
"""

# mypy: ignore-errors
# (annotations would not parse on any Python)

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watch(object):  # noqa: UP004 -- an old-style class otherwise, on the Python 2 of some tool
    """A finder that finds nothing. It stays, inert: `sys.meta_path` may be under iteration."""

    def __init__(self):
        self._waiting = True

    def find_spec(self, name, path=None, target=None):
        if self._waiting and name.startswith("torch.distributed"):
            self._waiting = False
            _install()


def _install():
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("_frd_tap", os.path.join(os.path.dirname(_HERE), "tap.py"))
        tap = module_from_spec(spec)
        sys.modules["_frd_tap"] = tap
        spec.loader.exec_module(tap)
        tap.install()
    except Exception as error:
        sys.modules.pop("_frd_tap", None)
        if sys.stderr is not None:
            sys.stderr.write("frd: warning: tap: %s: this rank runs on without it\n" % (error,))  # noqa: UP031 -- Python 2


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


if sys.version_info >= (3, 9):  # noqa: UP036 -- any interpreter of the job reads this
    sys.meta_path.insert(0, _Watch())
_chain()
