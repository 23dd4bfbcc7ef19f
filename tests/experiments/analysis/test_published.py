"""The published numbers: consistent with one another, and named as our arms are."""

import csv
from statistics import mean

import pytest

from experiments.analysis import published as paper
from experiments.analysis.figures import Figure
from experiments.analysis.metrics import describe, margin
from experiments.analysis.records import RESULTS
from experiments.analysis.table import Computed
from experiments.config.compose import load_experiment
from experiments.config.discovery import declared, module, module_name, shown
from ntl.evaluation.metrics import METRICS


def test_a_number_is_found_by_arm_split_and_metric():
    found = paper.published("ablation", "ntl_mae@0.3", "interpolate", "accuracy")
    assert (found.value, found.sd, found.model, found.source) == (0.45, 0.02, "t5_small", "effects table")
    assert paper.published("gpu/ablation", "ntl_mae@0.3", "interpolate", "accuracy") == found
    assert paper.published("ablation", "ntl_mae@0.3", "interpolate", "accuracy_paper_parser") == found
    assert paper.published("multirc", "ce", "test", "bleu").value == 0.13
    assert paper.published("ablation", "ntl_mae@0.3", "extrapolate", "accuracy") is None


def test_claims_quote_the_published_numbers():
    quoted = 0
    for claim in paper.claims():
        for arms, value in ((claim.baselines[:1], claim.paper_baseline), (claim.treatments[:1], claim.paper_treatment)):
            found = paper.published(claim.experiment, arms[0], claim.split, claim.metric)
            if found and value is not None:
                assert found.value == value, claim.id
                quoted += 1
    assert quoted >= 25


def test_the_modules_average_to_the_published_table():
    with open(paper.FOLDER / "mathematics_per_module.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["method"], row["split"]) == ("ce", "interpolate")]
    assert len(rows) == 13
    assert round(mean(float(row["number_accuracy"]) for row in rows), 2) == 0.64
    assert round(mean(float(row["log_mae"]) for row in rows), 2) == 0.13


def test_what_was_published_of_each_module_is_found():
    found = paper.published("mathematics", "ce", "interpolate", "accuracy", "algebra__linear_1d")
    assert (found.value, found.source) == (0.5925, "mathematics_per_module.csv")
    assert paper.published("mathematics", "rt_ntl@0.3", "extrapolate", "log_mae", "numbers__place_value_big")
    assert paper.published("mathematics", "ntl_was@0.3", "interpolate", "accuracy", "algebra__linear_1d") is None


def test_every_claims_experiment_has_its_arms():
    for claim in paper.claims():
        assert hasattr(module(claim.experiment), "judge") or {*claim.baselines, *claim.treatments} <= set(
            load_experiment(claim.experiment).arms
        ), claim.id


def test_signs_make_what_the_paper_claims_positive():
    effects = {claim.id: claim.paper_effect for claim in paper.claims()}
    # Raised accuracy, a lowered error, an accuracy that fell as claimed, and an error that rose as claimed.
    assert [effects[name] for name in ("C01", "C02", "C12", "C15")] == pytest.approx([0.11, 0.03, 0.11, 8.79])
    assert {claim.id for claim in paper.claims() if claim.no_effect} == {"C07", "C09", "C10", "C13", "C16", "C18"}


@pytest.mark.parametrize("experiment", [n for n in shown() if "/" not in n and not hasattr(module(n), "judge")])
def test_arms_that_are_claimed_or_published_are_arms_of_the_experiment(experiment):
    arms = set(load_experiment(experiment).arms) | {"mean", "median", "most_frequent"}
    claimed = [arm for c in paper.claims() if c.experiment == experiment for arm in (*c.baselines, *c.treatments)]
    published = [arm for name, arm, *_ in paper._results() if name == experiment]
    assert set(claimed) <= arms
    assert set(published) <= arms


@pytest.mark.parametrize("experiment", shown())
def test_what_an_experiment_shows_exists(experiment):
    assert module_name(experiment)
    tables, figures = ([one for one, _ in declared(experiment, kind, RESULTS)] for kind in ("tables", "figures"))
    assert tables
    for table in tables:
        if isinstance(table, Computed):
            continue
        arms = load_experiment(experiment).arms
        assert table.baseline in arms
        assert set(table.arms or ()) <= set(arms)
        assert {arm for c in table.comparisons for arm in c.arms} <= set(arms)
        assert set(table.shown_metrics()) <= set(METRICS)
    named = {table.file_name(experiment) for table in tables}
    assert all(figure.table.file_name(experiment) in named for figure in figures if isinstance(figure, Figure))
    for shown_so in (tables, figures):
        names = [one.file_name(experiment) for one in shown_so]
        assert len(set(names)) == len(names)


def test_claims_of_no_effect_have_a_margin_as_fixed_before_the_runs():
    margins = {claim.metric: margin(claim.metric)[1] for claim in paper.claims() if claim.no_effect}
    assert margins == {"mape": 0.05, "rmse": 0.05, "bleu": 0.01, "accuracy": 0.02, "step_time_ratio": 0.01}
    for claim in paper.claims():
        if claim.metric in METRICS:
            assert describe(claim.metric).better == claim.better
