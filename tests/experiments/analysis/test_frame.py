"""The numbers of a table."""

import numpy as np
import pandas as pd
import pytest
from helpers.made_records import TRAINED, metrics, scores, write_record
from helpers.table_cells import cell
from scipy import stats

from experiments.ablation import MAIN
from experiments.analysis.frame import frame
from experiments.analysis.records import Conflict, arm_runs, load
from experiments.config.compose import run_config

ACCURACY = {arm: np.array([accuracy for accuracy, _ in by_seed]) for arm, by_seed in TRAINED.items()}


def test_a_cell_is_mean_and_deviation_over_seeds(arms):
    found = cell(frame(MAIN, "ablation", arms), "ce")
    assert found["mean"] == pytest.approx(ACCURACY["ce"].mean())
    assert found["sd"] == pytest.approx(ACCURACY["ce"].std(ddof=1))
    assert (found["n"], found["seeds"], found["failed"]) == (5, 5, 0)
    assert pd.isna(found["difference"])


def test_a_difference_is_paired_by_seed(arms):
    found = cell(frame(MAIN, "ablation", arms), "ntl_was@0.3")
    test = stats.ttest_rel(ACCURACY["ntl_was@0.3"], ACCURACY["ce"])
    interval = test.confidence_interval(0.95)
    assert found["difference"] == pytest.approx(0.032)
    assert (found["ci_low"], found["ci_high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found["p"] == pytest.approx(test.pvalue)
    assert found["pairs"] == 5


def test_records_on_different_data_are_not_compared(tmp_path, ablation):
    write_record(tmp_path, run_config(ablation, "ce", 0), scores(metrics(0.5, 0.2)), data="one")
    write_record(tmp_path, run_config(ablation, "gce@1", 0), scores(metrics(0.5, 0.2)), data="other")
    with pytest.raises(Conflict, match="different data"):
        frame(MAIN, "ablation", arm_runs(ablation, load(tmp_path)))


def test_constants_that_contradict_one_another_are_an_error(tmp_path, ablation):
    write_record(tmp_path, run_config(ablation, "ce", 0), scores(metrics(0.5, 0.2)))
    odd = scores(metrics(0.5, 0.2))
    odd["median"]["interpolate"]["all"]["accuracy"] = 0.5
    write_record(tmp_path, run_config(ablation, "gce@1", 0), odd)
    with pytest.raises(Conflict, match="constant 'median'"):
        frame(MAIN, "ablation", arm_runs(ablation, load(tmp_path)))
