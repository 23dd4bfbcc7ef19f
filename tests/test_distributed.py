"""One run on several processes, as torchrun starts them: what one process computes, and only the first one writes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file
from test_run import GPT2, SMALL, places

from ntl.runs import run as runs

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
TORCHRUN += ["--rdzv-endpoint=localhost:0"]
pytestmark = pytest.mark.slow

# Of 57 rows in batches of 8 the last has one row: there the second process has none. Two batches make a step.
STEPS = ["train.steps=20", "train.eval_every=5", "dataset.train_size=57", "train.accumulate=2"]
T5, GPT2 = [*SMALL, *STEPS, "loss=ntl_was"], [*GPT2, *STEPS, "loss=ntl_was"]
LONGER = [*T5, "train.steps=120", "train.eval_every=10"]
FSDP = ["+train.fsdp.version=2"]


def start(arguments, folder, program="run.py", processes=2):
    launcher = TORCHRUN if processes == 2 else [sys.executable]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*launcher, program, *arguments, *places(folder)], cwd=ROOT, **streams)


def done(*arguments, **options):
    """Give a command line to the processes; → exit code and all that they say."""
    process = start(*arguments, **options)
    said = process.communicate()[0]
    return process.returncode, said


def finished(*arguments, **options):
    code, said = done(*arguments, **options)
    assert code == 0, said
    return said


def only(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


def weights(folder):
    return load_file(only(folder, "outputs/runs/*/*/model/model.safetensors"))


def history(folder):
    return pd.read_parquet(only(folder, "outputs/runs/*/*/history.parquet"))


def validations(folder):
    """The curves of the validation: those of the training have one row more where a run was stopped."""
    rows = history(folder).dropna(subset="eval_loss").reset_index(drop=True)
    assert len(rows) >= 4 and "eval_ce" in rows
    return rows[["step", *(name for name in rows if name.startswith("eval_"))]]


def record(folder):
    return runs.read_record(only(folder, "outputs/runs/*/*/record.json"))


def answers(folder):
    return only(folder, "outputs/runs/*/*/predictions.parquet").read_bytes()


def files(folder):
    """What was written, whenever that was."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {re.sub(r"/\d{4}-\d\d-\d\d/[\d-]+/", "/WHEN/", path) for path in found}


def assert_equal_but_for_rounding(one, other):
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys() and {str(value.dtype) for value in first.values()} == {"torch.float64"}
    for name, value in first.items():
        assert float((value - second[name]).abs().max()) < 1e-6, name
    pd.testing.assert_frame_equal(validations(one), validations(other), rtol=1e-6, atol=1e-9)
    assert answers(one) == answers(other)
    left, right = record(one), record(other)
    assert left["id"] == right["id"] and left["data"] == right["data"]
    first, second = (pd.json_normalize(found["metrics"]).T for found in (left, right))
    pd.testing.assert_frame_equal(first, second, rtol=1e-6)
    assert (left["environment"]["processes"], right["environment"]["processes"]) == (1, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(T5, id="t5"),
        pytest.param([*GPT2, "train.loss_implementation=linear", "train.max_grad_norm=0.5"], id="gpt2-linear"),
        pytest.param([*SMALL, *STEPS, "loss=xval"], id="xval"),
    ],
)
def test_two_processes_compute_what_one_does(arguments, tmp_path):
    """In float64, over 20 steps of two batches, with means over number tokens and gradient norms of both terms."""
    one, two = tmp_path / "one", tmp_path / "two"
    finished(arguments, one, program="tests/helpers/double.py", processes=1)
    said = finished(arguments, two, program="tests/helpers/double.py")
    assert said.count("recorded in") == 1
    assert_equal_but_for_rounding(one, two)
    pd.testing.assert_frame_equal(history(one), history(two), rtol=1e-6, atol=1e-9)
    assert files(one) == files(two)


