"""What `python -m experiments` takes, from made records of many experiments."""

import itertools
import os

import pytest
from helpers.copied_tree import command, copy_tree
from helpers.made_records import everywhere, write_record

from experiments.config.compose import load_experiment, run_config
from experiments.config.discovery import shown
from ntl.evaluation.metrics import METRICS


def write_records(results, names, count):
    """Write so many records of these experiments: one arm of each, then the next; seed 0, then 1, …"""
    experiments = [load_experiment(name) for name in names]
    turns = list(itertools.zip_longest(*(experiment.arms for experiment in experiments)))
    written = set()
    for seed, arms in itertools.product(range(5), turns):
        for experiment, arm in zip(experiments, arms, strict=True):
            if arm is None or seed not in experiment.seeds or len(written) == count:
                continue
            value = 0.3 + 0.01 * len(arm) + 0.001 * seed**2
            written.add(write_record(results, run_config(experiment, arm, seed), everywhere(METRICS, value)))
    assert len(written) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "count", "most"),
    [(["ablation", "calibration/arithmetic", "calibration/multiplication"], 14, 15), (shown(), 400, 60)],
    ids=["14", "400"],
)
def test_all_that_needs_no_computation_is_made_soon(names, count, most, tmp_path):
    tree = copy_tree(tmp_path)
    write_records(tree / "results", names, count)
    used = {}
    for configurations in ("composed", "kept from before"):
        before = os.times()
        command(tree, "-m", "experiments")
        after = os.times()
        used[configurations] = sum(after[2:4]) - sum(before[2:4])  # of child processes: user and system
    print(f"{count} records:", ", ".join(f"{seconds:.1f} CPU-s ({how})" for how, seconds in used.items()))
    assert used["kept from before"] < most, used
