"""The Trainer around an objective: what it minimises, however a batch is divided."""

import pytest
import torch
from helpers import tiny
from helpers.training import FAMILIES, assert_same, objective, settings, train, weights

from ntl.data import model_inputs
from ntl.losses import CrossEntropy
from ntl.training import train as training
from ntl.training.trainer import NotFinite, ObjectiveTrainer

# Number tokens per answer: 1, 3, 0, 5 | 2, 1, 7, 0.
HALVES = (tiny.ROWS[:4], tiny.ROWS[4:])


def one_step(folder, family, batch_size, accumulate, kind):
    """The parameters after one step of plain gradient descent over all rows."""
    model = tiny.model(family, seed=7)
    made = objective(model, kind, weight=2.0) if kind == "ntl" else objective(model, kind)
    arguments = training.arguments(settings(steps=1, eval_every=1, max_grad_norm=0.0), made, 0, folder)
    arguments.per_device_train_batch_size = batch_size
    arguments.gradient_accumulation_steps = accumulate
    trainer = ObjectiveTrainer(
        objective=made,
        model=model,
        args=arguments,
        train_dataset=tiny.dataset(),
        eval_dataset=tiny.dataset(),
        data_collator=tiny.layout(family).train_batch,
        optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None),
    )
    trainer.train()
    return weights(model), trainer.state.log_history


@pytest.mark.parametrize("kind", ["ce", "ntl"])
@pytest.mark.parametrize("family", FAMILIES)
def test_micro_batches_of_unequal_counts_equal_one_large_batch(family, kind, tmp_path):
    large, log = one_step(tmp_path / "a", family, 8, 1, kind)
    small, micro_log = one_step(tmp_path / "b", family, 4, 2, kind)
    single, _ = one_step(tmp_path / "c", family, 1, 8, kind)  # some micro-batches hold no number at all
    before = weights(tiny.model(family, seed=7))
    for name in large:
        for other in (small, single):
            torch.testing.assert_close(other[name], large[name], rtol=1e-4, atol=2e-6, msg=name)
    moved = max(float((large[name] - before[name]).abs().max()) for name in large)
    assert moved > 1e-2
    for part in ("loss", "ce", *(["ntl"] if kind == "ntl" else [])):
        assert micro_log[0][part] == pytest.approx(log[0][part], rel=1e-5)


def test_a_mean_over_micro_batch_means_would_be_seen(tmp_path):
    """The test above can fail: the halves' own means differ clearly from the whole's."""
    model = tiny.model("t5", seed=7)
    made, layout = objective(model), tiny.layout("t5")
    whole, *halves = (layout.train_batch(list(tiny.dataset(rows))) for rows in (tiny.ROWS, *HALVES))
    parts = [made(model(**model_inputs(b)), b).parts for b in (whole, *halves)]
    for name in ("ce", "ntl"):
        naive = (parts[1][name] + parts[2][name]) / 2
        assert abs(naive / parts[0][name] - 1) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_weight_zero_trains_as_cross_entropy_to_the_bit(family, tmp_path):
    plain, history = train(tmp_path / "a", family, {"kind": "ce"}, accumulate=2)
    zero, other = train(tmp_path / "b", family, {"weight": 0.0}, accumulate=2)
    assert_same(weights(plain), weights(zero))
    for row, theirs in zip(history.history, other.history, strict=True):
        assert all(theirs[name] == value for name, value in row.items())
    third, _ = train(tmp_path / "c", family, {"weight": 0.3}, accumulate=2)
    with pytest.raises(AssertionError):
        assert_same(weights(plain), weights(third))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loss_that_is_not_finite_ends_the_run(family, tmp_path, record_property):
    with pytest.raises(NotFinite, match=r"by step \d+; a lower train.learning_rate"):
        train(tmp_path, family, learning_rate=1e30, steps=8)
    record_property("faults", 1)


def test_a_loss_that_is_not_finite_between_two_logs_ends_the_run(tmp_path, record_property):
    class Once(CrossEntropy):
        steps = 0

        def loss(self, logits, labels, counts=None):
            found = super().loss(logits, labels, counts)
            if torch.is_grad_enabled():
                self.steps += 1
                if self.steps == 3:
                    found.total = found.total * float("inf")
            return found

    numbers = tiny.encoding().numbers.resized(tiny.model("t5").config.vocab_size)
    with pytest.raises(NotFinite):
        train(tmp_path, made=Once(numbers), steps=10, eval_every=10, log_every=10)
    record_property("faults", 1)
