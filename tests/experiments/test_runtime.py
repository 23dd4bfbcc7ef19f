"""What the losses cost, as it is shown: tables, figures and the verdict come from records alone."""

import json
import re

import pytest

from experiments import runtime
from experiments.__main__ import main
from experiments.analysis import claims, figures, published, rendering
from experiments.analysis.records import RESULTS, Records
from experiments.benchmark.record import run
from experiments.benchmark.settings import CE, FUSED, LINEAR, NTLOSS, NTLOSS_DEFAULT, PLAIN, REWEIGHED
from experiments.config.discovery import shown as experiments_shown


def shown(results):
    """Write all that the experiment shows."""
    tables = [rendering.write(table, "runtime", {}, results / "tables") for table in runtime.tables(results)]
    drawn = [figures.write(figure, "runtime", {}, results / "figures") for figure in runtime.figures(results)]
    return [path for paths in tables + drawn for path in paths]


def test_record_table_and_figure(small_benchmark, tmp_path):
    path = run(small_benchmark, tmp_path, say=lambda text: None)
    record = json.loads(path.read_text())
    methods = {row["method"] for row in record["measurements"]}
    assert {CE, PLAIN, FUSED, REWEIGHED, NTLOSS, NTLOSS_DEFAULT, LINEAR} <= methods
    assert all(row["seconds"] and min(row["seconds"]) > 0 for row in record["measurements"])
    made = shown(tmp_path)
    assert {file.name for file in made} == {
        *(f"runtime.{suffix}" for suffix in ("md", "csv", "tex", "png", "svg")),
        *(f"runtime_headline.{suffix}" for suffix in ("md", "csv", "tex")),
    }
    # the table says what the record says
    rows = [row for row in record["measurements"] if row["part"] == "loss" and row["numbers"] == 0.6]
    row = next(row for row in rows if row["method"] == CE)
    row["seconds"] = [0.5] * 4
    other = next(row for row in rows if row["method"] == FUSED)
    other["seconds"], other["memory_mib"] = [0.125, 0.125, 0.375, 0.125], 1234.0
    path.write_text(json.dumps(record))
    assert shown(tmp_path) == made
    text = (tmp_path / "tables" / "runtime.md").read_text()
    assert "| 0.25 [0.25, 0.38]" in text
    assert "1,234" in text
    # … and in brief as well
    brief = (tmp_path / "tables" / "runtime_headline.md").read_text()
    assert re.search(r"fused CE \+ NTL ÷ torch's CE +\| tiny, 64 tokens +\| +0\.25 \[0\.25, 0\.38\]", brief)
    before = {file: file.read_bytes() for file in made}
    assert shown(tmp_path) == made
    assert before == {file: file.read_bytes() for file in made}


def test_machines_have_files_of_their_own(small_benchmark, tmp_path):
    path = run(small_benchmark, tmp_path, say=lambda text: None)
    path.with_name("other.json").write_bytes(path.read_bytes())
    assert {"runtime_other.md", "runtime_other_headline.md", "runtime_other.svg"} <= {p.name for p in shown(tmp_path)}


def test_it_is_measured_into_outputs_and_published_on_demand(small_benchmark, tmp_path, capsys):
    assert "runtime" in experiments_shown()
    results, outputs = tmp_path / "results", tmp_path / "outputs"
    places = [f"--results={results}", f"--outputs={outputs}"]
    assert main(["tables", "runtime", *places]) == 0
    assert not list(tmp_path.rglob("*.*"))  # nothing was measured
    assert main(["publish", "runtime", *places]) == 2
    assert "measure with python -m experiments runtime" in capsys.readouterr().err
    assert main(["runtime", "loss", "growth", *places]) == 0
    assert not results.exists()
    made = {"tables/runtime.md", "tables/runtime_headline.md", "figures/runtime.svg"}
    assert made <= {path.relative_to(outputs).as_posix() for path in outputs.rglob("*.*")}
    (record,) = outputs.glob("runtime/*.json")
    for told in ("1 new, 0 known", "0 new, 1 known"):
        assert main(["publish", "runtime", *places]) == 0
        assert told in capsys.readouterr().out
    assert (results / "runtime" / record.name).read_bytes() == record.read_bytes()
    for kind in ("tables", "figures"):
        assert main([kind, "runtime", *places]) == 0
    assert made <= {path.relative_to(results).as_posix() for path in results.rglob("*.*")}


def test_a_quick_impression_is_not_published(small_benchmark, tmp_path):
    places = [f"--results={tmp_path / 'results'}", f"--outputs={tmp_path / 'outputs'}"]
    assert main(["runtime", "loss", "--quick", *places]) == 0
    assert main(["publish", "runtime", *places]) == 2


def test_methods_are_shown_by_the_present_names_of_their_options(tmp_path):
    (tmp_path / "runtime").mkdir()
    (path,) = RESULTS.glob("runtime/*.json")
    record = json.loads(path.read_text())
    row = next(row for row in record["measurements"] if row["part"] == "step")
    row["method"] = "CE + NTL, train.fused=off"
    (tmp_path / "runtime" / path.name).write_text(json.dumps(record))
    shown(tmp_path)
    text = (tmp_path / "tables" / "runtime.md").read_text()
    assert "train.loss_implementation=plain" in text and "train.fused" not in text


@pytest.fixture
def claim():
    return next(claim for claim in published.claims() if claim.experiment == "runtime")


def test_the_claim_is_judged_by_the_published_record(claim):
    (outcome,) = (one for one in claims.judge(Records([]), RESULTS) if one.claim == claim)
    assert outcome.verdict in ("equivalent", "undecided", "differs")
    assert "step with NTL ÷ step with CE" in outcome.remark


def test_the_claim_needs_training_steps_measured_in_full(claim, small_benchmark, tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        if folder == tmp_path:
            run(small_benchmark, tmp_path, say=lambda text: None)
        outcome = runtime.judge(claim, folder)
        assert outcome.verdict == "not run" and "not been measured in full" in outcome.remark
