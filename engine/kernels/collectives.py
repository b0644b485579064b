"""Collectives of the ranks of one model over `torch.distributed`: gloo between CPUs, NCCL between GPUs.

The process group belongs to its creator; torch's global group is not used. All ranks are on one machine, so sockets use
the loopback interface. A rank that exits is an error at once; a hanging rank is detected by the watchdog of
`engine/processes/child_link.py`, because its leader waits for it.

A process that had a group exits with `os._exit` after writing everything, like `engine.processes.forked`: gloo's thread
releases an operation's last tensor late, and acquiring the interpreter's lock during finalization aborts the process
("terminate called without an active exception").
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d

from engine.devices.assignment import make_current

_LOOPBACK = "127.0.0.1"
_JOIN_TIMEOUT = timedelta(seconds=60)
_FOREVER = timedelta(days=7)  # the watchdog detects hangs, not an operation's timeout
_c10d: Any = _distributed_c10d  # torch's type stubs lack the parts used here


class Meeting:
    """Rendezvous of the ranks: the leader, rank 0, listens on a free port; the others connect to it."""

    def __init__(self, rank: int, size: int, port: int = 0) -> None:
        """Raises RuntimeError."""
        self._rank, self._size = rank, size
        self._store = _c10d.TCPStore(
            _LOOPBACK, port, size, is_master=rank == 0, timeout=_JOIN_TIMEOUT, wait_for_workers=False
        )
        self.port: int = self._store.port

    def join(self, device: torch.device) -> Group:
        """Return when every rank has joined. Raises RuntimeError."""
        make = self._nccl if backend_of(device) == "nccl" else self._gloo
        return Group(make(device), self._rank, self._size, device)

    def _gloo(self, _device: torch.device) -> Any:
        options = _c10d.ProcessGroupGloo._Options()
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = _FOREVER
        options._threads = 1  # a rank's operations are sequential
        return _c10d.ProcessGroupGloo(self._store, self._rank, self._size, options)

    def _nccl(self, device: torch.device) -> Any:
        """Create the NCCL backend. Operations are queued on the device's stream and never block the host. The group is
        bound to its device immediately, so that ranks that cannot communicate fail while loading. Communicators are
        never aborted: torch's watchdog ends a process after an error (TORCH_NCCL_ASYNC_ERROR_HANDLING, the
        default), and a rank's exit ends its group (`engine/ranks/group.py`)."""
        make_current(device)
        options = _c10d.ProcessGroupNCCL.Options()
        options._timeout = _FOREVER
        options.global_ranks_in_group, options.group_name = list(range(self._size)), "hearth"
        group = _c10d.ProcessGroupNCCL(self._store, self._rank, self._size, options)
        group.eager_connect_single_device(device)
        return group


def backend_of(device: torch.device) -> str:
    """Return the backend for such devices. Raises RuntimeError if this build of torch lacks it."""
    if device.type == "cpu":
        return "gloo"
    if device.type != "cuda" or not hasattr(_c10d, "ProcessGroupNCCL"):
        raise RuntimeError(f"device={device.type!r}: this build of torch cannot join ranks there")
    return "nccl"


class Group:
    """See `engine.layers.shard.Collectives`."""

    def __init__(self, backend: Any, rank: int, size: int, device: torch.device) -> None:
        self._all_reduce, self._gather = backend.allreduce, backend.gather
        if device.type != "cpu":
            self._all_reduce = functools.partial(backend.allreduce, opts=_at_once(_c10d.AllreduceOptions()))
        self._size, self._is_leader = size, rank == 0
        self._is_exact = device.type == "cpu"

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks. On a CPU the sum is float32, because the parts are already rounded."""
        if self._is_exact and x.dtype != torch.float32:
            x = x.float()
        self._all_reduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        options = _at_once(_c10d.GatherOptions())
        options.rootRank = 0
        parts = [torch.empty_like(x) for _ in range(self._size)] if self._is_leader else []
        self._gather([parts] if parts else [], [x], options).wait()
        return parts


def _at_once(options: Any) -> Any:
    """Run the operation in the stream of its operands, which avoids synchronization with NCCL's own stream and can be
    captured in a graph."""
    options.asyncOp = False
    return options
