"""A run from its first sign to its record: states, faults, and processes that meet."""

import getpass
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ntl.runs import record as records
from ntl.runs import scrubbing as privacy
from ntl.runs.run import (
    LeaseLost,
    RecordError,
    RecordExists,
    RecordNotWritten,
    Run,
    RunBusy,
    RunDone,
    read_record,
    run_id,
)

ROOT = Path(__file__).parents[3]
CONFIG = {
    "dataset": {"name": "arithmetic"},
    "model": {"_target_": "ntl.settings.ModelSettings", "name": "t5_nano", "family": "t5", "path": "/home/somebody/t5"},
    "loss": {"name": "ce", "encoding": "digits"},
    "train": {"_target_": "ntl.settings.TrainSettings", "steps": 3},
    "seed": 0,
    "logger": {"_target_": "ntl.runs.tracking.NoTracker"},
    "paths": {"results": "/home/somebody/results"},
}
RECORD = {
    "metrics": {"trained": {"interpolate": {"all": {"accuracy": 0.5, "mape": math.nan}}}},
    "timings": {"train": 1.5},
    "data": {"name": "arithmetic", "fingerprint": "f"},
    "model": {"parameters": 900_000},
    "notes": ["no number in any answer of /home/somebody/data/test.jsonl"],
}
HISTORY = [{"step": 1, "ce": 2.0}, {"step": 2, "ce": 1.0}]
PREDICTIONS = [{"split": "interpolate", "state": "trained", "index": 0, "text": "7"}]


@pytest.fixture
def run(tmp_path):
    return Run(CONFIG, run_id(CONFIG, "f"), tmp_path / "outputs")


def files(run):
    """What a run has written, but for the lease and the configuration that say who is at work."""
    found = (path.name for path in run.folder.iterdir()) if run.folder.exists() else ()
    return sorted(name for name in found if name not in ("lease", "config.json"))


def start(code: str, run: Run, **options) -> subprocess.Popen:
    """Start Python in another process, with `run`, CONFIG and the other things of this module at hand."""
    head = (
        f"import sys, time, os\nsys.path[:0] = [{str(ROOT)!r}]\nfrom tests.ntl.runs.test_run import *\n"
        f"run = Run(CONFIG, {run.id!r}, {str(run.folder.parents[2])!r})\n"
    )
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT} | options
    return subprocess.Popen([sys.executable, "-c", head + code], **options)


def test_folders_follow_the_layout(run, tmp_path):
    assert run.folder == tmp_path / "outputs" / "runs" / "arithmetic" / run.id
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("name", ["../../x", "arithmetic-/../../x", "other-t5_nano-ce-s0-12345678", ""])
def test_ids_cannot_leave_their_folder(name):
    with pytest.raises(ValueError, match="run id"):
        Run(CONFIG, name)


def test_from_missing_to_finished(run):
    assert (run.status(), run.todo()) == ("missing", "start")
    with run.lease():
        assert (run.status(), run.todo()) == ("running", "wait")
        record = run.finish(RECORD, HISTORY, PREDICTIONS)
    assert (run.status(), run.todo(), run.todo(retry=True)) == ("finished", "skip", "skip")
    assert files(run) == ["history.parquet", "predictions.parquet", "record.json"]
    assert read_record(run.folder) == record
    assert record["metrics"]["trained"]["interpolate"]["all"] == {"accuracy": 0.5, "mape": None}
    assert (record["id"], record["seed"], record["status"], record["reason"]) == (run.id, 0, "finished", None)
    assert records.read_history(run.folder)["ce"].tolist() == [2.0, 1.0]
    assert records.read_predictions(run.folder)["text"].tolist() == ["7"]
    with pytest.raises(RunDone, match="finished"), run.lease(retry=True):
        pytest.fail("a finished run was begun again")


def test_a_record_names_no_path(run):
    record = run.finish(RECORD, HISTORY, PREDICTIONS)
    assert "somebody" not in json.dumps(record)
    assert record["notes"] == ["no number in any answer of …/test.jsonl"]
    assert set(record["config"]) == {"dataset", "model", "loss", "train", "seed"}


def test_what_stopped_without_a_record_is_interrupted(run):
    with pytest.raises(KeyboardInterrupt), run.lease():
        raise KeyboardInterrupt
    assert (run.status(), run.todo()) == ("interrupted", "resume")
    with run.lease() as lease:
        assert lease.taken_from is None


