"""A lease on a folder: at most one process works in it, on one machine or on several that share the disk.

Each holder is a file `<number>.json` that is created atomically; the highest number holds the lease, and its time of
change is the heartbeat. Taking over means creating the next number, which only one of several takers can. Numbers only
rise, so a taker that was slow to act cannot remove the lease of a quicker one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import platform
import re
import secrets
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ntl.files import durable

log = logging.getLogger(__name__)

HEARTBEAT = 15.0  # seconds
MISSED = 8  # heartbeats; 2 minutes outlast the attribute caches of network file systems
_RELEASED = 86_400.0  # time of change of a released lease: the second of January 1970
_NUMBERED = re.compile(r"(\d{6})\.json")


class RunBusy(RuntimeError):
    """Another living process holds the lease.

    Attributes:
        host: its machine; pid: its process id; age: seconds since its last heartbeat.
    """

    def __init__(self, what: str, host: str, pid: int, age: float, patience: float):
        self.host, self.pid, self.age = host, pid, age
        super().__init__(
            f"{what} is held by process {pid} on {host}, last heard of {age:.0f} s ago. Wait for it or end it; once it "
            f"is gone, or silent for {patience:.0f} s, the same command takes over."
        )


class LeaseLost(RuntimeError):
    """Another process has taken this one's lease, because this one had been silent for too long."""


@dataclass(frozen=True)
class Holder:
    """Who holds, or last held, a lease."""

    host: str
    pid: int
    started: float  # when the process started, so that a reused pid is told apart (clock ticks or seconds)
    machine: str  # equal only where pids can be compared
    job: str | None  # SLURM job id
    restart: int  # how often SLURM has requeued that job
    interval: float  # seconds between heartbeats
    token: str

    @classmethod
    def this_process(cls, interval: float) -> Holder:
        """Describe the calling process."""
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_process_start(os.getpid()) or 0.0,
            machine=_machine(),
            job=os.environ.get("SLURM_JOB_ID"),
            restart=int(os.environ.get("SLURM_RESTART_COUNT", "0") or 0),
            interval=interval,
            token=secrets.token_hex(8),
        )

    def alive(self, age: float) -> bool:
        """Say whether the holder still works, given the seconds since its last heartbeat (infinite: released)."""
        if age == math.inf:
            return False
        if self.machine == _machine():
            return _process_start(self.pid) == self.started
        restart = int(os.environ.get("SLURM_RESTART_COUNT", "0") or 0)
        if self.job is not None and self.job == os.environ.get("SLURM_JOB_ID") and self.restart < restart:
            return False  # an earlier life of this very job
        return age <= MISSED * self.interval


class Lease:
    """The lease on `folder`; `what` names in messages what it protects, `interval` is the heartbeat in seconds."""

    def __init__(self, folder: Path, what: str, interval: float = HEARTBEAT):
        if not interval > 0:
            raise ValueError(f"interval is {interval}; expected seconds above 0.")
        self.folder, self.what, self.interval = Path(folder), what, interval
        self.taken_from: Holder | None = None  # the silent or dead holder before, if any
        self._number = 0
        self._stop = threading.Event()
        self._lost = threading.Event()

    def acquire(self) -> Lease:
        """Take the lease or raise RunBusy; raises OSError where the folder cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            number, holder, age = newest(self.folder)
            if holder and holder.alive(age):
                raise RunBusy(self.what, holder.host, holder.pid, age, MISSED * holder.interval)
            if self._claim(number + 1):
                break
        if holder and age < math.inf:
            self.taken_from = holder
            log.warning(
                "%s: taken over from process %d on %s, which is gone or silent (last heard of %.0f s ago).",
                self.what, holder.pid, holder.host, age,
            )  # fmt: skip
        for old in range(number, 0, -1):
            try:
                self._file(old).unlink()
            except FileNotFoundError:
                break
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()
        return self

    def release(self) -> None:
        """Give the lease back."""
        self._stop.set()
        self._thread.join()
        # Its file stays, because numbers must not start again; a time long past needs no space on a full disk.
        with contextlib.suppress(OSError):
            os.utime(self._file(self._number), (_RELEASED, _RELEASED))

    def check(self) -> None:
        """Raise LeaseLost if another process has taken over; to be called before anything is written."""
        if self._lost.is_set() or self._is_lost():
            raise LeaseLost(
                f"{self.what} was taken over by another process, or its folder {self.folder} was removed, while this "
                "process was silent. Nothing more is written here; the other process goes on."
            )

    def _claim(self, number: int) -> bool:
        self._number = number
        if not self._create(self._file(number), Holder.this_process(self.interval)):
            return False
        if _numbers(self.folder)[0] > number:  # we had slept over a takeover and its release
            self._file(number).unlink(missing_ok=True)
            return False
        return True

    def _create(self, path: Path, holder: Holder) -> bool:
        """Create the file of `holder` whole, or return False because another process was first."""
        temporary = self.folder / f".{holder.token}.tmp"
        try:
            with durable(temporary, "xb") as stream:
                stream.write(json.dumps(asdict(holder), sort_keys=True).encode())
            try:
                os.link(temporary, path)
            except FileExistsError:
                # The reply to a link can be lost on a network: two names mean that it did succeed.
                return temporary.stat().st_nlink == 2
            except OSError:  # no hard links here
                try:
                    with durable(path, "xb") as stream:
                        stream.write(temporary.read_bytes())
                except FileExistsError:
                    return False
            return True
        finally:
            temporary.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(self.interval):
            try:
                if self._is_lost():
                    self._lost.set()
                    return
                os.utime(self._file(self._number))  # None: the file server's clock, the same for every machine
            except OSError:
                continue  # a disk that is away for a moment is no reason to give up

    def _is_lost(self) -> bool:
        return _numbers(self.folder)[:1] != [self._number]

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"


def newest(folder: Path) -> tuple[int, Holder | None, float]:
    """Return number, holder and age (seconds since the last heartbeat; infinite: released); (0, None, inf) if none."""
    while numbers := _numbers(folder):
        path = folder / f"{numbers[0]:06d}.json"
        try:
            with open(path) as stream:  # opening makes network file systems look up the time anew
                changed = os.fstat(stream.fileno()).st_mtime
                content = stream.read()
        except FileNotFoundError:
            continue
        try:
            holder = Holder(**json.loads(content))
        except (ValueError, TypeError):  # half written where there are no hard links, or damaged: judged by its age
            holder = Holder("an unknown host", 0, 0.0, "", None, 0, HEARTBEAT, "")
        return numbers[0], holder, math.inf if changed <= _RELEASED else max(0.0, _now(folder) - changed)
    return 0, None, math.inf


def is_held(folder: Path) -> bool:
    """Return whether a living process holds the lease on `folder`."""
    _, holder, age = newest(folder)
    return holder is not None and holder.alive(age)


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the lease files, highest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((int(found[1]) for found in map(_NUMBERED.fullmatch, names) if found), reverse=True)


def _now(folder: Path) -> float:
    """Return the time by the clock that stamps files in `folder`: machines' own clocks may disagree."""
    probe = folder / f".{secrets.token_hex(8)}.now"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # not ours to write, or full
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _process_start(pid: int) -> float | None:
    """Return when process `pid` started, if possible in a unit that no step of the clock changes; None if gone."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        if platform.system() == "Linux":
            return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])  # ticks since boot
        return round(process.create_time(), 1)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


@functools.cache
def _machine() -> str:
    """Return a text that two processes share only if they see the same process ids."""
    with contextlib.suppress(OSError):  # Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()} {uuid.getnode():x}"
