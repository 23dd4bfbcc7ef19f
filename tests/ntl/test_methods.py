"""Every method learns: 32 questions by heart, through the same batches, objective and answers as a run."""

import random
from decimal import Decimal

import pytest
import torch
from helpers import tiny
from helpers.training import assert_same, stop_at, weights

from experiments.config import compose as configuration
from experiments.config.instantiate import instantiate
from ntl.data import EncodedDataset, layout_for, model_inputs
from ntl.encodings import TrainedBPE
from ntl.evaluation import answer as evaluation
from ntl.evaluation.score import score
from ntl.models import build
from ntl.settings import EvalSettings, TrainSettings
from ntl.training import train as training
from ntl.training.stopping import Stopped

NEW = (
    "dist2",
    "del",
    "rt",
    "rt_ntl",
    "xval",
    "xval_mask",
    "xval_mask_signed",
    "regression_head",
)  # the others: training/test_trainer.py
REFUSED = {("gpt2", "xval"), ("gpt2", "xval_mask"), ("gpt2", "xval_mask_signed")}
TEXTS = ("ce", "ntl_was", "gce", "gce_ntl_was", "dist2", "del", "rt", "rt_ntl")
SIZE = {
    "t5": {"d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2},
}


def questions():
    """32 differences of numbers with up to two decimals, half of them negative."""
    draw = random.Random(0)
    rows = []
    for _ in range(32):
        a, b = (Decimal(draw.randint(0, 9999)).scaleb(-draw.randint(0, 2)) for _ in range(2))
        rows.append({"question": f"What is {a:f} - {b:f}?", "answer": f"{a - b:f}"})
    return rows


def pieces(family, *overrides):
    """What a run makes of its configuration, around a tiny model."""
    parts = instantiate(configuration.compose([f"model={family}_nano", "logger=none", *overrides]))
    rows = questions()
    encoding = parts.encoding(TrainedBPE([row[part] for row in rows for part in row] * 2, vocab_size=300))
    encoding.fit({"train": rows})
    model = build(tiny.settings(family, architecture=SIZE[family]), encoding, seed=0).train()
    layout, data = layout_for(family == "t5", encoding), EncodedDataset(rows, encoding)
    return model, encoding, parts.objective(numbers=encoding.numbers), layout, data


def learn(family, *overrides, steps=600, rate=2e-3):
    """Train a tiny model on all rows at once, and return how it scores on them."""
    model, encoding, objective, layout, data = pieces(family, *overrides)
    batch = layout.train_batch(list(data))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        loss = objective(model(**model_inputs(batch)), batch, objective.count(batch["labels"])).total
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    answers = evaluation.answer(model, encoding, layout, data, EvalSettings(beams=1), data.longest_answer() + 4)
    return score(answers, data.rows, kind="number", fill="0").metrics["all"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["t5", "gpt2"])
@pytest.mark.parametrize("loss", [*TEXTS, "ntl_was/subword"])
def test_a_method_that_writes_digits_learns_by_heart(family, loss):
    loss, _, encoding = loss.partition("/")
    overrides = [f"loss={loss}"] + ([f"loss.encoding={encoding}", "loss.squash=2"] if encoding else [])
    # a smoothed target has its own digit hardly above the next ones, which takes longer to tell apart
    assert learn(family, *overrides, steps=900 if "gce" in loss else 600)["accuracy"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("t5", ["loss=xval"]),
        ("t5", ["loss=xval_mask"]),
        ("t5", ["loss=xval_mask_signed"]),
        ("t5", ["loss=regression_head"]),
        ("gpt2", ["loss=regression_head"]),
        ("t5", ["loss=regression_head", "loss.encoding_options.log=true", "loss.encoding_options.standardise=false"]),
    ],
)
def test_a_method_that_regresses_learns_by_heart(family, overrides):
    # xVal takes longer; with fewer steps it depends on the processor's rounding whether it comes so far
    longer = {"steps": 1200, "rate": 4e-3} if "xval" in overrides[0] else {}
    assert learn(family, *overrides, **longer)["r2"] >= 0.99


@pytest.mark.parametrize(("family", "loss"), [*((f, x) for x in NEW for f in ("t5", "gpt2") if (f, x) not in REFUSED)])
def test_a_few_steps_through_the_trainer(family, loss, tmp_path):
    """Trained, validated by each part of its loss, and the best checkpoint found, whatever the method."""
    model, _, objective, layout, data = pieces(family, f"loss={loss}")
    settings = TrainSettings(
        steps=4, batch_size=8, accumulate=2, learning_rate=1e-3, warmup_steps=1, eval_every=2, device="cpu"
    )
    result = training.train(model, layout, objective, data, data, settings, 0, tmp_path)
    assert result.best_step in (2, 4)
    last = [row for row in result.history if f"eval_{objective.selection}" in row][-1]
    batch = layout.train_batch(list(data))
    with torch.no_grad():
        expected = objective(model.eval()(**model_inputs(batch)), batch)
    assert last.keys() >= {f"eval_{name}" for name in expected.parts}
    if result.best_step == 4:  # those weights are the model's now: validation by batches is validation of the whole
        for name, value in expected.parts.items():
            assert last[f"eval_{name}"] == pytest.approx(value.item(), rel=1e-4), name


@pytest.mark.parametrize(
    ("family", "loss"), [("t5", "xval_mask"), ("t5", "regression_head"), ("gpt2", "regression_head")]
)
def test_a_stopped_run_of_a_model_with_its_own_head_ends_as_the_uninterrupted_one(family, loss, tmp_path):
    settings = TrainSettings(
        steps=4, batch_size=8, learning_rate=1e-3, warmup_steps=0, eval_every=2, log_every=1, device="cpu"
    )

    def run(folder, **stop):
        model, _, objective, layout, data = pieces(family, f"loss={loss}")
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.2
        training.train(model, layout, objective, data, data, settings, 0, folder, **stop)
        return model

    whole = run(tmp_path / "a")
    with pytest.raises(Stopped):
        run(tmp_path / "b", tell=stop_at(2))
    assert_same(weights(whole), weights(run(tmp_path / "b")))
