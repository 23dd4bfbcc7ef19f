"""What can go wrong with a run, made to happen: a clear message, nothing lost, no effect on other runs."""

import resource
import signal
import subprocess

import pytest
from test_run import ARMS, SMALL, process, records, wait_for

from ntl import runs

pytestmark = pytest.mark.slow

LONG = [*(a for a in SMALL if not a.startswith(("train.steps", "train.eval_every"))), "loss=ntl_was"]
LONG += ["train.steps=120", "train.eval_every=10", "train.accumulate=2", "model.architecture.dropout_rate=0.1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    done(LONG, folder, folder)
    return folder


@pytest.fixture(autouse=True)
def counted(record_property):
    record_property("faults", 1)


def start(arguments, folder, whole, **options):
    places = [f"paths.{name}={folder / name}" for name in ("outputs", "results")]
    return process(*arguments, *places, f"paths.data={whole / 'data'}", **options)


def done(arguments, folder, whole, code=0, **options):
    """Give the command; → what it says."""
    started = start(arguments, folder, whole, **options)
    said = started.communicate()[0]
    assert started.returncode == code, said
    assert code == 0 or ("error: " in said.splitlines()[-1] and "Traceback" not in said), said
    return said


def interrupted(folder, whole):
    """Stop the run once it has written two checkpoints; → the newest of them."""
    started = start(LONG, folder, whole)
    wait_for(started, lambda: len(sealed(folder)) >= 2)
    started.send_signal(signal.SIGTERM)
    said = started.communicate()[0]
    assert started.returncode == 130 and "the same command goes on from here" in said, said
    assert not records(folder)
    return max(sealed(folder), key=lambda path: int(path.name.rpartition("-")[2]))


def sealed(folder):
    return [path.parent for path in folder.glob("outputs/runs/*/*/checkpoints/checkpoint-*/sealed.json")]


def record_file(folder):
    (path,) = folder.glob("results/runs/*/*/record.json")
    return path


def assert_same(folder, whole):
    one, other = (runs.read_record(record_file(place).parent) for place in (folder, whole))
    for name in ("id", "status", "metrics"):
        assert one[name] == other[name], name
    assert one["files"]["predictions.parquet"] == other["files"]["predictions.parquet"]


def test_a_run_without_enough_memory_fails_and_the_others_go_on(whole, tmp_path):
    wide = [a for a in SMALL if "d_ff" not in a]  # what is set on the command line goes before what an arm sets
    huge = '+arms.huge=["loss=ntl_mse","model.architecture.d_ff=100000000000000"]'  # more than can be addressed
    said = done(["-m", *wide, huge, ARMS[0], "seeds=[0]"], tmp_path, whole, code=1)
    assert "try train.batch_size=4 train.accumulate=2" in said and "train.fused=linear retry=true" in said
    found = records(tmp_path)
    assert {key[0]: record["status"] for key, record in found.items()} == {"ntl_mse": "failed", "ce": "finished"}
    reason = found["ntl_mse", 0]["reason"]
    assert reason["type"] == "OutOfMemory" and reason["message"].startswith("out of memory (DefaultCPUAllocator")


# Bytes that no file may have more of: the weights have fewer than the optimizer's moments.
@pytest.mark.parametrize("size", [20_000, 60_000], ids=["weights", "optimizer"])
def test_a_checkpoint_that_finds_no_room_leaves_a_run_that_goes_on(size, whole, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    said = done(LONG, tmp_path, whole, code=1, preexec_fn=limit)
    last = said.splitlines()[-1]
    assert last.startswith("error: no room to write") and "then give the same command again" in last
    assert not records(tmp_path) and not sealed(tmp_path)
    done(LONG, tmp_path, whole)
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_checkpoint_is_said_and_passed_over(damage, whole, tmp_path):
    newest = interrupted(tmp_path, whole)
    path = newest / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    said = done(LONG, tmp_path, whole)
    assert newest.name in said and "going on from step" in said
    assert f"going on from step {newest.name.rpartition('-')[2]}\n" not in said
    assert_same(tmp_path, whole)


def test_data_changed_under_a_run_stop_it_and_are_named(whole, tmp_path):
    data = tmp_path / "own"
    subprocess.run(["cp", "-r", whole, data], check=True)
    newest = interrupted(tmp_path, data)
    (path,) = data.glob("data/multiplication/*/interpolate.jsonl")
    content = path.read_text()
    path.write_text(content.replace("What", "what", 1))
    said = done(LONG, tmp_path, data, code=1)
    assert f"error: {path}: the hash does not match" in said
    assert not records(tmp_path) and newest in sealed(tmp_path)
    path.write_text(content)
    assert "going on from step" in done(LONG, tmp_path, data)
    assert_same(tmp_path, whole)


def test_a_record_damaged_by_hand_is_named_and_left(whole, tmp_path):
    """tests/experiments/test_repair.py sets such records aside."""
    subprocess.run(["cp", "-r", whole / "results", tmp_path], check=True)
    path = record_file(tmp_path)
    path.write_text(path.read_text().replace('"status": "finished"', '"status": "finishd"'))
    content = path.read_bytes()
    said = done(LONG, tmp_path, whole, code=1)
    assert str(path) in said and "status --repair" in said
    assert path.read_bytes() == content


def test_a_run_that_is_stopped_while_it_answers_goes_on(whole, tmp_path):
    started = start(LONG, tmp_path, whole)
    last = "checkpoint-120"
    wait_for(started, lambda: last in [path.name for path in sealed(tmp_path)])
    started.send_signal(signal.SIGTERM)
    said = started.communicate()[0]
    assert started.returncode == 130 and "the same command goes on from here" in said, said
    assert "Traceback" not in said and not records(tmp_path)
    done(LONG, tmp_path, whole)
    assert_same(tmp_path, whole)


def test_two_sweeps_at_once_do_each_run_once(whole, tmp_path):
    sweep = ["-m", *(a for a in LONG if not a.startswith("loss=")), *ARMS, "seeds=[0,1]"]
    both = [start(sweep, tmp_path, whole) for _ in range(2)]
    said = "".join(one.communicate()[0] for one in both)
    assert [one.returncode for one in both] == [0, 0], said
    assert said.count("recorded in") == len(records(tmp_path)) == 4
    assert said.count(": skip, ") == 4
