"""Loads the tap when this interpreter imports torch.distributed.

Two ways lead here, and the second does nothing: the `sitecustomize` in this folder,
through PYTHONPATH (`frd-agent exec` sets it; it reaches environments without frd), and the file
`frd_tap.pth` in environments where frd is installed (it works although a launch script replaces
PYTHONPATH, and under `python -E` and `-I`). It looks for this file, because to import the package
would take 10 to 25 ms. `python -S` reads neither.

Every interpreter of the job executes this: other versions, other environments, programs that never
import torch. So it imports nothing, costs a fraction of a millisecond, and its syntax is valid in
any Python. The tap itself is loaded by path, and only when torch.distributed is being imported.
"""

# mypy: ignore-errors
# (annotations would not parse on any Python)

import os
import sys

_FAULTS = ("SEGV", "BUS", "FPE", "ILL", "TRAP", "SYS")  # as in the tap
_TAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tap.py")


class _Watch(object):  # noqa: UP004 -- an old-style class otherwise, on the Python 2 of some tool
    """A finder that finds nothing. It stays, inert: `sys.meta_path` may be under iteration."""

    frd_tap = True

    def __init__(self):
        self._waiting = True

    def find_spec(self, name, path=None, target=None):
        if self._waiting and name.startswith("torch.distributed"):
            self._waiting = False
            _install()
        elif name.startswith("trio.") and "_frd_tap" in sys.modules:  # it is there
            sys.modules["_frd_tap"].hear_none()


def _install():
    # Signals wait meanwhile: what a handler of the program raises must reach the program.
    import _signal

    faults = [getattr(_signal, "SIG" + name) for name in _FAULTS]
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - set(faults))
        try:
            _load()
        except Exception as error:
            sys.modules.pop("_frd_tap", None)
            _warn(_signal, error)
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def _load():
    from importlib.util import module_from_spec, spec_from_file_location

    tap = sys.modules.get("_frd_tap")
    if tap is None:  # else the program itself has started the tap: two of them are two ranks
        spec = spec_from_file_location("_frd_tap", _TAP)
        tap = module_from_spec(spec)
        sys.modules["_frd_tap"] = tap
        spec.loader.exec_module(tap)
    tap.settle_variables(os.environ)
    tap.install()


def _warn(signals, error):
    """A stderr that no process reads must neither end the program nor its import."""
    if sys.stderr is None:
        return
    text = "frd: warning: tap: %s: this rank runs on without it\n" % (error,)  # noqa: UP031 -- Python 2
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except BrokenPipeError:
        signals.sigtimedwait((signals.SIGPIPE,), 0)
    except OSError:
        pass


def watch():
    """Once an interpreter, whichever copy of this file comes first."""
    if sys.version_info < (3, 9):  # noqa: UP036 -- any interpreter of the job reads this
        return
    if not any(hasattr(finder, "frd_tap") for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


watch()