def test_a_model_in_parts_becomes_what_a_whole_one_does(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    finished(T5, one, program="tests/helpers/double.py", processes=1)
    said = finished([*T5, *FSDP], two, program="tests/helpers/double.py")
    assert re.search(r"each process held 0\.5\d of the weights", said)
    assert_equal_but_for_rounding(one, two)
    assert files(one) == files(two)


def wait_for_checkpoint(process, folder):
    while not list(folder.glob("outputs/runs/*/*/checkpoints/checkpoint-*/sealed.json")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def stopped(arguments, folder, **options):
    """Send SIGTERM once there is a checkpoint; → what was said."""
    process = start(arguments, folder, **options)
    wait_for_checkpoint(process, folder)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0]
    assert process.returncode != 0
    assert "SIGTERM: saving a checkpoint" in said and "the same command goes on from here" in said, said
    assert not list(folder.glob("outputs/runs/*/*/record.json"))
    return said


@pytest.mark.parametrize("how", [[], FSDP], ids=["ddp", "fsdp"])
def test_a_stopped_run_on_two_processes_ends_as_the_uninterrupted_one(how, tmp_path):
    arguments = [*LONGER, "model.architecture.dropout_rate=0.1", *how]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finished(arguments, whole)
    stopped(arguments, parts)
    assert "going on from step" in finished(arguments, parts)
    assert answers(whole) == answers(parts)
    assert record(whole)["metrics"] == record(parts)["metrics"]
    pd.testing.assert_frame_equal(validations(whole), validations(parts), check_exact=True)


def test_a_run_may_go_on_with_another_number_of_processes(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    finished(LONGER, one, program="tests/helpers/double.py", processes=1)
    stopped(LONGER, two, program="tests/helpers/double.py", processes=1)
    finished(LONGER, two, program="tests/helpers/double.py")
    assert_equal_but_for_rounding(one, two)


def test_a_run_that_fails_is_recorded_once(tmp_path, record_property):
    code, said = done([*T5, "train.learning_rate=1e30"], tmp_path)
    assert code == 1 and "error in process 0 of 2: the loss became nan" in said
    failed = record(tmp_path)
    assert failed["status"] == "failed" and failed["reason"]["type"] == "NotFinite"
    record_property("faults", 1)


def test_a_run_of_which_a_process_is_killed_goes_on(tmp_path, record_property):
    process = start(LONGER, tmp_path)
    wait_for_checkpoint(process, tmp_path)
    second = [child for child in children(process.pid) if environment(child).get("RANK") == "1"]
    os.kill(second[0], signal.SIGKILL)
    said = process.communicate()[0]
    assert process.returncode == 1
    assert not list(tmp_path.glob("outputs/runs/*/*/record.json")), said
    assert "going on from step" in finished(LONGER, tmp_path)
    assert record(tmp_path)["status"] == "finished"
    record_property("faults", 1)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def environment(pid):
    content = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(entry.partition("=")[::2] for entry in content.split("\0"))


def test_a_sweep_on_two_processes_does_its_runs_one_after_another(tmp_path):
    arguments = ["-m", *T5, "seed=0,1"]
    assert finished(arguments, tmp_path).count("recorded in") == 2
    again = finished(arguments, tmp_path)
    assert again.count("skip, it is finished") == 2
    assert len(list(tmp_path.glob("outputs/runs/*/*/record.json"))) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-m", "hydra/launcher=joblib"], "error: hydra/launcher: got one beside 2 processes"),
        (["loss=ntl_wos"], "error: unknown loss 'ntl_wos'"),
    ],
)
def test_a_wrong_command_is_told_once(arguments, message, tmp_path):
    code, said = done([*SMALL, *arguments], tmp_path)
    assert code == 1 and said.count("error: ") == 1 and message in said
    assert not any(tmp_path.iterdir())


def masks(seed, folder):
    """What dropout leaves out in each process, and the weights that come of it."""
    folder.mkdir()
    command = [*TORCHRUN, "tests/helpers/masks.py", str(seed), str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    weights = {(folder / f"{rank}.weights").read_text() for rank in (0, 1)}
    assert len(weights) == 1
    return found, weights


def test_dropout_follows_from_the_seed_and_differs_between_processes(tmp_path):
    first, again, other = (masks(seed, tmp_path / name) for seed, name in ((0, "a"), (0, "b"), (1, "c")))
    assert first == again
    assert first[1] != other[1]
    every = [mask for found, _ in (first, other) for process in found for mask in process]
    assert len(every) > 16 and len(set(every)) == len(every)  # no process repeats another, of any seed
