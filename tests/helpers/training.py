"""Train tiny models, stop them, and compare what comes of it."""

import os
import signal

import torch
from helpers import tiny

from ntl.losses import CrossEntropy, CrossEntropyWithNTL
from ntl.settings import TrainSettings
from ntl.training import train as training

FAMILIES = ("t5", "gpt2")
HARD = {"steps": 12, "eval_every": 4, "accumulate": 2, "batch_size": 2, "gradient_norms_every": 3, "log_every": 2}


def settings(**options):
    few = {"steps": 4, "batch_size": 4, "eval_every": 2, "warmup_steps": 0, "log_every": 1, "device": "cpu"}
    return TrainSettings(**(few | {"learning_rate": 3e-3} | options))


def objective(model, kind="ntl", **options):
    numbers = tiny.encoding().numbers.resized(model.config.vocab_size)
    return CrossEntropy(numbers, **options) if kind == "ce" else CrossEntropyWithNTL(numbers, **options)


def train(folder, family="t5", given=None, dropout=0.3, seed=0, tell=lambda step, values: None, made=None, **options):
    """Train a tiny model; returns it with the result."""
    model = tiny.model(family, seed=7, dropout=dropout)
    made = made or objective(model, **(given or {}))
    result = training.train(
        model,
        tiny.layout(family),
        made,
        tiny.dataset(),
        tiny.dataset(tiny.ROWS[:5]),
        settings(**options),
        seed,
        folder,
        tell,
    )
    return model, result


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


class Scripted(CrossEntropy):
    """Validates at values given beforehand; the validation total runs the other way."""

    def __init__(self, numbers, values):
        super().__init__(numbers)
        self.values, self.batches = values, 0

    def loss(self, logits, labels, counts=None):
        found = super().loss(logits, labels, counts)
        if torch.is_grad_enabled():
            return found
        value = torch.tensor(self.values[self.batches])
        self.batches += 1
        return type(found)(total=1 / value, parts={"ce": value, "other": 1 / value})


def scripted(values):
    return Scripted(tiny.encoding().numbers.resized(tiny.model("t5").config.vocab_size), values)


def stop_at(step, number=signal.SIGTERM):
    def tell(now, values):
        if now == step and "loss" in values:
            os.kill(os.getpid(), number)

    return tell
