"""Being asked to stop: by Ctrl-C, by a signal, or by a scheduler that wants its node back.

Whoever is asked saves what there is to save and raises `Stopped`. A SLURM job of submitit's is put back into the queue
once it has stopped, and goes on from its checkpoint when its turn comes again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

# What SLURM sends a job of submitit's a while before its time limit.
NOTICE: signal.Signals = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}")
SIGNALS = (signal.SIGINT, signal.SIGTERM, NOTICE)


class Stopped(KeyboardInterrupt):
    """The work was asked to stop, by the signal `number`; what was done so far is on disk to go on from."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class NotRequeued(RuntimeError):
    """A job has stopped and could not be put back into the queue."""


@contextlib.contextmanager
def requeued_when_stopped() -> Iterator[None]:
    """In a SLURM job of submitit's: put the job back into the queue after the block was asked to stop.

    By itself submitit would requeue the moment that the notice comes, which ends the process, and pass over SIGTERM.
    Here both raise `Stopped`, at once or where training has saved a checkpoint; leases are released on the way out,
    and only then submitit does what it would have done. Elsewhere SIGTERM alone is made to raise `Stopped`.

    Raises:
        NotRequeued: submitit's count of time limits (max_num_timeout) is used up, or SLURM refused.
        Stopped: there is nothing to requeue: the job was cancelled, or SLURM is requeueing it already.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is sent signals
        yield
        return
    queued = os.environ.get("SUBMITIT_EXECUTOR") == "slurm"
    requeue = signal.getsignal(NOTICE)
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, *([NOTICE] if queued else []))}
    try:
        yield
    except Stopped as stop:
        if not queued:
            raise
        for number in before:  # being requeued, a job is sent SIGTERM
            signal.signal(number, signal.SIG_IGN)
        # Before a preemption, SIGTERM finds the job running; when it is cancelled, the job counts as ended already.
        if stop.number != NOTICE and _state() != "RUNNING":
            raise
        try:
            requeue(NOTICE, None)  # and exit
        except Exception as error:
            raise NotRequeued(f"{stop}. {error} The same command goes on from here.") from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def catch_up(number: int) -> None:
    """Act on a signal that was held back until there was nothing left to save."""
    if signal.getsignal(number) is _stop:
        _stop(number)


def _stop(number: int, frame: Any = None) -> None:
    if not isinstance(sys.exc_info()[1], Stopped):  # asked again while it is stopping
        raise Stopped(f"stopped by {signal.Signals(number).name} outside of training", number)


def _state() -> str:
    """The state of this job, as SLURM names it; empty where it does not say."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # the id of one of its jobs is the array's own, and would name them all
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
