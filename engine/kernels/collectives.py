"""What the ranks of one model do together, over `torch.distributed`: gloo between CPUs, NCCL between GPUs.

The group belongs to whoever made it; torch's own global group stays as it was. All ranks are of one machine, so sockets
are those of its loopback. A rank that is gone is an error at once; one that hangs is found by the watch of
`engine/processes/child_link.py`, since its leader waits with it.

A process that has had a group leaves by `os._exit` once all is written, as `engine.processes.forked` does: gloo's
thread lets go of an operation's last tensor when it comes to it, and one that asks an interpreter for its lock while
that is taken apart brings the whole process down ("terminate called without an active exception").
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
_FOREVER = timedelta(days=7)  # the watch judges who hangs, not the clock of an operation
_c10d: Any = _distributed_c10d  # torch's own description of it leaves out what is used here


class Meeting:
    """Where ranks find each other: the leader, rank 0, opens it at a free port, the others come to that."""

    def __init__(self, rank: int, size: int, port: int = 0) -> None:
        """Raises RuntimeError."""
        self._rank, self._size = rank, size
        self._store = _c10d.TCPStore(
            _LOOPBACK, port, size, is_master=rank == 0, timeout=_JOIN_TIMEOUT, wait_for_workers=False
        )
        self.port: int = self._store.port

    def join(self, device: torch.device) -> Group:
        """Returns when every rank has called it. Raises RuntimeError."""
        make = self._nccl if backend_of(device) == "nccl" else self._gloo
        return Group(make(device), self._rank, self._size, device)

    def _gloo(self, _device: torch.device) -> Any:
        options = _c10d.ProcessGroupGloo._Options()
        options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = _FOREVER
        options._threads = 1  # a rank's operations come one after the other
        return _c10d.ProcessGroupGloo(self._store, self._rank, self._size, options)

    def _nccl(self, device: torch.device) -> Any:
        """Operations are queued on the device's stream and none of them waits on the host. The group is bound to its
        device at once, so that ranks which cannot talk fail while loading. Nobody aborts a communicator: an error that
        torch's own watchdog sees ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING, which is so by default), and a rank
        that ends takes its group along (`engine/ranks/group.py`), whatever its kernels still wait for."""
        make_current(device)
        options = _c10d.ProcessGroupNCCL.Options()
        options._timeout = _FOREVER
        options.global_ranks_in_group, options.group_name = list(range(self._size)), "hearth"
        group = _c10d.ProcessGroupNCCL(self._store, self._rank, self._size, options)
        group.eager_connect_single_device(device)
        return group


def backend_of(device: torch.device) -> str:
    """What joins ranks on such devices. Raises RuntimeError where this build of torch has not got it."""
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
        """On a CPU sums are float32: it is enough that the parts were rounded."""
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
    """For an operation in the stream in which its operands were made: NCCL's own would wait for that and be waited for.
    It could be captured in a graph as it is."""
    options.asyncOp = False
    return options
