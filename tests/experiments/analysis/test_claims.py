"""Verdicts from records."""

import csv
import io

import numpy as np
import pytest
from helpers.made_records import metrics, scores, write_record
from scipy import stats

from experiments.analysis import published
from experiments.analysis.claims import COLUMNS, JUDGED_BY, judge, to_csv, to_markdown
from experiments.analysis.records import load
from experiments.analysis.statistics import detectable, detectable_margin, holm
from experiments.config.compose import load_experiment, run_config
from experiments.mathematics import TABLES as mathematics_tables
from experiments.rjokes import MAIN as rjokes_table

NOISE = np.array([0.010, -0.012, 0.004, -0.006, 0.002])
BASE = np.array([0.36, 0.45, 0.41, 0.46, 0.40])


def sweep(results, ablation, **accuracy):
    """Records with these interpolation accuracies by seed; arms by keyword, spelt as in ARMS."""
    for name, by_seed in accuracy.items():
        for seed, value in enumerate(by_seed):
            scored = scores(metrics(float(value), 0.3), metrics(float(value), 0.4, mae=40 * float(value)))
            write_record(results, run_config(ablation, ARMS[name], seed), scored)


ARMS = {
    "ce": "ce",
    "mae": "ntl_mae@0.3",
    "huber": "ntl_huber@0.3",
    "was": "ntl_was@0.3",
    "was2": "ntl_was@2.0",
    "mse": "ntl_mse@0.15",
    "mse2": "ntl_mse@2.0",
    "gce": "gce@0.5",
    "gce_was": "gce_ntl_was@0.5",
}


def verdicts(results, scale="cpu"):
    return {o.claim.id: o for o in judge(load(results), results) if o.scale in (scale, "analytic")}


def test_without_records_nothing_was_run(tmp_path):
    outcomes = verdicts(tmp_path)
    with_weights = verdicts(tmp_path, "pretrained")
    judged = ["C01", "C02", "C03", "C05", "C06", "C07", "C08", "C09", "C10"]
    assert sorted(with_weights) == [*judged, "C19"]
    assert {*outcomes} | {*with_weights} == {f"C{i:02}" for i in range(1, 21)} and len(outcomes) == 14
    analytic = outcomes.pop("C19")  # computed, not run
    assert analytic.verdict == "reproduced" and analytic.scale == "analytic"
    assert {outcome.verdict for outcome in outcomes.values()} == {"not run"}
    assert outcomes["C11"].command == "python run.py -m experiment=ablation arm=ce,ntl_mae@0.3"
    assert outcomes["C11"].remark == "0 of 10 runs finished"
    assert outcomes["C11"].effect.n == 0


def test_differences_are_signed_and_holm_corrected(tmp_path, ablation):
    sweep(
        tmp_path, ablation,
        ce=BASE, mae=BASE + 0.1 + NOISE,  # C11: as claimed
        mse=BASE, mse2=BASE + 0.1 - NOISE,  # C12: better, where the paper says worse
        gce=BASE, gce_was=BASE + 0.001 + NOISE,  # C14: nothing; C15: errors follow accuracy here
    )  # fmt: skip
    found = verdicts(tmp_path)
    assert {name: found[name].verdict for name in ("C11", "C12", "C14", "C15")} == {
        "C11": "reproduced", "C12": "opposite", "C14": "no clear effect", "C15": "floor",
    }  # fmt: skip
    assert found["C11"].effect.difference == pytest.approx(0.0996)
    assert found["C12"].effect.difference == pytest.approx(-0.1004)
    raw = [found[name].raw_p for name in ("C11", "C12", "C14", "C15")]
    assert [found[name].p for name in ("C11", "C12", "C14", "C15")] == pytest.approx(holm(raw).tolist())
    assert found["C11"].raw_p == pytest.approx(stats.ttest_rel(BASE + 0.1 + NOISE, BASE).pvalue)


def test_equivalence_floor_and_ceiling(tmp_path, ablation):
    sweep(
        tmp_path, ablation,
        was=BASE, was2=BASE + NOISE / 4,  # C13: equivalent
        ce=[0.05] * 5, mae=[0.06, 0.06, 0.07, 0.06, 0.06],  # C11: the best constant has 0.05
        gce=[0.99] * 5, gce_was=[0.995] * 5,  # C14: ceiling
    )  # fmt: skip
    found = verdicts(tmp_path)
    assert [found[name].verdict for name in ("C13", "C11", "C14")] == ["equivalent", "floor", "ceiling"]


def test_of_several_comparisons_any_is_enough_where_the_claim_says_sometimes(tmp_path, ablation):
    sweep(tmp_path, ablation, was=BASE, mae=BASE - 0.2 + NOISE, huber=BASE + 0.1 + NOISE)
    found = verdicts(tmp_path)["C16"]
    assert found.verdict == "equivalent"  # Huber is not worse by more than the margin
    assert found.effect.difference == pytest.approx(0.0996)