def test_a_failed_run_says_why_and_is_tried_again_only_on_request(run):
    with run.lease():
        try:
            json.loads("{")
        except ValueError as error:
            record = run.fail(error, {"notes": ["at step 3"]})
    assert record["reason"]["type"] == "JSONDecodeError"
    assert "Expecting property name" in record["reason"]["message"]
    assert record["reason"]["where"].startswith("tests/ntl/runs/test_run.py:")
    assert record["notes"] == ["at step 3"]
    assert (run.status(), run.todo(), run.todo(retry=True)) == ("failed", "skip", "retry")
    with pytest.raises(RunDone, match=r"JSONDecodeError.*on request"), run.lease():
        pytest.fail("a failed run was begun again")
    assert run.status() == "failed"
    with run.lease(retry=True):
        assert run.status() == "running"
    assert run.status() == "interrupted"  # not failed: whoever interrupts a retry can resume it
    assert json.loads((run.folder / "record-1.json").read_text())["reason"] == record["reason"]
    run.finish(RECORD, HISTORY, PREDICTIONS)
    assert run.status() == "finished"


def test_a_finished_run_is_trained_again_by_force_and_its_record_is_kept(run):
    with run.lease():
        first = run.finish(RECORD, HISTORY, PREDICTIONS)
    (run.folder / "checkpoints" / "checkpoint-2").mkdir(parents=True)  # left by a kill just after the record
    before = {name: (run.folder / name).read_bytes() for name in ("record.json", "history.parquet")}
    assert (run.todo(), run.todo(retry=True), run.todo(force=True)) == ("skip", "skip", "again")
    with pytest.raises(KeyboardInterrupt), run.lease(force=True):
        assert not (run.folder / "checkpoints").exists()
        raise KeyboardInterrupt
    assert (run.status(), run.todo()) == ("interrupted", "resume")
    with run.lease():
        second = run.finish({**RECORD, "timings": {"train": 2}}, HISTORY, PREDICTIONS)
    assert second["timings"] != first["timings"] and read_record(run.folder) == second
    assert (run.folder / "record-1.json").read_bytes() == before["record.json"]
    assert (run.folder / "history-1.parquet").read_bytes() == before["history.parquet"]


def test_a_reason_names_no_one(run, monkeypatch):
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: "node17")
    monkeypatch.setattr(privacy.getpass, "getuser", lambda: "agnes")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    message = f"{Path.cwd()}/x {Path.home()}/y /home/agnes/z/file.txt agnes@node17 hf_0123456789 " + "long " * 10_000
    record = run.fail(RuntimeError(message))
    assert record["reason"]["message"].startswith("./x ")
    for private in (str(Path.cwd()), "agnes", "node17", "hf_0123456789"):
        assert private not in json.dumps(record["reason"])
    assert len(record["reason"]["message"]) <= 2000


def test_a_finished_record_is_never_overwritten(run):
    fixed = {**RECORD, "environment": {}, "code": {}}
    record = run.finish(fixed, HISTORY, PREDICTIONS)
    before = (run.folder / "record.json").read_bytes()
    assert run.finish(fixed, HISTORY, PREDICTIONS) == record  # the same again is no harm
    for attempt in (
        lambda: run.finish({**fixed, "timings": {"train": 2}}, HISTORY, PREDICTIONS),
        lambda: run.finish(fixed, HISTORY[:1], PREDICTIONS),
        lambda: run.fail(ValueError("late")),
    ):
        with pytest.raises(RecordExists, match=r"record\.json"):
            attempt()
        assert (run.folder / "record.json").read_bytes() == before
    assert records.read_history(run.folder)["step"].tolist() == [1, 2]


def test_equal_content_gives_equal_bytes(run, tmp_path):
    other = Run(CONFIG, run.id, tmp_path / "elsewhere")
    for one in (run, other):
        one.finish({**RECORD, "environment": {}, "code": {}}, iter(HISTORY), reversed(PREDICTIONS))
    for name in files(run):
        assert (run.folder / name).read_bytes() == (other.folder / name).read_bytes()


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 1}'])
def test_a_damaged_record_is_named_and_kept(run, content, record_property):
    run.folder.mkdir(parents=True)
    (run.folder / "record.json").write_bytes(content)
    for attempt in (run.status, lambda: run.finish(RECORD, HISTORY, PREDICTIONS), lambda: run.fail(ValueError("x"))):
        with pytest.raises(RecordError, match=r"record\.json"):
            attempt()
    with pytest.raises(RecordError), run.lease():
        pytest.fail("begun")
    assert (run.folder / "record.json").read_bytes() == content
    record_property("faults", 1)


def test_wrong_metrics_are_refused_before_anything_is_written(run):
    with pytest.raises(ValueError, match=r"metrics\.trained"):
        run.finish({**RECORD, "metrics": {"trained": {"interpolate": 0.5}}}, HISTORY, PREDICTIONS)
    assert files(run) == []


