"""Faults of the machine, told by what to do about them: memory that runs out, and disks that are full.

Torch, the library and the system tell of them in many ways, few of which say what to change.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors, which is written in Rust, gives the number of the system's error; torch gives none.
_FULL = re.compile(rf"\(os error ({'|'.join(map(str, FULL))})\)")
_NOT_WRITTEN = re.compile(r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos")
_NO_MEMORY = re.compile(r"out of memory|(can't|cannot) allocate memory|not enough memory|ALLOC_FAILED", re.IGNORECASE)
_ASKED = re.compile(r"tried to allocate ([\d.]+ \w+)|unable to allocate ([\d.]+ \w+)", re.IGNORECASE)


class OutOfMemory(RuntimeError):
    """The memory of the machine, or of its GPU, does not suffice for a run as it is configured."""


class DiskFull(OSError):
    """A disk takes no more. Nothing is wrong with the run, which can go on once there is room."""


@contextlib.contextmanager
def explained(config: Mapping[str, Any], folder: Path) -> Iterator[None]:
    """Raise what the block raises, a fault of the machine as `named` gives it, from where it came."""
    try:
        yield
    except Exception as error:
        fault = named(error, config, folder)
        if fault is error:
            raise
        raise fault.with_traceback(error.__traceback__) from error


def named(error: Exception, config: Mapping[str, Any] | None = None, folder: Path | None = None) -> Exception:
    """Return the fault that an error tells of, or the error itself if it tells of none.

    Args:
        config: of the run that met it.
        folder: where that run writes.
    """
    if type(error).__module__.partition(".")[0] in ("ntl", "data_prep", "experiments"):
        return error  # it says all already
    for cause in _chain(error):
        if reason := _why_not_written(cause):
            return DiskFull(_disk_full(reason, folder))
        if isinstance(cause, MemoryError) or (isinstance(cause, RuntimeError) and _NO_MEMORY.search(str(cause))):
            return OutOfMemory(_out_of_memory(error, str(cause), config))
    return error


def room(folder: Path) -> str:
    """Say how much is free on the disk of `folder`, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return f"{free / 2**30:.1f} GiB" if free >= 2**30 else f"{free / 2**20:.2f} MiB"


def forget(error: BaseException) -> None:
    """Free what the functions that an error has ended still hold.

    A sweep keeps the errors of its runs to its end, and with them models and activations that the next run needs the
    memory of.
    """
    for cause in _chain(error):
        traceback.clear_frames(cause.__traceback__)
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, as a traceback shows them."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _why_not_written(error: BaseException) -> str | None:
    """Why a disk did not take a file, if it is that of which the error tells."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in FULL else None
    if found := _FULL.search(str(error)):
        return os.strerror(int(found[1]))
    return "torch could not write a file to its end" if _NOT_WRITTEN.search(str(error)) else None


def _disk_full(reason: str, folder: Path | None) -> str:
    where = f"{folder} lies on a disk with {room(folder)} free. " if folder else ""
    again = "Make room, then give the same command again: it goes on from the last checkpoint"
    return f"the disk is full, or takes no more of this ({reason}). {where}{again}"


def _out_of_memory(error: BaseException, said: str, config: Mapping[str, Any] | None) -> str:
    asked = _ASKED.search(said)
    size = f" ({asked[1] or asked[2]} more were asked for)" if asked else ""
    if config is None:
        return f"out of memory{size}"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    within = {(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in frames}
    if ("ntl.evaluation.answer", "answer") in within:
        return f"out of memory while answering{size}: {_smaller_evaluation(config['eval'])}, with retry=true"
    if ("ntl.training.train", "train") in within:
        return f"out of memory while training{size}: {_smaller_training(config['train'])}, with retry=true"
    return f"out of memory before training{size}: try a smaller model or a machine with more, with retry=true"


def _smaller_evaluation(settings: Mapping[str, Any]) -> str:
    if (rows := settings["batch_size"]) > 1:
        return f"try a smaller eval.batch_size, such as eval.batch_size={rows // 2} for {rows}"
    return "try fewer eval.beams, a smaller model, or a machine with more"


def _smaller_training(settings: Mapping[str, Any]) -> str:
    rows, accumulate = settings["batch_size"], settings["accumulate"]
    ways = []
    if rows > 1:
        by = next(factor for factor in range(2, rows + 1) if rows % factor == 0)
        ways.append(
            f"a smaller train.batch_size with a larger train.accumulate, such as train.batch_size={rows // by} "
            f"train.accumulate={accumulate * by}, which leaves a step its {rows * accumulate} rows"
        )
    if settings["precision"] == "fp32":
        ways.append("train.precision=bf16")
    if settings["loss_implementation"] != "linear" and not settings["fsdp"]:
        ways.append("train.loss_implementation=linear, where model and loss take it")
    return "try " + ", or ".join(ways or ["a smaller model or a machine with more"])
