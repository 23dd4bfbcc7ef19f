"""What is advised against an error of a run; tests/test_faults.py has runs that meet them."""

import pickle
from pathlib import Path

import pytest

from experiments.config import advice
from ntl.runs import faults
from ntl.runs.record import RecordError

CONFIG = {
    "train": {"batch_size": 64, "accumulate": 2, "precision": "fp32", "loss_implementation": "auto", "fsdp": {}},
    "eval": {"batch_size": 256},
}


def told(during, config=CONFIG):
    """What is said of a lack of memory, after the error has passed from one process to another."""
    fault = faults.OutOfMemory("out of memory")
    fault.during = during
    advice.advise(fault, config)
    return advice.told(pickle.loads(pickle.dumps(fault)))


def test_a_lack_of_memory_says_what_to_change():
    training = told("training")
    assert training.startswith("out of memory: try a smaller train.batch_size")
    assert "train.batch_size=32 train.accumulate=4, which leaves a step its 128 rows" in training
    assert "train.precision=bf16" in training and "train.loss_implementation=linear" in training
    assert told("answering").startswith("out of memory: try a smaller eval.batch_size")
    assert told(None) == "out of memory: try a smaller model or a machine with more, with retry=true"


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ({"batch_size": 7}, "train.batch_size=1 train.accumulate=14"),
        ({"batch_size": 9}, "train.batch_size=3 train.accumulate=6"),
        ({"batch_size": 1}, ": try train.precision=bf16, or train.loss_implementation=linear"),
        ({"batch_size": 1, "precision": "bf16"}, ": try train.loss_implementation=linear"),
        ({"batch_size": 1, "precision": "bf16", "loss_implementation": "linear"}, ": try a smaller model"),
        ({"batch_size": 1, "precision": "fp16", "fsdp": {"version": 2}}, ": try a smaller model"),
    ],
)
def test_only_what_can_be_changed_is_advised(settings, advised):
    assert advised in told("training", CONFIG | {"train": CONFIG["train"] | settings})


def test_other_errors_stay_what_they_are_and_a_damaged_record_can_be_repaired():
    error = ValueError("no")
    advice.advise(error, CONFIG)
    assert advice.told(error) == "no"
    assert advice.told(RecordError(Path("record.json"), "it is empty")).endswith(
        "start the run again. python -m experiments status --repair moves the folders of all damaged records away."
    )