def test_whoever_lost_the_lease_writes_nothing(run, monkeypatch):
    with run.lease() as lease:
        (run.folder / "lease" / f"{lease._number + 1:06d}.json").write_text("{}")
        with pytest.raises(LeaseLost):
            run.finish(RECORD, HISTORY, PREDICTIONS)
        with pytest.raises(LeaseLost):
            run.fail(ValueError("x"))
    assert files(run) == []


HOLD = "\nwith run.lease():\n    print('held', flush=True)\n    time.sleep(600)"


def test_a_run_of_another_process_is_busy_until_that_is_killed(run, caplog, record_property):
    owner = start(HOLD, run)
    try:
        assert owner.stdout.readline() == "held\n"
        assert run.status() == "running"
        with pytest.raises(RunBusy, match=str(owner.pid)) as busy, run.lease():
            pytest.fail("held twice")
        assert (busy.value.host, busy.value.pid) == (socket.gethostname(), owner.pid)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert (run.status(), run.todo()) == ("interrupted", "resume")
    with run.lease() as lease:
        assert lease.taken_from.pid == owner.pid
    assert "taken over" in caplog.text
    record_property("faults", 1)


WORK = """
while not os.path.exists(sys.argv[1]): pass
while True:
    try:
        with run.lease():
            time.sleep(0.2)
            run.finish(RECORD, HISTORY, PREDICTIONS)
            print('trained')
            break
    except RunBusy: time.sleep(0.01)
    except RunDone: break
"""


def test_of_many_sweeps_one_does_each_run(run, tmp_path):
    go = tmp_path / "go"
    sweeps = [start(WORK.replace("sys.argv[1]", repr(str(go))), run) for _ in range(4)]
    time.sleep(0.5)
    go.touch()
    done = [sweep.communicate() for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0] * 4, done
    assert [output for output, _ in done].count("trained\n") == 1
    assert run.status() == "finished"


FULL = """
try: run.{call}
except RecordNotWritten as error: print(error); sys.exit(7)
"""
CALLS = {
    "finish": "finish(RECORD, HISTORY, [dict(PREDICTIONS[0], index=i, text=str(i**7)) for i in range(20000)])",
    "fail": "fail(ValueError('x' * 1000), dict(notes=['y' * 90000]))",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_limit_on_file_size_leaves_no_record(run, call, record_property):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"
    process = start(limit + FULL.format(call=CALLS[call]), run)
    output, errors = process.communicate()
    assert process.returncode == 7, errors
    assert run.id in output
    assert "then give the same command again" in output
    assert run.status() == "missing"
    assert not any(name.endswith(".tmp") or name == "record.json" for name in files(run))
    record_property("faults", 1)


@pytest.mark.parametrize("call", CALLS)
def test_a_full_disk_leaves_no_record_and_room_brings_it(run, call, record_property):
    disk = run.folder.parents[2]
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here; the limit on file size stands for it")
    try:
        with run.lease(), pytest.raises(RecordNotWritten, match=r"No space left.*none was left"):
            eval(f"run.{CALLS[call]}")
        assert run.status() == "interrupted"
        assert not any(name.endswith(".tmp") for name in files(run))
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        with run.lease():
            eval(f"run.{CALLS[call]}")
        assert run.status() in ("finished", "failed")
    finally:
        subprocess.run(["umount", disk], check=True)
    record_property("faults", 1)


def test_a_writer_killed_at_any_moment_leaves_a_whole_record_or_none(run, record_property):
    """SIGKILL just before each of the system calls that writing consists of."""
    code = """
import itertools
calls, stop = itertools.count(), {stop}
def counted(function):
    def call(*a, **k):
        if next(calls) == stop: os.kill(os.getpid(), 9)
        return function(*a, **k)
    return call
for name in ('fsync', 'replace', 'link', 'unlink'): setattr(os, name, counted(getattr(os, name)))
run.finish(dict(RECORD, environment=dict(), code=dict()), HISTORY, PREDICTIONS)
"""
    kills, seen = 0, set()
    while True:
        process = start(code.format(stop=kills), run)
        process.wait()
        seen.add(run.status())
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr.read()
        if run.status() == "finished":
            assert records.read_history(run.folder)["ce"].tolist() == [2.0, 1.0]
            for path in run.folder.glob("[!.]*"):
                path.unlink()
        kills += 1
    assert kills >= 10
    assert seen == {"missing", "finished"}
    assert files(run) == ["history.parquet", "predictions.parquet", "record.json"]
    record_property("faults", kills)


def test_records_hold_nothing_of_this_machine(run):
    record = run.fail(OSError(28, "No space left on device", str(Path.home() / "data" / "x")))
    text = json.dumps(record)
    for private in (str(ROOT), socket.gethostname(), getpass.getuser(), os.environ.get("HOME", "")):
        if len(private) > 4:
            assert private not in text
