"""A rank with a scripted CUDA driver, which answers which threads of its worker server ran the
tap's handler and another one: SOCKET DRIVER sleep|gil."""

import ctypes
import sys
import threading

import torch
from torch._C import _distributed_c10d as c10d

from frd_agent import tap


def threads(_: object, response: c10d._Response) -> None:
    """The thread that ran the tap's handler last, and this one."""
    text = f"{driver.frd_test_last_thread()} {threading.get_native_id()}"
    response.set_content(text.encode(), "text/plain")
    response.set_status(200)


path, library, how = sys.argv[1:]
driver = ctypes.CDLL(library)
torch.cuda._initialized = True  # as in a program that uses CUDA
c10d._register_handler("threads", threads)
tap._register_handlers(c10d)
tap._register_handlers(c10d)  # as in a forked child, which has the handlers of its parent
server = c10d._WorkerServer(path)
print("ready", flush=True)
if how == "gil":
    ctypes.PyDLL(None).sleep(300)  # unlike CDLL, keeps the GIL
sys.stdin.readline()
