"""What is logged: means of the parts of the loss, and gradient norms of its terms."""

import pytest
import torch
from helpers import tiny
from helpers.training import FAMILIES, assert_same, objective, settings, train, weights

from ntl.data import model_inputs
from ntl.numbers import IGNORE_INDEX
from ntl.training import train as training
from ntl.training.meters import count_labels
from ntl.training.trainer import ObjectiveTrainer


def test_the_parts_of_the_loss_are_logged(tmp_path):
    told = []
    _, result = train(tmp_path, given={"weight": 0.5}, tell=lambda step, values: told.append((step, values)))
    rows = [row for row in result.history if "loss" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["loss"] == pytest.approx(row["ce"] + 0.5 * row["ntl"], rel=1e-5)
    validated = [row for row in result.history if "eval_ce" in row]
    assert [row["step"] for row in validated] == [2, 4]
    assert all({"eval_ce", "eval_ntl", "eval_loss"} <= set(row) for row in validated)
    measured = [row for row in rows if "grad_ntl_over_ce" in row]
    assert [row["step"] for row in measured] == [1, 3]  # at the steps after 0 and 2 updates
    for row in measured:
        assert row["grad_ntl_over_ce"] == pytest.approx(row["grad_ntl"] / row["grad_ce"])
        assert row["grad_ntl"] > 0
    assert not any(isinstance(value, str) or "runtime" in name for row in result.history for name, value in row.items())
    assert [values | {"step": step} for step, values in told if "train_loss" not in values] == result.history
    assert [step for step, values in told if "loss" in values] == [1, 2, 3, 4]
    assert result.steps == 4


def test_logged_means_are_over_the_steps_since_the_last_log(tmp_path):
    _, every = train(tmp_path / "a", dropout=0.0)
    _, second = train(tmp_path / "b", dropout=0.0, log_every=2)
    rows = [row for row in every.history if "loss" in row]
    for index, row in enumerate(row for row in second.history if "loss" in row):
        for name in ("ce", "ntl"):
            assert row[name] == pytest.approx((rows[2 * index][name] + rows[2 * index + 1][name]) / 2, rel=1e-5)


def test_the_measured_gradients_are_those_of_the_terms(tmp_path):
    _, result = train(tmp_path, given={"weight": 0.5}, dropout=0.0, batch_size=8, steps=2)
    model = tiny.model("t5", seed=7)
    made, batch = objective(model, weight=0.5), tiny.layout("t5").train_batch(list(tiny.dataset()))
    norms = {}
    for name, term in made.terms(model(**model_inputs(batch)), batch).items():
        gradients = torch.autograd.grad(term, list(model.parameters()), retain_graph=True)
        norms[name] = float(torch.cat([g.flatten() for g in gradients]).norm())
    row = result.history[0]
    assert row["grad_ce"] == pytest.approx(norms["ce"], rel=1e-4)
    assert row["grad_ntl"] == pytest.approx(norms["ntl"], rel=1e-4)


def test_measuring_gradients_changes_nothing(tmp_path):
    often, with_ratio = train(tmp_path / "a", gradient_norms_every=1)
    never, without = train(tmp_path / "b", gradient_norms_every=0)
    assert_same(weights(often), weights(never))
    assert any("grad_ntl_over_ce" in row for row in with_ratio.history)
    assert not any(name.startswith("grad_ce") for row in without.history for name in row)


@pytest.mark.parametrize("family", FAMILIES)
def test_validation_is_a_mean_over_the_tokens_of_the_whole_split(family, tmp_path):
    rows = tiny.ROWS[:7]
    found = []
    for size in (1, 3, 64):
        model = tiny.model(family, seed=7)
        made = objective(model)
        arguments = training.arguments(settings(), made, 0, tmp_path)
        arguments.per_device_eval_batch_size = size
        trainer = ObjectiveTrainer(
            objective=made,
            model=model,
            args=arguments,
            eval_dataset=tiny.dataset(rows),
            data_collator=tiny.layout(family).train_batch,
        )
        found.append(trainer.evaluate())
    ce = ntl = labels = numbers = 0.0
    for item in tiny.dataset(rows):
        batch = tiny.layout(family).train_batch([item])
        parts = made(model(**model_inputs(batch)), batch).parts
        count = made.count(batch["labels"])
        ce, ntl = ce + parts["ce"] * count.labels, ntl + parts["ntl"] * count.numbers
        labels, numbers = labels + count.labels, numbers + count.numbers
    assert int(labels) == sum(
        int((tiny.layout(family).train_batch([i])["labels"] != IGNORE_INDEX).sum()) for i in tiny.dataset(rows)
    )
    for metrics in found:
        assert metrics["eval_ce"] == pytest.approx(float(ce / labels), rel=1e-5)
        assert metrics["eval_ntl"] == pytest.approx(float(ntl / numbers), rel=1e-5)


@pytest.mark.parametrize(("family", "loss_on"), [("t5", "answer"), ("gpt2", "answer"), ("gpt2", "all")])
def test_labels_are_counted_whatever_the_batches(family, loss_on):
    using, layout, made = tiny.encoding(), tiny.layout(family, loss_on), objective(tiny.model(family))
    labels = numbers = 0
    for row in tiny.ROWS:
        separator = "\n" if loss_on == "all" else ""
        text = (row["question"] + separator if loss_on == "all" else "") + row["answer"]
        labels += len(using.encode(row["answer"])["input_ids"]) + 1  # the end token
        if loss_on == "all":
            labels += len(using.encode(row["question"])["input_ids"]) + len(using.encode("\n")["input_ids"]) - 1
            text = text[1:]  # the first token is given
        numbers += sum(character in "0123456789" for character in text)
    for rows in (1, 3, 256):
        counts = count_labels(made, layout, tiny.dataset(), rows)
        assert (counts.labels, counts.numbers) == (labels, numbers)
