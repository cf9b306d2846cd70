"""Whom the exception of a rank blames, by texts of real programs."""

from __future__ import annotations

import pytest

from frd.engine.losses.exits import Manner, manner_of
from frd.model import ExitInfo, ExitKind

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
PGN = "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"

OF_A_PEER = [
    # torch 2.13 with Gloo, its stores and monitored_barrier
    f"RuntimeError: {GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:23232. This is",
    f"RuntimeError: {GLOO}pair.cc:537] Read error [127.0.0.1]:37255: Connection reset by peer.",
    f"RuntimeError: {GLOO}unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to",
    f"RuntimeError: {GLOO}unbound_buffer.cc:81] Application timeout caused pair closure",
    "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
    "op.preamble.length <= op.nbytes. 2048 vs 4. Received data size doesn't match expected size. "
    "Is there a distributed collective mismatch in your code?",
    "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
    "RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 3000 ms",
    "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting "
    "for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
    "DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//1//cpu//0/1",
    "DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined.",
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote",
    "DistNetworkError: Broken pipe",
    "DistNetworkError: The client socket has timed out after 3000ms while trying to connect to (",
    "RuntimeError: Timeout waiting for key: default_pg/0//cpu//0/1 after 3000 ms",
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:",
    "RuntimeError: recvValue failed on SocketImpl(fd=4, addr=[h]:1): Connection reset by peer",
    "RuntimeError: wait timeout after 60000ms, keys: /worker/1",
    # older releases
    "RuntimeError: Connection reset by peer",
    "RuntimeError: Socket Timeout",
    "TimeoutError: The client socket has timed out after 900s while trying to connect to (h, 1).",
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key",
    # NCCL, and other libraries
    f"DistBackendError: NCCL error in: {PGN}:2395, internal error - Last error: NET/Socket : peer "
    "10.0.0.2<4> message truncated : receiving 256 bytes instead of 128",
    f"DistBackendError: NCCL error in: {PGN}:2395, internal error - Last error: Proxy Call to rank "
    "1 failed (Connect)",
    f"DistBackendError: NCCL error in: {PGN}:1970, remote process exited or there was a network "
    "error, NCCL version 2.21.5",
    f"DistBackendError: NCCL error in: {PGN}:1691, unhandled system error (run with NCCL_DEBUG=",
    "RuntimeError: NCCL communicator was aborted on rank 1.",
    "RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpTy",
    "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via"
    " c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
    "RuntimeError: [ProcessGroupUCC-0] recv failed: Connection reset by remote peer",
    # as programs quote it
    "TrainingFailed: step 81: Connection closed by peer [10.0.0.7]:4711",
    "RayTaskError(RuntimeError): Timed out waiting 1800000ms for send operation to complete",
    # torch.distributed.checkpoint, of rank 3
    "CheckpointException: CheckpointException ranks:dict_keys([0, 3])",
]

OF_ITSELF = [
    "ConnectionError: HTTPConnectionPool(host='mpi-is.mpg.de', port=443): [Errno 111] refused",
    'ReadTimeoutError: Read timeout on endpoint URL: "https://b.s3.amazonaws.com/gloo/x.tar"',
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/mpi/timed_out.txt'",
    "OSError: [Errno 28] No space left on device: '/ckpt/ProcessGroup_timeout'",
    f"DistBackendError: NCCL error in: {PGN}:2395, unhandled system error, ncclSystemError: Last "
    "error: Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
    "RemoteDisconnected: Remote end closed connection without response",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    "TimeoutError: timed out",
    "OSError: [Errno 110] Connection timed out",
    "ReadTimeoutError: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
    "ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'",
    "ConnectionClosedError: Connection was closed before we received a valid response from "
    'endpoint URL: "https://s3.example/shard-7.tar".',
    "ConnectionError: Error 104 while writing to socket. Connection reset by peer.",
    "RuntimeError: remote storage closed the connection",
    "TimeoutExpired: Command 'aws s3 cp' timed out after 30 seconds",
    "RuntimeError: DataLoader worker (pid 81) is killed by signal: Aborted. ",
    "RuntimeError: DataLoader worker (pid(s) 81) exited unexpectedly",
    "RuntimeError: DataLoader timed out after 5 seconds",
    # its device
    "AcceleratorError: CUDA error: the launch timed out and was terminated",
    f"DistBackendError: NCCL error in: {PGN}:1691, unhandled cuda error, NCCL version 2.19.3",
    # checks of arguments, torch 2.13
    "RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 1 (expected (3), got",
    "RuntimeError: ProcessGroupGloo::reduce: invalid root rank: 7",
    "RuntimeError: [rank0]:[F1128 ProcessGroupGloo.cpp:2216] Check failed: outputs[0].sizes()",
    "ValueError: Invalid destination rank: destination rank should not be the same as the rank of "
    "the current process.",
    f"DistBackendError: NCCL error in: {PGN}:1, invalid usage (run with NCCL_DEBUG=WARN for",
    "DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    # torch.distributed.checkpoint, of rank 2
    "CheckpointException: CheckpointException ranks:dict_keys([2])",
    "CheckpointException: CheckpointException ranks:dict_keys([0, 2, 12])",
]


@pytest.mark.parametrize(
    ("exception", "manner"),
    [(text, Manner.REACTED) for text in OF_A_PEER] + [(text, Manner.OWN) for text in OF_ITSELF],
)
def test_only_a_failed_communication_of_ranks_blames_a_peer(exception: str, manner: Manner) -> None:
    """Rank 2 raises."""
    assert manner_of(ExitInfo(ExitKind.EXCEPTION, status=1, exception=exception), 2) is manner
