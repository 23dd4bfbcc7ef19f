"""Killed at any moment and started again, a run ends as if nothing had happened, byte for byte."""

import json
import random
import signal
import time
from itertools import count

import pytest
from helpers import killed
from test_run import GPT2, SMALL, places

RECORD = ("record.json", "history.parquet", "predictions.parquet")
DROPOUT = {
    "t5": ["model.architecture.dropout_rate=0.2"],
    "gpt2": [f"model.architecture.{name}_pdrop=0.2" for name in ("resid", "embd", "attn")],
}


def overrides(family, implementation, folder):
    """A run of eight steps, each of two micro-batches, with a checkpoint after every second."""
    settings = {"steps": 8, "eval_every": 2, "batch_size": 4, "accumulate": 2, "loss_implementation": implementation}
    small = {"t5": SMALL, "gpt2": GPT2}[family]
    kept = [a for a in small if not a.startswith(("train.steps", "train.eval_every", "train.batch_size"))]
    return [
        *kept,
        "loss=ntl_was",
        *(f"train.{name}={value}" for name, value in settings.items()),
        *DROPOUT[family],
        *(place for place in places(folder) if not place.startswith("paths.data=")),
    ]


class Campaign:
    """One configuration, done in peace once and then again and again under fire."""

    def __init__(self, family, implementation, base):
        self.family, self.implementation, self.base = family, implementation, base
        self.kills, self.numbers = 0, count()
        self.expected = None
        self.begin_anew()
        self.attempt()
        changes = self.log.with_name(f"{self.log.name}.changes").read_text().splitlines()
        self.changes, self.recorded = len(changes), sum(any(name in change for name in RECORD) for change in changes)
        self.expected = self.result()

    def begin_anew(self):
        self.folder = self.base / f"run{next(self.numbers)}"
        self.folder.mkdir()

    def start(self, **fault):
        self.log = self.base / f"log{next(self.numbers)}"
        arguments = [*overrides(self.family, self.implementation, self.folder), f"paths.data={self.base / 'data'}"]
        process = killed.process(arguments, self.folder, self.log, **fault)
        process.start()
        return process

    def attempt(self, **fault):
        """Start the run, or let it go on; returns whether it was killed rather than finished."""
        process = self.start(**fault)
        process.join(120)
        return self.ended(process)

    def attempt_for(self, seconds):
        """The same, killed after so many seconds."""
        process = self.start()
        process.join(seconds)
        process.kill()
        process.join()
        return self.ended(process)

    def ended(self, process):
        assert process.exitcode in (0, -signal.SIGKILL, -signal.SIGXFSZ), self.log.read_text()[-3000:]
        self.kills += process.exitcode != 0
        if process.exitcode == 0 and self.expected is not None:
            assert self.result() == self.expected
        return process.exitcode != 0

    def result(self):
        """What must be the same: metrics, and the bytes of answers and curves."""
        (path,) = self.folder.glob("outputs/runs/*/*/record.json")
        files = {name: path.with_name(name).read_bytes() for name in RECORD[1:]}
        left = {p.name for p in path.parent.iterdir()} - {*RECORD, "config.json", "lease", "model"}
        assert left <= {"checkpoints"}  # they stay if the kill came after the record
        record = json.loads(path.read_bytes())
        return {name: record[name] for name in ("id", "status", "metrics", "notes", "model")} | files

    def under_fire(self, faults):
        """Kill the run by each fault in turn, each time where the last one left it; then let it finish."""
        self.begin_anew()
        for fault in faults:
            if not (self.attempt_for(fault) if isinstance(fault, float) else self.attempt(**fault)):
                self.begin_anew()  # it came to its end before
        assert not self.attempt()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "implementation"), [("t5", "plain"), ("gpt2", "linear"), ("t5", "fused")])
def test_a_run_killed_at_any_moment_ends_as_the_uninterrupted_one(family, implementation, tmp_path, record_property):
    random.seed(f"{family} {implementation}")
    campaign = Campaign(family, implementation, tmp_path)
    # Before a change of files, once in each stretch of the run: preparation, checkpoints, saved model, record.
    stretch = campaign.changes / 12
    for index in range(12):
        campaign.under_fire([{"event": round(stretch * index + random.uniform(1, stretch))}])
    # In the middle of a file: weights, then the optimizer's moments, which are twice as large.
    campaign.under_fire([{"size": 20_000}, {"size": 20_000}, {"size": 60_000}])
    # While it answers the second and third test split, after training.
    campaign.under_fire([{"answer": 5}, {"answer": 6}])
    # Before changes of its record's files, then in the middle of writing the curves, and the record itself.
    first, second = sorted(random.sample(range(2, campaign.recorded + 1), 2))
    record = [{"event": first}, {"event": second}, {"size": 600}]
    campaign.under_fire([*({"of": RECORD} | fault for fault in record), {"of": "record.json", "size": 9000}])
    # Again and again, at random times, wherever it has come to.
    start = time.monotonic()
    campaign.under_fire([])
    whole = time.monotonic() - start
    campaign.under_fire([random.uniform(0.2, 0.9) * whole for _ in range(3)])
    assert campaign.kills >= 20
    record_property("kills", campaign.kills)
