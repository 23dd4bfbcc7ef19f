"""Faults in the middle of a run, at the command line: each ends in a failed record or one clear message."""

import json
import signal
import subprocess

import pytest
from helpers import killed
from test_run import SMALL, places, records

pytestmark = pytest.mark.slow
SMALL = [*SMALL, "loss=ntl_was"]
# Weights of a few megabytes, of which a batch of all rows needs more than five gigabytes at once.
WIDE = [a for a in SMALL if not a.startswith(("train.batch_size", "dataset.train_size", "model.architecture.d_ff"))]
WIDE += ["model.architecture.d_ff=16384", "dataset.train_size=6000"]


@pytest.fixture
def command(tmp_path):
    """Give a command line to run.py, which meets a fault if one is named; → exit code and all that it said."""

    def command(*arguments, folder=tmp_path / "run", **fault):
        folder.mkdir(exist_ok=True)
        log = tmp_path / f"log{len(list(tmp_path.glob('log*')))}"
        return killed.command([*arguments, *places(folder)], folder, log, **fault)

    return command


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    code, said = killed.command([*SMALL, *places(folder)], folder, folder / "log")
    assert code == 0, said
    return folder


def only(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


def results(folder):
    """What must be the same, however often a run was broken off."""
    path = only(folder, "outputs/runs/*/*/record.json")
    record = json.loads(path.read_bytes())
    assert record["status"] == "finished"
    files = [path.with_name(name).read_bytes() for name in ("history.parquet", "predictions.parquet")]
    return record["id"], record["metrics"], record["notes"], files


def error(said):
    """The one message that a command ends with."""
    assert "Traceback" not in said, said
    (found,) = [line for line in said.splitlines() if line.startswith("error: ")]
    return found


def test_a_run_that_needs_too_much_memory_fails_and_the_next_one_runs(tmp_path, command, record_property):
    code, said = command("-m", *WIDE, "train.batch_size=6000,8", memory=1500)
    assert code == 1, said
    told = error(said)
    assert "out of memory while training (" in told and "more were asked for): try a smaller train.batch_size" in told
    assert "train.batch_size=3000 train.accumulate=2, which leaves a step its 6000 rows" in told
    assert (
        "train.precision=bf16" in told
        and "train.loss_implementation=linear" in told
        and told.endswith("with retry=true")
    )
    found = {r["status"]: r for p in (tmp_path / "run").glob("outputs/runs/*/*/record.json") for r in [read(p)]}
    assert set(found) == {"failed", "finished"}
    reason = found["failed"]["reason"]
    assert reason["type"] == "OutOfMemory" and told.startswith(f"error: {reason['message']}: try ")
    assert reason["where"].startswith("ntl/")
    assert found["finished"]["config"]["train"]["batch_size"] == 8
    record_property("faults", 1)


def read(path):
    return json.loads(path.read_bytes())


def test_too_little_memory_to_answer_is_told_apart(tmp_path, command, record_property):
    code, said = command(*SMALL, "eval.beams=1000000000", "eval.untrained=false", memory=1500)
    assert code == 1, said
    assert "out of memory while answering" in error(said)
    assert "try a smaller eval.batch_size, such as eval.batch_size=128 for 256, with retry=true" in error(said)
    (record,) = records(tmp_path / "run").values()
    assert record["status"] == "failed" and record["reason"]["where"].startswith("ntl/")
    record_property("faults", 1)


@pytest.mark.parametrize(
    ("of", "size"),
    [
        pytest.param("checkpoint-6", 20_000, id="weights"),
        pytest.param("checkpoint-6", 60_000, id="optimizer"),
        pytest.param("record.json", 20_000, id="record"),
    ],
)
def test_a_full_disk_fails_no_run_and_room_lets_it_go_on(of, size, tmp_path, command, whole, record_property):
    """Simulated by a limit on the size of files, which the libraries see as they see a full disk."""
    code, said = command(*SMALL, of=of, size=size, kills=False)
    assert code == 1, said
    if of == "record.json":
        assert "could not be written to" in error(said) and "(File too large), and none was left" in error(said)
    else:
        assert "the disk is full" in error(said) and "iB free" in error(said)
    assert "the same command again: it goes on from the last checkpoint" in error(said)
    assert not list((tmp_path / "run").glob("outputs/**/record.json"))
    assert not list((tmp_path / "run").glob("outputs/runs/**/.record*"))
    code, said = command(*SMALL)
    assert code == 0, said
    assert results(tmp_path / "run") == results(whole)
    record_property("faults", 1)


@pytest.fixture
def disk(tmp_path):
    """Makes a disk of so many KiB, or gives it another size."""
    place = tmp_path / "disk"

    def disk(size):
        again = "remount," if place.exists() else ""
        place.mkdir(exist_ok=True)
        made = ["mount", "-t", "tmpfs", "-o", f"{again}size={size}k", "tmpfs", place]
        if subprocess.run(made, capture_output=True).returncode:
            pytest.skip("mounting a small disk is not allowed here; the limit on file size stands for it")
        return place

    yield disk
    subprocess.run(["umount", place], capture_output=True)


@pytest.mark.parametrize(
    ("what", "size", "last"),
    [("outputs", 200, None), ("outputs", 300, 3), ("outputs", 400, 6)],
)
def test_a_disk_that_is_full_at_any_time_fails_no_run(
    what, size, last, tmp_path, command, disk, whole, record_property
):
    """In the middle of the first and second checkpoint, of the trained model, of the answers, and of the record."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / what).symlink_to(disk(size), target_is_directory=True)
    code, said = command(*SMALL)
    assert code == 1, said
    assert "the same command again: it goes on from the last checkpoint" in error(said)
    assert not list(folder.glob("outputs/runs/*/*/record.json"))
    disk(4000)
    code, said = command(*SMALL)
    assert code == 0, said
    assert (f"going on from step {last}" in said) == (last is not None)
    assert results(folder) == results(whole)
    record_property("faults", 1)


def leases(folder):
    """How many leases are held, and how many have been given back."""
    times = [path.stat().st_mtime for path in folder.glob("outputs/runs/*/*/lease/*.json")]
    return sum(time > 1e6 for time in times), sum(time < 1e6 for time in times)


@pytest.mark.parametrize("answer", [2, 5], ids=["untrained", "trained"])
def test_a_run_that_is_stopped_while_it_answers_goes_on(answer, tmp_path, command, whole, record_property):
    """By SIGTERM, before the second of three splits."""
    folder = tmp_path / "run"
    code, said = command(*SMALL, answer=answer, number=signal.SIGTERM)
    assert code == 130, said
    assert "stopped: stopped by SIGTERM outside of training; the same command goes on from here" in said
    assert "Traceback" not in said and not list(folder.glob("outputs/**/record.json"))
    assert leases(folder) == (0, 1)
    code, said = command(*SMALL)
    assert code == 0, said
    assert ": resume" in said and ("going on from step 6" in said) == (answer == 5)
    assert results(folder) == results(whole)
    record_property("faults", 1)


def test_a_data_file_changed_under_a_run_stops_it_until_it_is_put_back(tmp_path, command, whole, record_property):
    folder = tmp_path / "run"
    code, said = command(*SMALL, answer=4)
    assert code == -signal.SIGKILL, said
    path = only(folder, "data/multiplication/*/train.jsonl")
    sealed = {p: p.read_bytes() for p in folder.glob("outputs/runs/*/*/checkpoints/**/*") if p.is_file()}
    original = path.read_bytes()
    path.write_bytes(original.replace(b"What", b"what", 1))
    code, said = command(*SMALL)
    assert code == 1, said
    assert error(said).startswith(f"error: {path}: the hash does not match; got sha256 ")
    assert "put the original file back" in error(said)
    assert not list(folder.glob("outputs/**/record.json"))
    assert {p: p.read_bytes() for p in sealed} == sealed and len(sealed) > 10
    path.write_bytes(original)
    code, said = command(*SMALL)
    assert code == 0, said
    assert "going on from step 6" in said and results(folder) == results(whole)
    record_property("faults", 2)
