"""How strongly NTL acts beside CE: measured, recorded, shown, and held against what the configurations say."""

import json
import random
from pathlib import Path

import pytest
from helpers.shared_data import shared

from experiments import tokenization
from experiments.__main__ import main
from experiments.analysis import loss_scale
from experiments.config.compose import compose, load_experiment, run_config
from experiments.config.instantiate import instantiate
from ntl.encodings import TrainedBPE, build
from ntl.models import tokenizer_source

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["dataset.digits=2", "dataset.train_size=200", "train.batch_size=8", "model.architecture.n_layer=1",
         "model.architecture.n_embd=32"]  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Results with one experiment measured by the command, and what it printed to a file."""
    results = tmp_path_factory.mktemp("results")
    folders = {"results": results, "data": results / "data", "outputs": results / "outputs"}
    options = [f"--{name}={folder}" for name, folder in folders.items()]
    tokenizers = shared("tokenizers")
    assert main(["loss_scale", "multiplication", *SMALL, *options, f"--tokenizers={tokenizers}"]) == 0
    return results


@pytest.mark.slow
def test_an_experiment_is_measured_with_its_tokenizer_and_the_published_one(measured):
    rows = loss_scale.load(measured)
    assert [(row["tokenizer"], row["encoding"]) for row in rows] == [
        ("trained", "digits"), ("trained", "subword"), ("gpt2", "digits"), ("gpt2", "subword"),
    ]  # fmt: skip
    assert all(0 < row["numbers"] < row["labels"] and row["gradient_ratio"] > 0 for row in rows)
    digits = [row for row in rows if row["encoding"] == "digits"]
    assert {(row["number_tokens"], row["largest"]) for row in digits} == {(10, 9)}
    assert len({row["numbers"] for row in digits}) == 1  # the same digits in the same rows
    own, published = next(pair for pair in loss_scale.by_tokenizer(rows) if pair[0]["encoding"] == "digits")
    expected = own["weight"] * own["labels"] / published["labels"]
    assert loss_scale.effective_weight(own, published) == pytest.approx(expected)


@pytest.mark.slow
def test_the_table_shows_it(measured):
    text = (measured / "tables" / "calibration" / "loss_scale.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    (line,) = [cells for cells in lines if cells[:3] == ["multiplication", "digits", "gpt2"]]
    assert line[3:6] == ["10", "9", "0.3"]
    assert "0.3 → 0." in text


def test_a_damaged_file_is_told(tmp_path):
    for name, content in (("bad", "{"), ("worse", '{"measurements": [{}]}')):
        target = loss_scale.path(tmp_path / name)
        target.parent.mkdir(parents=True)
        target.write_text(content)
        with pytest.raises(loss_scale.RecordError, match="measure again"):
            loss_scale.load(tmp_path / name)


def test_a_misspelt_experiment_is_told(tmp_path, capsys):
    assert main(["loss_scale", "rjoks", "--results", str(tmp_path)]) == 2
    assert "unknown experiment of loss_scale 'rjoks'; nearest: rjokes" in capsys.readouterr().err


def test_the_squash_factor_is_the_one_of_equal_ratios():
    assert loss_scale.squash_for(lambda squash: 0.05 + 0.004 * squash, 0.25) == 50
    with pytest.raises(ValueError, match="no squash factor above 1"):
        loss_scale.squash_for(lambda squash: 0.05 + 0.004 * squash, 0.01)


class TestWhatWasMeasured:
    """The measurements in results/ against the configurations that rest on them."""

    rows = [row for row in loss_scale.load(ROOT / "results") if row["experiment"] == "tokenization"]

    def row(self, arm, tokenizer="trained"):
        (found,) = [row for row in self.rows if (row["arm"], row["tokenizer"]) == (arm, tokenizer)]
        return found

    def test_number_tokens_and_gradients_are_of_t5s_size(self):
        own, t5 = self.row("ntl_was@0.3/subword"), self.row("ntl_was@0.3/subword", "t5")
        assert own["largest"] < 10_000 and t5["largest"] == 9001
        assert own["number_tokens"] <= t5["number_tokens"]
        assert 1 / 3 < own["gradient_ratio"] / t5["gradient_ratio"] < 3

    def test_the_squash_factor_of_the_arm_is_the_measured_one(self):
        arm = "ntl_was@0.3/subword/squash"
        row = self.row(arm)
        assert run_config(load_experiment("tokenization"), arm, 0)["loss"]["squash"] == row["squash"]
        assert row["gradient_ratio"] == pytest.approx(self.row("ntl_was@0.3")["gradient_ratio"], rel=0.05)

    def test_with_t5s_marker_lambda_acts_as_with_t5s_tokenizer(self):
        own, t5 = self.row("ntl_was@0.3"), self.row("ntl_was@0.3", "t5")
        assert loss_scale.effective_weight(own, t5) == pytest.approx(0.3, abs=0.003)

    def test_the_note_of_the_table_names_every_ratio(self):
        note = tokenization.tables(ROOT / "results")[0].notes[-1]
        assert all(f"{row['gradient_ratio']:.3f}"[:4] in note and f"`{row['arm']}`" in note for row in self.rows)
        assert "493 number tokens up to 9,999, squash 54" in note


@pytest.mark.slow
def test_uncapped_number_tokens_make_gradients_explode():
    """On questions about numbers up to a million, four digits are worth T5's gradient and seven are not."""
    draw = random.Random(0)
    pairs = [(draw.randint(1, 9) * 10 ** draw.randint(0, 6), draw.randint(1, 99)) for _ in range(2000)]
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]
    config = compose(["experiment=tokenization", "arm=ntl_was@0.3/subword"])
    parts = instantiate(config)
    ratios = {}
    t5 = instantiate(
        config | {"model": config["model"] | {"tokenizer": "pretrained", "path": str(shared("tokenizers/t5"))}}
    )
    for name, made in (("capped", parts), ("t5", t5)):
        encoding = build("subword", tokenizer_source(made.model, rows))
        ratios[name] = loss_scale._Ratio(made, encoding, rows)()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("ntl.encodings.tokenizers.MAX_DIGITS", 9)
        texts = [row[part] for row in rows for part in row]
        encoding = build("subword", TrainedBPE(texts, 1024, marker=True))
        ratios["uncapped"] = loss_scale._Ratio(parts, encoding, rows)()
    assert ratios["capped"] < 4 * ratios["t5"]
    assert ratios["uncapped"] > 10 * ratios["capped"], json.dumps(ratios)
