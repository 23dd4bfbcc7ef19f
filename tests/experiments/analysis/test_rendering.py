"""Every rendering of a table shows its numbers."""

import io
import re

import numpy as np
import pandas as pd
import pytest
from helpers.made_records import TRAINED, metrics, scores, write_record
from helpers.table_cells import cell, row

from experiments.ablation import MAIN, TABLES
from experiments.analysis.frame import frame
from experiments.analysis.records import arm_runs, load
from experiments.analysis.rendering import decimal, interval, number, sections, to_csv, to_latex, to_markdown, write
from experiments.analysis.statistics import Paired
from experiments.analysis.table import EACH, Table
from experiments.config.compose import run_config

ACCURACY = {arm: np.array([accuracy for accuracy, _ in by_seed]) for arm, by_seed in TRAINED.items()}


def test_an_arm_that_equals_the_baseline_differs_by_exactly_nothing(arms):
    found = cell(frame(MAIN, "ablation", arms), "ntl_was@0")
    assert (found["difference"], found["ci_low"], found["ci_high"], found["p"]) == (0, 0, 0, 1)
    assert row(MAIN, frame(MAIN, "ablation", arms), "ntl_was@0")[3] == "exactly 0"


def test_rows_are_the_arms_in_the_yamls_order_then_the_untrained_model_and_the_constants(arms, ablation):
    _, _, rows = sections(MAIN, frame(MAIN, "ablation", arms))[0]
    constants = ["constant: mean", "constant: median", "constant: most frequent"]
    assert [cells[0] for cells in rows] == [*ablation.arms, "untrained", *constants]


def test_partial_missing_and_failed_arms_show(arms):
    numbers = frame(MAIN, "ablation", arms)
    assert row(MAIN, numbers, "ce")[:3] == ["ce", "5", "0.416 ± 0.040"]
    partial = row(MAIN, numbers, "ntl_mae@0.3")
    assert partial[1] == "3 of 5, 1 failed"
    assert partial[3].endswith("(n = 3)")
    assert row(MAIN, numbers, "gce@0.5")[1:4] == ["1 of 5", "0.390", "+0.030 (n = 1)"]
    assert row(MAIN, numbers, "ntl_was@2.0")[1:4] == ["0 of 5", "missing", "–"]
    assert row(MAIN, numbers, "constant: median")[1:4] == ["–", "0.020", "–"]
    assert row(MAIN, numbers, "untrained")[1:3] == ["5", "0.000 ± 0.000"]
    text = to_markdown(MAIN, "ablation", numbers, arms)
    assert "Failed: `ntl_mae@0.3`, seed 3: FloatingPointError: loss is NaN at step 120" in text
    assert "python run.py -m experiment=ablation arm=ntl_mae@0.3 retry=true seed=3" in text
    assert "arm=ntl_was@0.8,ntl_was@2.0," in text
    assert not re.search(r"\b(nan|None|<NA>)\b", text)


def test_the_papers_numbers_stand_beside_ours_with_their_source(arms):
    numbers = frame(MAIN, "ablation", arms)
    assert row(MAIN, numbers, "ntl_mae@0.3")[4] == "0.45 ± 0.02"
    assert row(MAIN, numbers, "gce_ntl_was@0.5")[4] == "0.48"
    assert cell(numbers, "ntl_mae@0.3")["paper_source"] == "effects table"
    text = to_markdown(MAIN, "ablation", numbers, arms)
    assert "t5_small" in text
    assert "Source: effects table" in text
    # Accuracy and its published form have a column each; log-MAE of the ablation was not published.
    assert sections(MAIN, numbers)[0][1].count("paper") == 2


def test_further_comparisons_pair_the_named_arms(arms):
    numbers = frame(MAIN, "ablation", arms)
    found = cell(numbers, "ntl_was@0.3", baseline="ce/subword")
    assert found["difference"] == pytest.approx((ACCURACY["ntl_was@0.3"] - ACCURACY["ce/subword"]).mean())
    heading, headers, rows = sections(MAIN, numbers)[-1]
    assert heading == "Further comparisons"
    assert headers[2] == "Interpolation: Δ Accuracy ↑ [95 %]"
    (shown,) = [cells for cells in rows if cells[0] == "ntl_was@0.3 − ce/subword"]
    assert shown[2].startswith("+0.224 [+")
    (partial,) = [cells for cells in rows if cells[0] == "ntl_mae@0.3 − ce/subword"]
    assert partial[2].endswith("(n = 3)")


def test_a_median_stands_beside_a_mean_that_one_answer_can_rule(arms):
    (table,) = (t for t in TABLES if t.name == "mae")
    _, headers, rows = sections(table, frame(table, "ablation", arms))[0]
    assert headers[2].startswith("MAE")
    assert headers[4].startswith("Median absolute error")
    assert [cells[4] for cells in rows if cells[0] == "ce"] == ["0.970 ± 0.048"]


def test_modules_have_a_section_each(tmp_path, ablation):
    scored = scores(metrics(0.5, 0.2))
    for state in scored.values():
        state["interpolate"] |= {"second": metrics(0.7, 0.2), "first": metrics(0.3, 0.2)}
    write_record(tmp_path, run_config(ablation, "ce", 0), scored)
    table = Table("Modules", ("interpolate",), ("accuracy",), "ce", groups=EACH)
    numbers = frame(table, "ablation", arm_runs(ablation, load(tmp_path)))
    assert [heading for heading, _, _ in sections(table, numbers)] == ["Interpolation: first", "Interpolation: second"]
    assert cell(numbers, "ce", group="second")["mean"] == 0.7


