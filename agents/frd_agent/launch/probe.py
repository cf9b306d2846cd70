"""Run in an interpreter of the job, by `frd-agent exec --check`: what does the tap find here?

Standard library only, Python 3.9 or later: it is handed to the interpreter as text. It prints one
JSON object.
"""

import importlib.util
import json
import os
import sys

_SHOWN = ("TORCH_FR_", "TORCH_NCCL_TRACE", "TORCH_NCCL_DEBUG_INFO", "TORCH_NCCL_ENABLE_TIMING")


def _probe() -> dict[str, object]:
    found: dict[str, object] = {
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "torch": None,
        "tap": None,
        "shortage": "",
        "error": "",
    }
    if importlib.util.find_spec("torch") is None:
        return found
    try:
        import torch.distributed

        found["torch"] = str(torch.__version__)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
        return found
    tap = sys.modules.get("_frd_tap")
    if tap is not None and tap._installed_pid == os.getpid():
        found["tap"] = getattr(tap, "__file__", "")
        if hasattr(tap, "shortage"):
            found["shortage"] = tap.shortage(1 + tap.pool_size(), is_server=True)
        if hasattr(tap.Counters, "numbers"):
            found["recorders"] = tap.Counters(sys.modules.get(tap._C10D_CODE)).numbers()
    found["variables"] = {k: v for k, v in sorted(os.environ.items()) if k.startswith(_SHOWN)}
    return found


print(json.dumps(_probe()))
