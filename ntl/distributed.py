"""Several processes that do one run together, as torchrun starts them.

Each takes its part of every batch and of every split that is answered; the first one (rank 0) alone decides and writes.
All functions work in a process that is alone too, and then neither communicate nor load torch. That, one timeout for
all, CPU tensors beside GPU tensors, and the store by which a process tells why it ends are more than accelerate's
`PartialState` offers, which transformers' Trainer makes anew for every run.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # by which torchrun tells its processes
TIMEOUT = timedelta(hours=6)  # for one process to wait for another: the first prepares the data
PATIENCE = 2.0  # seconds to wait for the reason of a process that was lost
_FAILURE = "ntl/failure"  # in the store of the processes: why one of them could not go on
_store: Any = None


def started() -> int:
    """Return how many processes the launcher has started for this run, before they have joined."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def size() -> int:
    """Return the number of processes of this run."""
    return 1 if _store is None else _distributed().get_world_size()


def rank() -> int:
    """Return the number of this process among them."""
    return 0 if _store is None else _distributed().get_rank()


def is_first() -> bool:
    """Return whether this is the process that decides and writes for all."""
    return rank() == 0


def join() -> None:
    """Meet the other processes that the launcher has started, once; a process that is alone has none to meet.

    On GPUs, each process takes the one of its number on its machine.
    """
    global _store
    if started() == 1 or _store is not None:
        return
    import torch

    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, size = next(_distributed().rendezvous("env://", timeout=TIMEOUT))
    store.set_timeout(TIMEOUT)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    _distributed().init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    _store = store


def leave() -> None:
    """Part from the others, at the end of all work."""
    global _store
    if _store is not None:
        _distributed().destroy_process_group()
        _store = None


def barrier() -> None:
    """Wait until all processes are here."""
    gathered(None)


def decided(work: Callable[[], T]) -> T:
    """Do `work` in the first process alone, and return in all of them what came of it; it must be fit for pickling."""
    values = [work() if is_first() else None]
    if size() > 1:
        _distributed().broadcast_object_list(values, src=0)
    return values[0]


def highest(value: int) -> int:
    """Return the highest of the processes' values."""
    if size() == 1:
        return value
    import torch

    values = torch.tensor(value)
    _distributed().all_reduce(values, op=_distributed().ReduceOp.MAX)
    return int(values)


def gathered(value: T) -> list[T]:
    """Return the values of all processes, by rank; they must be fit for pickling."""
    values = [value] * size()
    if size() > 1:
        _distributed().all_gather_object(values, value)
    return values


def share(items: Sequence[T]) -> Sequence[T]:
    """Return this process's share of `items`; those of all processes make up the whole."""
    return items[rank() :: size()]


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of the processes' tensors, in place of this one's."""
    if size() > 1:
        _distributed().all_reduce(tensor)
    return tensor


def in_turn(work: Callable[[], T]) -> T:
    """Do `work` in the first process and then in all others, which find done what it leaves on a shared disk."""
    result = work() if is_first() else None
    barrier()
    return result if is_first() else work()


def tell(reason: Mapping[str, str]) -> None:
    """Tell the first process, which writes the record, why this one cannot go on."""
    if _store is not None:
        _store.set(_FAILURE, json.dumps(dict(reason)))


def told() -> dict[str, str] | None:
    """Return why another process could not go on, if one has said so."""
    if _store is None:
        return None
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(RuntimeError):  # the launcher, which keeps the store, may be ending too
            if _store.check([_FAILURE]):
                return json.loads(_store.get(_FAILURE))
        time.sleep(0.1)
    return None


def lost(error: BaseException) -> bool:
    """Return whether an error says that another process could not be reached any more."""
    return size() > 1 and (
        isinstance(error, _distributed().DistError) or any(name in str(error) for name in ("gloo", "NCCL"))
    )


def _distributed() -> Any:
    import torch.distributed

    return torch.distributed