def test_seeds_that_are_not_there_yet_are_said(tmp_path, ablation):
    sweep(tmp_path, ablation, ce=BASE, mae=(BASE + 0.1 + NOISE)[:3])
    found = verdicts(tmp_path)["C11"]
    assert (found.effect.n, found.seeds, found.remark) == (3, 5, "on 3 of 5 seeds so far")
    sweep(tmp_path / "one", ablation, ce=BASE[:1], mae=BASE[:1] + 0.1)
    assert verdicts(tmp_path / "one")["C11"].verdict == "no clear effect"


def test_the_files_hold_the_contracts_columns(results):
    outcomes = judge(load(results), results)
    rows = list(csv.DictReader(io.StringIO(to_csv(outcomes))))
    assert tuple(rows[0]) == COLUMNS
    assert ",".join(COLUMNS) == "id,claim,verdict,effect,ci_low,ci_high,p,n,scale,paper_effect,command"
    at_both = ("C01", "C02", "C03")
    assert [row["id"] for row in rows] == sorted([f"C{i:02}" for i in range(1, 21)] + [*at_both])
    assert {row["scale"] for row in rows if row["id"] in at_both} == {"cpu", "pretrained"}
    by_id = {row["id"]: row for row in rows}
    assert float(by_id["C11"]["effect"]) == pytest.approx(np.mean([0.08, 0.01, 0.02]), rel=1e-5)
    assert by_id["C11"]["n"] == "3"
    assert by_id["C01"]["effect"] == ""
    text = to_markdown(outcomes)
    assert all(f"| {row['id']} " in text for row in rows)


def test_the_pilots_spread_says_what_the_planned_seeds_detect(tmp_path, ablation):
    pilot = load_experiment("pilot")
    for seed, shift in zip(pilot.seeds, NOISE, strict=True):
        for arm, value in (("ce", 0.4), ("ntl_was@0.3", 0.4 + float(shift))):
            write_record(tmp_path, run_config(pilot, arm, seed), scores(metrics(value, 0.3)))
    found = verdicts(tmp_path)
    family = 13  # claims of a difference that rest on runs: C01-C03 twice, C04, C11, C12, C14, C15, C17, C20, and
    family += 3  # C05, C06, C08 with pretrained weights
    sd = np.std(NOISE, ddof=1)
    assert found["C11"].verdict == "not run" and found["C11"].seeds == 5
    assert found["C11"].detectable == pytest.approx(detectable(sd, 5, 0.05 / family))
    assert found["C13"].detectable == pytest.approx(detectable_margin(sd, 5))
    assert found["C02"].detectable == 0.0  # its metric did not vary
    assert verdicts(tmp_path, "pretrained")["C06"].detectable is None
    assert f"| {found['C11'].detectable:.3f} " in to_markdown(judge(load(tmp_path), tmp_path))


def test_the_best_constant_stands_beside_each_claim(tmp_path, ablation):
    sweep(tmp_path, ablation, ce=[0.04] * 5, mae=BASE)
    assert verdicts(tmp_path)["C11"].constant == "0.050; ntl_mae@0.3 better"


def test_methods_that_write_floats_are_judged_with_a_tolerance(tmp_path):
    """Exact equality cannot score them: every claim of accuracy with such an arm has another metric."""
    floats = {"xval", "xval_mask", "regression_head"}
    of_floats = [
        claim
        for claim in published.claims()
        if claim.metric == "accuracy" and floats & {arm.split("/")[0] for arm in (*claim.baselines, *claim.treatments)}
    ]
    assert {claim.id for claim in of_floats} == set(JUDGED_BY) == {"C04"}
    mathematics = load_experiment("mathematics")
    for seed in mathematics.seeds:
        for arm, accuracy, isclose in (("ce", 0.5, 0.5), ("xval_mask", 0.1, 0.8 + seed / 100)):
            scored = scores(metrics(accuracy, 0.3, accuracy_isclose=isclose))
            write_record(tmp_path, run_config(mathematics, arm, seed), scored)
    outcome = verdicts(tmp_path)["C04"]
    assert outcome.claim.metric == "accuracy_isclose"
    assert outcome.verdict == "opposite" and outcome.effect.difference < -0.3  # exact accuracy says the contrary
    assert next(claim for claim in published.claims() if claim.id == "C04").metric == "accuracy"  # as published


def test_tables_with_methods_that_write_floats_show_both_accuracies():
    for table in (*mathematics_tables, rjokes_table):
        assert {"accuracy", "accuracy_isclose"} <= set(table.shown_metrics())
