"""The losses in trainers of transformers and TRL: the means do not depend on how a batch is divided."""

import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import accumulated
from transformers import Trainer

from ntl.integrations.transformers import ObjectiveMixin
from ntl.losses import CrossEntropyWithNTL

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("gpt2", "t5", "sft")
# T5 and Llama compute norms in float32, whatever the weights' type.
TOLERANCE = {"gpt2": 1e-12, "sft": 1e-12, "t5": 1e-6}


def weights(trainer):
    return {name: p.detach() for name, p in trainer.model.named_parameters()}


def assert_close(given, wanted, tolerance):
    assert given.keys() == wanted.keys()
    for name, value in given.items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=tolerance, msg=name)


def made(kind, tmp_path, **options):
    if kind == "sft":
        pytest.importorskip("trl")
    return accumulated.trainer(kind, tmp_path, **options)


@pytest.mark.parametrize(("batch_size", "accumulate"), [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_accumulation_equals_one_large_batch(kind, batch_size, accumulate, tmp_path):
    trainer = made(kind, tmp_path, exact=True, batch_size=batch_size, accumulate=accumulate)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="got num_items_in_batch")
        trainer.train()
    loss, wanted = accumulated.expected(kind)
    assert_close(weights(trainer), wanted, TOLERANCE[kind])
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-5)  # logged in float32
    moved = weights(trainer)["transformer.wte.weight" if kind != "t5" else "shared.weight"]
    assert float((moved - accumulated.model(kind).get_input_embeddings().weight.detach()).abs().max()) > 1e-2


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_compute_loss_func_weakens_the_loss_and_warns_once(kind, tmp_path):
    """Numbers are in one of four micro-batches: their loss has that micro-batch's share of all labels."""
    trainer = made(kind, tmp_path, exact=False)
    trainer.data_collator.model = trainer.model  # without the mixin, the collator makes the decoder's inputs
    with pytest.warns(UserWarning, match="got num_items_in_batch=.*ObjectiveMixin is exact") as caught:
        trainer.train()
    assert sum("num_items_in_batch" in str(warning.message) for warning in caught) == 1
    (_, whole), (_, alone) = (accumulated.expected(kind, weight, exact=False) for weight in (1.0, 0.0))
    given = weights(trainer)
    effect, exact = (torch.cat([(p[name] - alone[name]).flatten() for name in alone]) for p in (given, whole))
    labels = [sum(label != -100 for label in row["labels"]) for row in accumulated.ROWS]
    share = labels[0] / sum(labels)
    assert share == 1 / 3
    torch.testing.assert_close(effect, share * exact, rtol=0, atol=TOLERANCE[kind])


@pytest.mark.parametrize("exact", [False, True], ids=["masked", "whole"])
def test_a_batch_that_is_not_divided_is_exact_and_warns_of_nothing(exact, tmp_path):
    """With a row that is trained on as a whole, Trainer counts the first label of GPT-2, which nothing predicts."""
    trainer = made("gpt2", tmp_path, exact=False, batch_size=4, accumulate=1)
    trainer.train_dataset = accumulated.rows("gpt2", exact)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="got num_items_in_batch")
        trainer.train()
        trainer.evaluate()
    assert_close(weights(trainer), accumulated.expected("gpt2", exact=exact)[1], 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_two_processes_equal_one_large_batch(kind, tmp_path):
    """DDP over gloo, two micro-batches of one row each; validation too."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", "tests/helpers/accumulated.py", kind, str(tmp_path / "end.pt")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "end.pt", weights_only=True)
    loss, wanted = accumulated.expected(kind)
    assert_close(found["weights"], wanted, TOLERANCE[kind])
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    one = made(kind, tmp_path, exact=True, batch_size=2, accumulate=2)
    one.train()
    assert found["eval"] == pytest.approx(one.evaluate()["eval_loss"], rel=1e-5)


def test_labels_may_be_aligned_already(tmp_path):
    trainer = made("gpt2", tmp_path, exact=True, shift_labels=False)
    batch = trainer.data_collator(accumulated.rows("gpt2", exact=True))
    assert torch.equal(trainer.aligned_labels(batch), batch["labels"])
    assert torch.equal(trainer.aligned_labels({**batch, "shift_labels": batch["input_ids"]}), batch["input_ids"])
    assert trainer._get_num_items_in_batch([batch], torch.device("cpu")) == (16, 3)
    trainer.shift_labels = True  # the first label of a row that is trained on as a whole is predicted by nothing
    assert trainer._get_num_items_in_batch([batch], torch.device("cpu")) == (15, 3)
    with pytest.raises(TypeError, match="expected labels in it"):
        trainer.aligned_labels({"input_ids": batch["input_ids"]})


def test_another_loss_beside_the_objective_is_refused(tmp_path):
    class NTLTrainer(ObjectiveMixin, Trainer):
        pass

    loss = CrossEntropyWithNTL(accumulated.NUMBERS)
    arguments = made("gpt2", tmp_path, exact=True).args
    make = partial(NTLTrainer, accumulated.model("gpt2"), arguments)
    with pytest.raises(TypeError, match="got an objective of type function"):
        make(objective=made)
    with pytest.raises(ValueError, match="got compute_loss_func beside objective"):
        make(objective=loss, compute_loss_func=loss)
    arguments.label_smoothing_factor = 0.1
    with pytest.raises(ValueError, match=r"got label_smoothing_factor=0\.1"):
        make(objective=loss)
