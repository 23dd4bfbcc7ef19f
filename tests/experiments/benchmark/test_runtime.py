"""What the losses cost: that methods agree, that memory is measured, and that table and figure come from records."""

import json
import re

import pytest
import torch

from experiments.__main__ import main
from experiments.benchmark import costs, runtime
from experiments.benchmark.costs import CE, CE_FUSED, FUSED, LINEAR, NTLOSS, NTLOSS_DEFAULT, PLAIN, REWEIGHED


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(costs, "VOCABULARIES", (costs.Vocabulary("tiny", 500, 16, 64, 64),))
    monkeypatch.setattr(costs, "GROWTH", (16, 32))
    return costs.Plan(parts=("loss", "head", "growth"), rounds=4)


def test_methods_compute_the_same():
    torch.manual_seed(0)
    logits = torch.randn(40, 300, requires_grad=True)
    labels = costs.labels_of(40, 300, 0.6, "cpu")
    assert int(costs.digits(300).mask(labels).sum()) == 24
    methods = costs.loss_methods(300)
    values = {name: loss(logits, labels) for name, loss in methods.items()}
    for one, other in ((CE, CE_FUSED), (PLAIN, FUSED), (PLAIN, NTLOSS), (REWEIGHED, NTLOSS_DEFAULT)):
        torch.testing.assert_close(values[one], values[other])
    hidden, matrix = torch.randn(40, 8), torch.randn(300, 8)
    heads = {name: loss(hidden, matrix, labels) for name, loss in costs.head_methods(300).items()}
    torch.testing.assert_close(heads[LINEAR], heads[f"head + {FUSED}"])
    torch.testing.assert_close(heads[LINEAR], heads[f"head + {NTLOSS}"])


def test_memory_is_measured():
    def step(size):
        return lambda: torch.ones(size, 2**20).sum()  # 4 MiB a row

    found = [costs.peak_memory(step(size), "cpu") for size in (10, 50)]
    if found[0] is None:
        pytest.skip("the system does not tell")
    assert found == pytest.approx([40, 200], abs=4)


def test_all_take_turns():
    seen = []
    methods = {name: (lambda name=name: seen.append(name)) for name in "abc"}
    seconds = costs.alternate(methods, 3, "cpu")
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}
    rounds = [seen[index : index + 3] for index in range(0, 12, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert {names[0] for names in rounds[1:]} == {"a", "b", "c"}


def test_record_table_and_figure(small, tmp_path):
    path = runtime.run(small, tmp_path, say=lambda text: None)
    record = json.loads(path.read_text())
    methods = {row["method"] for row in record["measurements"]}
    assert {CE, PLAIN, FUSED, REWEIGHED, NTLOSS, NTLOSS_DEFAULT, LINEAR} <= methods
    assert all(row["seconds"] and min(row["seconds"]) > 0 for row in record["measurements"])
    made = runtime.write_tables(tmp_path) + runtime.write_figures(tmp_path)
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
    assert runtime.write_tables(tmp_path) + runtime.write_figures(tmp_path) == made
    text = (tmp_path / "tables" / "runtime.md").read_text()
    assert "| 0.25 [0.25, 0.38]" in text
    assert "1,234" in text
    # … and in brief as well
    brief = (tmp_path / "tables" / "runtime_headline.md").read_text()
    assert re.search(r"fused CE \+ NTL ÷ torch's CE +\| tiny, 64 tokens +\| +0\.25 \[0\.25, 0\.38\]", brief)
    before = {file: file.read_bytes() for file in made}
    assert runtime.write_tables(tmp_path) + runtime.write_figures(tmp_path) == made
    assert before == {file: file.read_bytes() for file in made}


def test_one_part_can_be_measured_again(small, tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "PARTS", small.parts)
    first = json.loads(runtime.run(small, tmp_path, say=lambda text: None).read_text())
    again = json.loads(runtime.run(costs.Plan(("head",), rounds=2), tmp_path, say=lambda text: None).read_text())

    def of(record, part):
        return [row for row in record["measurements"] if row["part"] == part]

    assert of(first, "loss") == of(again, "loss")
    assert {len(row["seconds"]) for row in of(again, "head")} == {2}
    assert [row["part"] for row in again["measurements"]] == [row["part"] for row in first["measurements"]]


def test_an_unknown_part(tmp_path, capsys):
    assert main(["runtime", "los", "--results", str(tmp_path)]) == 2
    assert "nearest: loss" in capsys.readouterr().err


@pytest.mark.slow
def test_training_steps_update_one_model():
    steps, tokens, columns = costs.training_steps("T5-small", costs.Plan(quick=True), "cpu")
    assert (tokens, columns) == (64, 32_128)
    for step in steps.values():
        step()
