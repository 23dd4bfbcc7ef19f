"""The mathematics data sets: generation end to end, published files, interruption, two at once, a full disk."""

import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data_prep import load
from data_prep.arithmetic import Arithmetic
from data_prep.base import DataError
from data_prep.mathematics import EXTRAPOLATION, TRAINING, Mathematics

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"train_size": 30, "validation_size": 4, "test_size": 5}


def prepare(root: Path, cls=Arithmetic, **options):
    return cls(**SMALL | options).prepare(root, progress=False)


def test_arithmetic_defaults_and_labels(tmp_path):
    data = prepare(tmp_path)
    assert data.splits == ("train", "validation", "interpolate", "extrapolate")
    assert data.manifest["sizes"] == {"train": 30, "validation": 4, "interpolate": 5, "extrapolate": 5}
    label = {"module": "arithmetic__add_or_sub", "difficulty": "easy"}
    for split in ("train", "validation", "interpolate"):
        assert all(label.items() <= row.items() for row in data.rows(split))
    assert all(row["module"] == label["module"] for row in data.rows("extrapolate"))
    assert all(row["difficulty"] == "medium" for row in data.rows("extrapolate"))
    assert data.manifest["source"]["mathematics-dataset"] == "1.0.1" and data.manifest["source"]["seed"] == 0


def test_mathematics_has_all_modules_in_every_split_mixed(tmp_path):
    data = prepare(tmp_path, Mathematics, train_size=2, validation_size=2, test_size=2)
    train = [(row["module"], row["difficulty"]) for row in data.rows("train")]
    assert set(train) == set(itertools.product(TRAINING, ("easy", "medium", "hard")))
    assert data.manifest["sizes"]["validation"] == 13 * 3 * 2
    interpolate = [row["module"] for row in data.rows("interpolate")]
    assert sorted(interpolate) == sorted(TRAINING * 2) and interpolate != sorted(interpolate)
    assert {row["module"] for row in data.rows("extrapolate")} == set(EXTRAPOLATION)


def test_the_fingerprint_depends_on_seed_and_sizes_but_not_on_the_number_of_workers(tmp_path):
    options = {"modules": ["numbers__place_value", "numbers__div_remainder_composed"], "train_size": 60}
    one = prepare(tmp_path / "a", workers=1, **options)
    two = prepare(tmp_path / "b", workers=2, **options)
    assert one.fingerprint == two.fingerprint
    assert one.folder.name == two.folder.name  # the number of workers names no other data
    assert json.dumps(one.manifest) == json.dumps(two.manifest)
    assert prepare(tmp_path / "b", seed=1, **options).fingerprint != one.fingerprint


def test_training_questions_of_a_test_split_are_dropped_from_a_small_space(tmp_path):
    """Easy questions about one digit repeat: what is drawn for a test must leave training."""
    module = "numbers__place_value"
    data = prepare(
        tmp_path,
        modules=[module],
        interpolation=[f"{module}@easy"],
        train_size=4000,
        validation_size=500,
        test_size=1000,
    )
    dropped, sizes = data.manifest["dropped"], data.manifest["sizes"]
    assert dropped["train"].get("interpolate", 0) > 0
    assert sizes["train"] == 4000 - sum(dropped["train"].values())
    assert sizes["validation"] == 500 - sum(dropped["validation"].values())
    assert sizes["interpolate"] == 1000
    questions = {split: {row["question"] for row in data.rows(split)} for split in data.splits}
    for one, other in itertools.combinations(questions.values(), 2):
        assert not one & other


def test_hydra_can_instantiate_the_yaml():
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    config = OmegaConf.load(ROOT / "conf" / "dataset" / "arithmetic.yaml")
    config.difficulties = ["easy", "hard"]
    dataset = instantiate(config)
    dataset.check()
    assert isinstance(dataset, Arithmetic) and type(dataset.difficulties) is list
    assert dataset.options() == load("arithmetic", ["difficulties=[easy,hard]"]).options()


# Published files in a local folder


@pytest.fixture
def published(tmp_path) -> Path:
    """A folder in the published layout: 40 questions a file."""
    folder = tmp_path / "published"
    for regime, module in [
        *[(f"train-{d}", "arithmetic__mul") for d in ("easy", "medium", "hard")],
        ("interpolate", "arithmetic__mul"),
        ("extrapolate", "arithmetic__mul_big"),
    ]:
        path = folder / regime / f"{module}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        pairs = [f"What is {n} * {len(regime)}?\n{n * len(regime)}\n" for n in range(40)]
        path.write_text("".join(pairs))
    return folder