def test_an_undefined_metric_is_counted_out_and_said(tmp_path, ablation):
    for seed, value in enumerate([0.9, None, 0.8]):
        write_record(tmp_path, run_config(ablation, "ce", seed), scores(metrics(0.5, 0.2, pearson=value)))
    table = Table("Correlation", ("interpolate",), ("pearson",), "ce")
    numbers = frame(table, "ablation", arm_runs(ablation, load(tmp_path)))
    assert row(table, numbers, "ce")[1:3] == ["3 of 5", "0.850 ± 0.071 (n = 2)"]


def test_the_csv_holds_every_number_of_the_frame(arms):
    numbers = frame(MAIN, "ablation", arms)
    back = pd.read_csv(io.StringIO(to_csv(numbers)))
    assert list(back.columns) == list(numbers.columns)
    for name in ("mean", "sd", "difference", "ci_low", "ci_high", "p", "paper"):
        np.testing.assert_allclose(back[name].astype(float), numbers[name].astype(float), rtol=1e-5, atol=1e-12)
    assert cell(back, "gce@0.5")["values"] == "0=0.39"


def test_every_shown_number_stands_in_each_rendering(arms):
    numbers = frame(MAIN, "ablation", arms)
    markdown, latex = (render(MAIN, "ablation", numbers, arms) for render in (to_markdown, to_latex))
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == len(sections(MAIN, numbers))
    for _, _, rows in sections(MAIN, numbers):
        for cells in rows:
            for text in cells[1:]:
                assert text in markdown
                for old, new in (("±", r"$\pm$"), ("−", "$-$"), ("–", "--"), ("λ", r"$\lambda$")):
                    text = text.replace(old, new)
                assert text in latex
    assert not [line for line in latex.splitlines() if not line.startswith("%") and not line.isascii()]
    body = "\n".join(line for line in latex.splitlines() if not line.startswith("%"))
    assert "_" not in body.replace(r"\_", "")


def test_writing_again_changes_no_byte(results, ablation, tmp_path):
    for table in TABLES:
        first = write(table, "ablation", arm_runs(ablation, load(results)), tmp_path / "first")
        second = write(table, "ablation", arm_runs(ablation, load(results)), tmp_path / "second")
        assert [p.name for p in first] == [p.name for p in second]
        for one, other in zip(first, second, strict=True):
            assert one.read_bytes() == other.read_bytes()
            assert one.read_bytes().endswith(b"\n")


def test_the_files_of_another_scale_lie_in_a_folder_of_their_own(arms, tmp_path):
    paths = write(MAIN, "gpu/ablation", arms, tmp_path)
    assert paths[0] == tmp_path / "gpu" / "ablation.md"
    assert paths[0].read_text().startswith("# Ablation of the loss on arithmetic (gpu/ablation)\n")
    assert "experiment=gpu/ablation" in paths[0].read_text()
    assert "0.45 ± 0.02" in paths[0].read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"),
        (-0.5, "−0.500"),
        (-1e-9, "0.000"),
        (12.346, "12.35"),
        (123.45, "123.5"),
        (4.1e16, "4.10e+16"),
    ],
)
def test_numbers_in_print(value, text):
    assert number(value) == text


def test_a_decimal_has_a_true_minus_and_no_negative_zero():
    assert (decimal(-1.25, 1), decimal(-0.001, 2, sign=True), decimal(2, 2, sign=True)) == ("−1.2", "+0.00", "+2.00")


def test_a_difference_and_its_interval_have_the_same_places():
    assert interval(Paired(2.0, -8.0, 12.0, 0.5, 0.5, 3)) == "+2.00 [−8.00, +12.00]"
    assert interval(Paired(2.0, None, None, None, None, 1)) == "+2.000"


def test_notes_say_what_lambda_is_relative_to_and_what_no_model_can_reach(tmp_path, ablation):
    scored = scores(metrics(0.5, 0.2))
    write_record(tmp_path, run_config(ablation, "ce", 0), scored, labels_per_number=1.75)
    lossy = {"interpolate": {"all": metrics(0.987, 0.0)}, "extrapolate": {"all": metrics(1.0, 0.0)}}
    write_record(tmp_path, run_config(ablation, "ce/subword", 0), scored | {"ceiling": lossy}, labels_per_number=2.5)
    whole = {split: {"all": metrics(1.0, 0.0)} for split in lossy}
    write_record(tmp_path, run_config(ablation, "ntl_was@0.3", 0), scored | {"ceiling": whole}, labels_per_number=1.75)
    arms = arm_runs(ablation, load(tmp_path))
    text = to_markdown(MAIN, "ablation", frame(MAIN, "ablation", arms), arms)
    assert "Labels per number label in training: 1.750 (`ce`, `ntl_was@0.3`); 2.500 (`ce/subword`)." in text
    (ceiling,) = [line for line in text.splitlines() if "Ceiling of" in line]
    assert "Ceiling of `ce/subword`: Accuracy ↑ 0.987 (Interpolation); " in ceiling


def test_references_beyond_the_limit_of_answers_are_noted(tmp_path, ablation):
    write_record(tmp_path, run_config(ablation, "ce", 0), scores(metrics(0.4, 0.4)))
    arms = arm_runs(ablation, load(tmp_path))
    content = arms["ce"].finished[0].content
    content["data"]["references_beyond_limit"] = {"interpolate": 0, "extrapolate": 1200}
    content["model"]["max_new_tokens"] = 12
    text = to_markdown(MAIN, "ablation", frame(MAIN, "ablation", arms), arms)
    assert "Extrapolation: 1,200 reference answers have more tokens than an answer of `ce` may have (12)" in text
    assert not re.search("Interpolation: [0-9,]+ reference", text)
