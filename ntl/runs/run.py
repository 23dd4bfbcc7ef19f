"""A run: its folder, its state, the lease that one process holds on it, and the record that it ends with.

run = Run(config, run_id(config, data.fingerprint), "outputs")
with run.lease(retry=config["retry"]):        # RunBusy, RunDone: nothing to do here
    ...                                       # train in run.folder, resuming from what lies there
    run.finish(record, history, predictions)
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ntl.files import write_atomically
from ntl.runs import record as records
from ntl.runs.identity import ALGORITHM_VERSION, canonical, checked_name, key, public, run_id
from ntl.runs.lease import HEARTBEAT, Lease, LeaseLost, RunBusy, is_held
from ntl.runs.record import RecordError, RecordExists, code_state, environment, read_record, read_records
from ntl.runs.scrubbing import scrub, without_names

__all__ = [
    "ALGORITHM_VERSION", "Lease", "LeaseLost", "RecordError", "RecordExists", "RecordNotWritten", "Run", "RunBusy",
    "RunDone", "canonical", "code_state", "environment", "key", "public", "read_record", "read_records", "run_id",
]  # fmt: skip

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 2000  # characters of an exception's message that a failed record keeps


class RunDone(RuntimeError):
    """There is nothing left to do for a run: it is finished, or failed before and no retry was asked for."""


class RecordNotWritten(OSError):
    """The disk did not take the record; there is none, or the one from before."""


class Run:
    """One run of the suite.

    Attributes:
        id: its identity, see `ntl.runs.identity.run_id`.
        folder: `<outputs>/runs/<dataset>/<id>/`, for the record, the trained model, checkpoints, logs and the lease.
    """

    def __init__(self, config: Mapping[str, Any], run_id: str, outputs: str | Path = "outputs"):
        dataset = checked_name(config, "dataset")
        if "/" in run_id or "\\" in run_id or not run_id.startswith(f"{dataset}-"):
            raise ValueError(f"run id is {run_id!r}; expected one that run_id() made for the data set {dataset!r}.")
        self.config, self.id = config, run_id
        self.folder = Path(outputs) / "runs" / dataset / run_id
        self._lease: Lease | None = None

    def status(self) -> str:
        """Return "finished", "failed", "running", "interrupted" (begun, but nobody works on it) or "missing".

        Raises:
            RecordError: there is a record, but it is damaged.
        """
        status = self._recorded_status()
        if status == "finished":
            return status
        if is_held(self.folder / "lease"):
            return "running"
        return status or ("interrupted" if (self.folder / "lease").exists() else "missing")

    def todo(self, retry: bool = False, force: bool = False) -> str:
        """Return what a sweep would do with this run now: "start", "resume", "retry", "again", "wait" or "skip".

        Finished runs are skipped unless `force`, failed ones unless `retry` or `force`; "wait" means that another
        process runs it already.
        """
        status = self.status()
        if (status == "finished" and not force) or (status == "failed" and not (retry or force)):
            return "skip"
        return {
            "finished": "again",
            "failed": "retry",
            "interrupted": "resume",
            "running": "wait",
            "missing": "start",
        }[status]

    @contextlib.contextmanager
    def lease(self, retry: bool = False, force: bool = False, interval: float = HEARTBEAT) -> Iterator[Lease]:
        """Hold this run, so that nobody else works on it.

        A lease whose process is gone, or on another machine silent for 8 intervals, is taken over, which the log says
        (and `Lease.taken_from`).

        Args:
            retry: work on a run that has failed as well. Its record is set aside as `record-<n>.json`, so that an
                interrupted retry is resumed like any other run.
            force: work on a finished or failed run as well. The finished run's record is set aside too, with its
                history and predictions; training starts from the beginning.
            interval: seconds between heartbeats.

        Raises:
            RunBusy: a living process holds it; has the attributes host, pid, age.
            RunDone: it is finished, or has failed, and neither `retry` nor `force` applies; asked again here, because
                another sweep may have done it a moment ago.
            RecordError: there is a record, but it is damaged.
        """
        lease = Lease(self.folder / "lease", f"run {self.id}", interval).acquire()
        self._lease = lease
        try:
            status = self._recorded_status()
            if status == "finished" and not force:
                raise RunDone(f"run {self.id} is finished; its record is in {self.folder}.")
            if status == "failed" and not (retry or force):
                reason = read_record(self.folder)["reason"]
                raise RunDone(
                    f"run {self.id} failed before ({reason.get('type')}: {reason.get('message')}); it is run again on "
                    "request."
                )
            if status:
                self._set_aside(status)
            # Says what is run here while there is no record.
            content = {"key": key(self.config), "config": public(self.config)}
            write_atomically(self.folder / "config.json", records.to_json(content))
            yield lease
        finally:
            self._lease = None
            lease.release()

    def finish(
        self,
        record: Mapping[str, Any],
        history: Iterable[Mapping[str, Any]],
        predictions: Iterable[Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Write the record of a finished run, its last file last, and return it.

        Args:
            record: metrics[state][split][group][name], timings, data, model, notes; environment and code are added.
                Strings are freed of absolute paths, numbers that are not finite become null.
            history: rows as `ntl.runs.record.history_bytes` takes them.
            predictions: rows as `ntl.runs.record.predictions_bytes` takes them.

        Raises:
            RecordExists: the run has a finished record already, and not this one.
            RecordNotWritten: the disk is full or not writable; no record was left.
            LeaseLost: another process has taken this run over.
        """
        tables = {
            records.HISTORY: records.history_bytes(history),
            records.PREDICTIONS: records.predictions_bytes(predictions),
        }
        files = {name: hashlib.sha256(content).hexdigest() for name, content in tables.items()}
        return self._write(self._whole(record, status="finished", files=files), tables)

    def fail(
        self, reason: BaseException | Mapping[str, str], record: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write a record that says why the run failed, and return it.

        Args:
            reason: the exception, or a mapping with type, message and where. Secrets of the environment, absolute
                paths, user and host name are taken out of it.
            record: further fields, as in `finish`.

        Raises:
            RecordExists: the run has a finished record, which stays.
            RecordNotWritten: the disk is full or not writable.
            LeaseLost: another process has taken this run over.
        """
        if isinstance(reason, BaseException):
            reason = reason_of(reason)
        reason = {
            name: without_names(str(text)[: 10 * _LONGEST_MESSAGE])[:_LONGEST_MESSAGE] for name, text in reason.items()
        }
        return self._write(self._whole(record or {}, status="failed", reason=reason), {})

    def _whole(self, record: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        extra = {name: value for name, value in record.items() if name not in ("schema", "id", "status", "reason")}
        extra |= {"notes": [without_names(str(note)) for note in record.get("notes", ())]}
        known = {"config": public(self.config), "seed": self.config["seed"], "key": key(self.config)}
        # The version tells a table whose numbers the present code would no longer compute.
        code = code_state() | {"algorithm_version": ALGORITHM_VERSION}
        state = {"environment": environment(), "code": code}
        whole = records.sealed(records.blank(**scrub(state | extra) | known, id=self.id, **fields))
        if problem := records.problem(whole, self.id):
            raise ValueError(f"the record of {self.id} would not be whole: {problem}.")
        return whole

    def _write(self, record: dict[str, Any], tables: Mapping[str, bytes]) -> dict[str, Any]:
        if self._lease:
            self._lease.check()
        content = records.to_json(record)
        if self._recorded_status() == "finished":
            return self._keep(content)
        path = self.folder / records.RECORD
        try:
            records.remove_leftovers(self.folder)
            for name, table in tables.items():
                write_atomically(self.folder / name, table)
            # A failed record may be replaced; where there is none, the first to write wins.
            written = write_atomically(path, content, exclusive=not path.exists())
        except OSError as error:
            raise RecordNotWritten(
                error.errno,
                f"The record of {self.id} could not be written to {self.folder} ({error.strerror}), and none was left. "
                "Make room or make the folder writable, then give the same command again: it goes on from the last "
                "checkpoint",
            ) from error
        return read_record(path) if written else self._keep(content)

    def _keep(self, content: bytes) -> dict[str, Any]:
        path = self.folder / records.RECORD
        if path.read_bytes() != content:
            raise RecordExists(
                f"{path} is already the record of a finished run, and is never overwritten. Move its folder away if "
                "the run is to be computed again."
            )
        return read_record(path)

    def _recorded_status(self) -> str | None:
        try:
            return read_record(self.folder)["status"]
        except FileNotFoundError:
            return None

    def _set_aside(self, status: str) -> None:
        """Rename the record (and what belongs to it) to `record-<n>.json`; killed at any point, none is lost."""
        if status == "finished":  # a checkpoint that outlived it would be the end of the new training
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        number = len(list(self.folder.glob("record-*.json"))) + 1
        tables = [self.folder / name for name in (records.HISTORY, records.PREDICTIONS)]
        for table in tables:
            if table.exists():
                write_atomically(table.with_stem(f"{table.stem}-{number}"), table.read_bytes())
        path = self.folder / records.RECORD
        path.rename(path.with_stem(f"{path.stem}-{number}"))
        for table in tables:
            table.unlink(missing_ok=True)
        log.info("%s: had %s before; tried again.", self.id, status)


def reason_of(error: BaseException) -> dict[str, str]:
    """Return what a failed record says of an error: its type, message, and where it was raised."""
    return {"type": type(error).__name__, "message": str(error), "where": _where(error)}


def _where(error: BaseException) -> str:
    """Return file, line and function of the innermost frame in this project's code, or the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    root = Path(__file__).resolve().parents[2]
    ours = [frame for frame in frames if root in Path(frame.filename).parents and "site-packages" not in frame.filename]
    frame = (ours or frames)[-1]
    path = Path(frame.filename)
    name = path.relative_to(root).as_posix() if ours else path.name
    return f"{name}:{frame.lineno} in {frame.name}"