LOCAL = {"modules": ["arithmetic__mul"], "difficulties": ["easy", "hard"], "interpolation": None}
LOCAL |= {"extrapolation": ["arithmetic__mul_big"], "source": "local"}


def test_published_files_are_read_by_seed_and_no_line_is_drawn_twice(tmp_path, published):
    options = LOCAL | {"folder": str(published), "train_size": 20}
    data = prepare(tmp_path / "data", **options)
    # train-hard and train-easy have names of equal length, so both files hold the same forty questions.
    drawn = sum(data.manifest["sizes"][split] for split in ("train", "validation")) + sum(
        sum(counts.values()) for counts in data.manifest["dropped"].values()
    )
    assert drawn == 2 * (20 + 4)
    for row in data.rows("train"):
        first, second = re.findall(r"\d+", row["question"])
        assert int(row["answer"]) == int(first) * int(second) and row["module"] == "arithmetic__mul"
    assert data.manifest["source"]["files"].keys() >= {"train-easy/arithmetic__mul.txt"}
    assert str(published) not in json.dumps(data.manifest)
    assert prepare(tmp_path / "data", **options | {"seed": 1}).fingerprint != data.fingerprint


def test_sizes_of_null_take_all_that_is_left(tmp_path, published):
    options = LOCAL | {"folder": str(published), "difficulties": ["easy"], "train_size": None, "test_size": None}
    data = prepare(tmp_path / "data", **options)
    assert data.manifest["sizes"] == {"train": 36, "validation": 4, "interpolate": 40, "extrapolate": 40}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda path: path.unlink(), r"arithmetic__mul\.txt: missing; expected the published layout"),
        (lambda path: path.write_text("What is 1?\n"), r"arithmetic__mul\.txt, line 1: a question without an answer"),
        (lambda path: path.write_text("a\n1\nb\ntwo\n" * 20), r"lines 3 and 4: the answer 'two' holds no number"),
        (lambda path: path.write_text("a\n1\n" * 3), "needs 5 questions, but the file has 3 left"),
    ],
)
def test_bad_published_files_are_named(tmp_path, published, change, complaint):
    change(published / "interpolate" / "arithmetic__mul.txt")
    with pytest.raises(DataError, match=complaint):
        prepare(tmp_path / "data", **LOCAL | {"folder": str(published)})


# Interruption, two processes at once, no room

LONG = ["arithmetic", "train_size=400000", "workers=2"]


def start(root: Path, *options: str, **kwargs) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "data_prep", *options, "--root", str(root), "--quiet"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs,
    )  # fmt: skip


def wait_for_training_rows(root: Path, process: subprocess.Popen) -> None:
    while not any(path.stat().st_size > 0 for path in root.glob("arithmetic/.*/data/train.jsonl")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_an_interrupted_generation_leaves_nothing_half_made(tmp_path, how):
    process = start(tmp_path, *LONG)
    wait_for_training_rows(tmp_path, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    _, errors = process.communicate()
    assert not list(tmp_path.glob("arithmetic/[!.]*"))
    if how == signal.SIGINT:
        assert process.returncode == 130 and "Interrupted" in errors and "Traceback" not in errors
        assert not list(tmp_path.glob("arithmetic/.*/data"))
    assert workers
    psutil.wait_procs(workers)
    assert prepare(tmp_path).manifest["sizes"]["train"] == 30  # the next one works


def test_two_processes_that_prepare_at_once_end_with_one_good_folder(tmp_path):
    options = ["arithmetic", "train_size=2000", "workers=1"]
    both = [start(tmp_path, *options) for _ in range(2)]
    results = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert len(list(tmp_path.glob("arithmetic/[!.]*"))) == 1
    assert sum("Waiting for another process to prepare arithmetic" in errors for _, errors in results) == 1
    assert results[0][0] == results[1][0]


def test_no_room_for_the_files_is_said_and_leaves_nothing(tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    process = start(tmp_path, "arithmetic", "train_size=500", preexec_fn=limit, env=environment)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "cannot prepare the data in" in errors and "make room" in errors and "Traceback" not in errors
    assert not list(tmp_path.glob("arithmetic/[!.]*")) and not list(tmp_path.glob("arithmetic/.*/data"))
