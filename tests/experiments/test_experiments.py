"""What each experiment shows, from synthetic records of its own arms."""

import numpy as np
import pandas as pd
import pytest
from helpers.made_records import everywhere, write_record

from experiments.analysis.figures import write as draw
from experiments.analysis.frame import frame
from experiments.analysis.published import published
from experiments.analysis.records import ArmRuns, Record, arm_runs, load
from experiments.analysis.rendering import sections, write
from experiments.analysis.table import Comparison, Interaction, Table
from experiments.config.compose import load_experiment, run_config
from experiments.config.discovery import SCALES, declared, module, shown

COMPUTED = ("landscape", "runtime", "calibration/loss_scale")
SCALED = tuple(f"{scale}/" for scale in SCALES)
TRAINED = [name for name in shown() if not name.startswith(SCALED) and name not in COMPUTED]


def made(experiment, table, seeds=(0, 1, 2)):
    """Finished runs of a table's arms, without the detour over files: arm i has 0.3 + 0.01·i + 0.001·seed²."""
    arms = {}
    for index, arm in enumerate(experiment.arms):
        records = {}
        for seed in seeds:
            content = {
                "id": f"{arm}-{seed}",
                "status": "finished",
                "metrics": everywhere(table.shown_metrics(), 0.3 + 0.01 * index + 0.001 * seed**2 * (1 + index)),
                "data": {"fingerprint": "data"},
                "config": {},
            }
            records[seed] = Record("record.json", content)
        arms[arm] = ArmRuns(arm, tuple(experiment.seeds), records, {}, {})
    return arms


@pytest.mark.parametrize("name", TRAINED)
def test_tables_and_figures_show_every_arm(name, tmp_path):
    experiment = load_experiment(name)
    seen = set()
    for table in module(name).TABLES:
        arms = made(experiment, table, experiment.seeds[:3])
        texts = {path.suffix: path.read_text() for path in write(table, name, arms, tmp_path)}
        for arm in table.arms or experiment.arms:
            assert f"| {arm} " in texts[".md"] and f"{arm}," in texts[".csv"]
            seen.add(arm)
        assert "constant: median" in texts[".md"] and "untrained" in texts[".md"]
        assert "missing" not in texts[".md"].split("## Notes")[0]
        for comparison in table.comparisons:
            assert f"| {comparison.treatment} − {comparison.baseline} " in texts[".md"]
    assert seen == set(experiment.arms)
    for figure in getattr(module(name), "FIGURES", ()):
        paths = draw(figure, name, made(experiment, figure.table, experiment.seeds[:3]), tmp_path)
        assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize("name", [name for name in shown() if name.startswith(SCALED)])
def test_the_tables_fit_the_arms_of_every_scale(name, tmp_path):
    experiment = load_experiment(name)
    tables = [table for table, _ in declared(name, "tables", tmp_path)]
    assert tables
    for table in tables:
        assert not frame(table, name, made(experiment, table, experiment.seeds[:1])).empty


def test_published_numbers_stand_beside_each_module(tmp_path):
    from experiments.mathematics import TABLES

    experiment = load_experiment("mathematics")
    table = next(table for table in TABLES if table.name == "modules")
    arms = made(experiment, table)
    for runs in arms.values():
        for record in runs.finished.values():
            for splits in record.content["metrics"].values():
                splits["interpolate"]["arithmetic__mul"] = splits["interpolate"].pop("module_a")
    numbers = frame(table, "mathematics", arms)
    _, headers, rows = next(s for s in sections(table, numbers) if s[0].endswith("arithmetic__mul"))
    assert "paper" in headers
    (ce,) = [row for row in rows if row[0] == "ce"]
    assert ce[headers.index("paper")] not in ("–", "")


