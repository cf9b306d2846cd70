"""`threaded_worker.py HOW`: a worker as frameworks have them. Its main thread knows nothing of
torch; a thread runs the train function, and its exception is kept and never printed. The worker
lives on until stdin has another line, and ends by `os._exit(1)`; if HOW is `sys.exit`, by that, as
soon as the thread has ended.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

KEPT: list[BaseException] = []


def run(train: Any, how: str) -> None:
    try:
        train(how)
    except BaseException as error:
        KEPT.append(error)


def begin() -> Any:
    importlib.import_module("torch.distributed").init_process_group("gloo")
    return importlib.import_module("train_thread").train


def main(how: str) -> None:
    thread = threading.Thread(target=run, args=(begin(), how), daemon=True)
    thread.start()
    thread.join()
    if how == "sys.exit":
        sys.exit(1)
    sys.stdin.readline()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