class TestInteraction:
    @property
    def experiment(self):
        return load_experiment("tokenization")

    def line(self, arms):
        from experiments.tokenization import MAIN

        numbers = frame(MAIN, "tokenization", arms)
        (found,) = [
            line
            for line in numbers[numbers["row"].str.startswith("(")].itertuples()
            if (line.split, line.metric) == ("interpolate", "accuracy")
        ]
        return found

    def test_it_is_the_difference_of_differences_seed_by_seed(self):
        from experiments.tokenization import MAIN

        arms = made(self.experiment, MAIN)
        by_seed = {arm: np.array(list(runs.values("interpolate", "accuracy").values())) for arm, runs in arms.items()}
        digits = by_seed["ntl_was@0.3"] - by_seed["ce"]
        subword = by_seed["ntl_was@0.3/subword"] - by_seed["ce/subword"]
        found = self.line(arms)
        assert found.difference == pytest.approx((digits - subword).mean())
        assert found.pairs == 3
        assert found.row == "(ntl_was@0.3 − ce)"

    def test_only_seeds_that_all_four_arms_have_count(self):
        from experiments.tokenization import MAIN

        arms = made(self.experiment, MAIN)
        del arms["ce/subword"].finished[1]
        assert self.line(arms).pairs == 2

    def test_a_table_without_an_arm_of_it_says_so(self):
        table = Table(
            "A", ("interpolate",), ("accuracy",), "ce",
            comparisons=(Interaction(Comparison("ntl_was@0.3", "ce"), Comparison("ce/words", "ce/subword")),),
        )  # fmt: skip
        with pytest.raises(ValueError, match="ce/words"):
            frame(table, "tokenization", made(self.experiment, table))


class TestLandscape:
    from experiments import landscape

    def test_half_on_0_and_half_on_8_is_a_minimum_of_mse_alone(self):
        half = self.landscape.PREDICTIONS["half on 0, half on 8"]
        found = {name: float(self.landscape.losses(half, name)) for name in ("ntl_mse", "ntl_mae", "ntl_was")}
        assert found == pytest.approx({"ntl_mse": 0, "ntl_mae": 0, "ntl_was": 4}, abs=1e-6)

    def test_losses_are_those_of_the_definition(self):
        digits = np.arange(10)
        for p in np.random.default_rng(1).dirichlet(np.ones(10), 5):
            assert self.landscape.losses(p, "ntl_was") == pytest.approx((p * abs(digits - 4)).sum())
            assert self.landscape.losses(p, "ntl_mse") == pytest.approx(((p * digits).sum() - 4) ** 2)
            assert self.landscape.losses(p, "ce") == pytest.approx(-np.log(p[4]))

    def test_the_claim_is_judged_by_what_is_computed(self, monkeypatch, tmp_path):
        from experiments.analysis import claims
        from experiments.analysis import published as paper

        claim = next(claim for claim in paper.claims() if claim.id == "C19")
        (outcome,) = (one for one in claims.judge(load(tmp_path), tmp_path) if one.claim == claim)
        assert outcome.verdict == "reproduced"
        assert "4.000 by NTL-WAS" in outcome.remark
        right = self.landscape.losses
        swapped = {"ntl_mse": "ntl_was", "ntl_was": "ntl_mse"}
        monkeypatch.setattr(self.landscape, "losses", lambda p, name: right(p, swapped.get(name, name)))
        self.landscape.stuck.cache_clear()
        try:
            assert self.landscape.judge(claim, tmp_path).verdict == "opposite"
        finally:
            self.landscape.stuck.cache_clear()

    def test_tables_and_figures_need_no_record_and_are_made_again_the_same(self, tmp_path):
        for folder in ("first", "second"):
            for table in self.landscape.TABLES:
                write(table, "landscape", {}, tmp_path / folder)
            for figure in self.landscape.FIGURES:
                draw(figure, "landscape", {}, tmp_path / folder)
        first, second = (sorted((tmp_path / folder).iterdir()) for folder in ("first", "second"))
        assert [path.name for path in first] == [path.name for path in second]
        assert len(first) == 3 + 2 * 2
        assert all(one.read_bytes() == other.read_bytes() for one, other in zip(first, second, strict=True))
        assert set(pd.read_csv(tmp_path / "first" / "landscape.csv").columns) >= {"section", "CE", "NTL-WAS"}


def test_records_of_one_run_serve_both_experiments(tmp_path):
    from experiments.mathematics import MAIN

    mathematics, tokenization = load_experiment("mathematics"), load_experiment("tokenization")
    write_record(tmp_path, run_config(mathematics, "ce", 0), everywhere(MAIN.shown_metrics(), 0.5))
    records = load(tmp_path)
    for experiment in (mathematics, tokenization):
        assert list(arm_runs(experiment, records)["ce"].finished) == [0]


@pytest.mark.parametrize("name", TRAINED)
def test_published_numbers_of_rt_ntl_are_said_to_be_of_another_loss(name):
    for table in (table for table in module(name).TABLES if isinstance(table, Table)):
        arms = table.arms or load_experiment(name).arms
        shows = any(
            arm.startswith("rt_ntl") and published(name, arm, split, metric)
            for arm in arms
            for split in table.splits
            for metric in table.shown_metrics()
        )
        assert shows == any("`rt_ntl` numbers come from a different loss" in note for note in table.notes), table.title
