"""A model that returns the loss in place of logits: the same numbers, in every use that training makes of it."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from helpers import tiny
from torch import nn

from ntl.data import model_inputs
from ntl.losses import CrossEntropy, CrossEntropyWithNTL, LossParts, Objective
from ntl.models import lora
from ntl.models.linear_head import LinearHead, NotLinear, logits_scale, resolve_implementation
from ntl.settings import LoraSettings, TrainSettings
from ntl.training import train as training

UNTIED = {"architecture": {"tie_word_embeddings": False}}
MODELS = {
    "t5": ("t5", {}),
    "t5, untied": ("t5", UNTIED),
    "gpt2": ("gpt2", {}),
    "gpt2, untied, with bias": ("gpt2", UNTIED),
}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def made(name, **options):
    family, size = MODELS[name]
    model = tiny.model(family, seed=3, spread=0.3, **size, **options).double()
    if "bias" in name:
        bias = torch.randn(model.config.vocab_size, dtype=torch.float64)
        model.lm_head.bias = nn.Parameter(bias)
    return model, tiny.layout(family, loss_on="all" if family == "gpt2" else "answer")


def objective(model, **options):
    return CrossEntropyWithNTL(tiny.encoding().numbers.resized(model.config.vocab_size), **options)


def batch_of(layout, rows=slice(0, 8)):
    data = tiny.dataset()
    return layout.train_batch([data[index] for index in range(len(data))[rows]])


def gradients(model, total):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(total, parameters), strict=True))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("counted", [False, True])
def test_same_loss_and_gradients_as_from_logits(name, counted):
    model, layout = made(name, dropout=0.2)
    loss, batch = objective(model, reweigh=True), batch_of(layout)
    counts = loss.count(batch["labels"]) if counted else None
    model.train()
    torch.manual_seed(1)
    expected = loss(model(**model_inputs(batch)), batch, counts)
    torch.manual_seed(1)
    with LinearHead(model, loss):
        got = model(**model_inputs(batch), labels=batch["labels"], counts=counts)
    assert isinstance(got, LossParts)
    torch.testing.assert_close(got.total, expected.total, **EXACT)
    torch.testing.assert_close(got.parts, expected.parts, **EXACT)
    torch.testing.assert_close(gradients(model, got.total), gradients(model, expected.total), **EXACT)


SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
# Causal models of other families: those whose logits are a linear output layer's, and the factor behind it.
CAUSAL = {
    "llama, tied": ("Llama", {"tie_word_embeddings": True}, 1),
    "llama, untied": ("Llama", {"tie_word_embeddings": False}, 1),
    "granite": ("Granite", {"logits_scaling": 8.0}, 1 / 8),
    "cohere": ("Cohere", {"logit_scale": 0.25, "num_key_value_heads": 4}, 0.25),
    "phi, with bias": ("Phi", {}, 1),
}


def causal(family, **options):
    config = getattr(transformers, f"{family}Config")(
        **SIZE, vocab_size=len(tiny.encoding().tokenizer), pad_token_id=0, bos_token_id=1, eos_token_id=1, **options
    )
    torch.manual_seed(2)
    model = getattr(transformers, f"{family}ForCausalLM")(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def assert_linear_is_plain(model, loss, loss_on="answer"):
    batch = batch_of(tiny.layout("gpt2", loss_on))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = loss(model(**model_inputs(batch)), batch)
    wanted = torch.autograd.grad(expected.total, trained, allow_unused=True)
    with LinearHead(model, loss):
        got = model(**model_inputs(batch), labels=batch["labels"])
    torch.testing.assert_close(got.total, expected.total, **EXACT)
    torch.testing.assert_close(got.parts, expected.parts, **EXACT)
    for ours, theirs in zip(torch.autograd.grad(got.total, trained, allow_unused=True), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("name", CAUSAL)
def test_any_causal_model_with_a_linear_output_layer_gets_the_loss_of_its_logits(name):
    family, options, scale = CAUSAL[name]
    model = causal(family, **options)
    assert logits_scale(model) == pytest.approx(scale)
    assert_linear_is_plain(model.train(), objective(model), "answer")
    assert_linear_is_plain(model, objective(model, reweigh=True), "all")


def test_adapters_and_gradient_checkpointing():
    model = causal("Llama", tie_word_embeddings=True)
    adapted = lora.add(model, LoraSettings(r=4), seed=0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # zero at first, so that the gradients of A would be too
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.double().train()
    assert_linear_is_plain(adapted, objective(model))
    adapted.gradient_checkpointing_enable({"use_reentrant": False})
    adapted.enable_input_require_grads()
    assert_linear_is_plain(adapted, objective(model))


def test_soft_capped_logits_are_refused_with_the_reason():
    model = causal("Gemma2", final_logit_softcapping=30.0, head_dim=8)
    loss, many = objective(model), 2**20
    with pytest.raises(NotLinear, match="soft-capped"):
        LinearHead(model, loss)
    assert resolve_implementation("auto", model, loss, many) == "fused"
    with pytest.raises(ValueError, match="got 'linear' for a Gemma2ForCausalLM whose logits are soft-capped"):
        resolve_implementation("linear", model, loss, many)


def test_a_bias_behind_the_output_layer_is_refused():
    config = transformers.BartConfig(
        vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
        encoder_attention_heads=2, decoder_attention_heads=2,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config)
    with pytest.raises(NotLinear, match="BartForConditionalGeneration"):
        logits_scale(model)
    assert "forward" not in vars(model.lm_head)


def test_no_position_without_a_label_enters_the_output_layer(monkeypatch):
    from ntl.losses import fused

    model = causal("Llama")
    loss, batch = objective(model), batch_of(tiny.layout("gpt2"))
    rows = []
    original = fused._RowLosses.add
    monkeypatch.setattr(
        fused._RowLosses, "add", lambda self, logits, *rest: (rows.append(len(logits)), original(self, logits, *rest))
    )
    with LinearHead(model, loss):
        model(**model_inputs(batch), labels=batch["labels"])
    assert sum(rows) == int((batch["labels"] != -100).sum()) < batch["labels"].numel()


@pytest.mark.parametrize("name", ["t5", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"sigma": 1.0}])
def test_terms(name, options):
    model, layout = made(name)
    loss, batch = objective(model, **options), batch_of(layout)
    expected = loss.terms(model(**model_inputs(batch)), batch)
    with LinearHead(model, loss):
        parts, terms = model(**model_inputs(batch), labels=batch["labels"], terms=True)
    assert terms.keys() == expected.keys() == {"ce", "ntl"}
    torch.testing.assert_close(sum(terms.values()), parts.total, **EXACT)
    for term in terms:
        torch.testing.assert_close(terms[term], expected[term], **EXACT)
        theirs = torch.autograd.grad(expected[term], list(model.parameters()), retain_graph=True)
        ours = torch.autograd.grad(terms[term], list(model.parameters()), retain_graph=True)
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_the_model_is_itself_without_labels_and_afterwards(name):
    model, layout = made(name)
    before = dict(vars(model))
    inputs, labels = model_inputs(batch_of(layout)), batch_of(layout)["labels"]
    logits = model(**inputs).logits
    with LinearHead(model, objective(model)):
        assert torch.equal(model(**inputs).logits, logits)
        with pytest.raises(ValueError, match="label"):
            model(**inputs, labels=labels + 10_000)
        with pytest.raises(ValueError, match="specify"):
            model(labels=labels)  # without inputs
        assert torch.equal(model(**inputs).logits, logits)
        prompts = layout.prompt_batch([question for question, _ in (tiny.dataset()[0], tiny.dataset()[4])])
        inside = model.generate(**prompts, max_new_tokens=4)
    assert torch.equal(inside, model.generate(**prompts, max_new_tokens=4))
    assert vars(model).keys() == before.keys()
    assert torch.equal(model(**inputs).logits, logits)


def test_memory_is_not_that_of_logits():
    """No tensor as large as the logits is made, in training or in validation."""
    model, layout = made("gpt2")
    batch, loss = batch_of(layout), objective(model)
    size = batch["labels"].numel() * model.config.vocab_size

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            result = function(*arguments, **(options or {}))
            if isinstance(result, torch.Tensor):
                self.largest = max(self.largest, result.numel())
            return result

    from ntl.losses import fused

    rows, block = fused.LINEAR_ROWS, fused.BLOCK
    fused.LINEAR_ROWS = fused.BLOCK = 8
    try:
        with LinearHead(model, loss), Largest() as seen:
            model(**model_inputs(batch), labels=batch["labels"]).total.backward()
        with Largest() as plain:
            loss(model(**model_inputs(batch)), batch).total.backward()
    finally:
        fused.LINEAR_ROWS, fused.BLOCK = rows, block
    assert seen.largest < size <= plain.largest


class Other(Objective):
    """One that needs logits."""


def test_the_implementation_is_resolved():
    model, _ = made("t5")
    loss = objective(model)
    columns = model.config.vocab_size
    few, many = 100, 2**20 // columns + 1
    assert resolve_implementation("auto", model, loss, few) == "plain"
    assert resolve_implementation("auto", model, loss, many) == "linear"
    assert resolve_implementation("auto", model, Other(loss.numbers), many) == "plain"
    assert resolve_implementation("auto", model, loss, many, sharded=True) == "fused"
    for requested in ("plain", "fused", "linear"):
        assert resolve_implementation(requested, model, loss, few) == requested
    for requested in ("fused", "linear"):
        with pytest.raises(ValueError, match=f"got '{requested}' for Other"):
            resolve_implementation(requested, model, Other(loss.numbers), few)
    with pytest.raises(ValueError, match=r"got 'fast', expected one of auto, plain, fused, linear"):
        resolve_implementation("fast", model, loss, few)
    model.lm_head = nn.Sequential(model.lm_head)  # as an adapter would
    assert resolve_implementation("auto", model, loss, many) == "fused"
    with pytest.raises(ValueError, match="output layer is a Sequential"):
        resolve_implementation("linear", model, loss, few)


def trained(folder, family, implementation, steps, dtype, **options):
    model = tiny.model(family, seed=5, dropout=0.1).to(dtype)
    loss = options.pop("loss", None) or objective(model)
    settings = TrainSettings(
        steps=steps,
        batch_size=2,
        accumulate=2,
        learning_rate=3e-3,
        warmup_steps=0,
        eval_every=steps // 2 or 1,
        log_every=1,
        keep_best=False,
        device="cpu",
        loss_implementation=implementation,
        **options,
    )
    result = training.train(
        model, tiny.layout(family), loss, tiny.dataset(), tiny.dataset(tiny.ROWS[:5]), settings, 0, Path(folder)
    )
    return model.state_dict(), result.history


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_fifty_steps_agree(tmp_path, family):
    """In float64, with dropout, accumulation, clipping and measured gradients: weights and every logged number."""
    runs = {name: trained(tmp_path / name, family, name, 50, torch.float64) for name in ("plain", "fused", "linear")}
    weights, history = runs.pop("plain")
    assert {"ce", "ntl", "eval_ce", "grad_ce", "grad_ntl"} <= set().union(*history)
    for other, rows in runs.values():
        for name, value in weights.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-10)
        for ours, theirs in zip(rows, history, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_the_first_gradient_agrees_to_rounding_in_single_precision(family):
    model = tiny.model(family, seed=5)
    batch, loss = batch_of(tiny.layout(family)), objective(model)
    exact = copy.deepcopy(model).double()
    exact = gradients(exact, loss(exact(**model_inputs(batch)), batch).total)
    found = {}
    for name in ("plain", "fused"):
        found[name] = gradients(model, loss.with_implementation(name)(model(**model_inputs(batch)), batch).total)
    with LinearHead(model, loss):
        found["linear"] = gradients(model, model(**model_inputs(batch), labels=batch["labels"]).total)
    largest = max(float(value.abs().max()) for value in exact.values())
    errors = {
        name: max(float((value.double() - exact[key]).abs().max()) for key, value in values.items()) / largest
        for name, values in found.items()
    }
    assert max(errors.values()) < 3e-6
    assert max(errors["fused"], errors["linear"]) < 4 * errors["plain"] + 1e-7


@pytest.mark.parametrize("implementation", ["fused", "linear"])
def test_cross_entropy_is_ntl_of_weight_zero_bit_by_bit(tmp_path, implementation):
    numbers = tiny.encoding().numbers
    runs = []
    for kind in (CrossEntropy, lambda numbers: CrossEntropyWithNTL(numbers, weight=0.0)):
        folder = tmp_path / str(len(runs))
        loss = kind(numbers.resized(tiny.model("t5").config.vocab_size))
        runs.append(trained(folder, "t5", implementation, 6, torch.float32, loss=loss, gradient_norms_every=0)[0])
    assert all(torch.equal(value, runs[1][name]) for name, value in runs[0].items())


def test_the_implementation_is_told_and_the_given_objective_left_alone(tmp_path, caplog):
    caplog.set_level("INFO", logger="ntl.training.train")
    loss = objective(tiny.model("t5"))
    trained(tmp_path, "t5", "auto", 1, torch.float32, loss=loss)
    assert loss.implementation == "auto"
    assert "loss computed by the plain functions (train.loss_implementation=auto" in caplog.text
    with pytest.raises(ValueError, match=r"train.loss_implementation: got 'fast'"):
        training.check(TrainSettings(loss_implementation="fast"))


PROGRAM = """
import sys
import torch
from helpers import tiny
from torch.nn.parallel import DistributedDataParallel
from ntl.data import model_inputs
from ntl.losses import Counts, CrossEntropyWithNTL
from ntl.models.linear_head import LinearHead

rank, port, path, linear, expected = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "linear", sys.argv[5]
torch.set_num_threads(1)
if expected == "alone":
    world, rows = 1, slice(0, 8)
else:
    world, rows = 2, (slice(0, 3), slice(3, 8))[rank]
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
model = tiny.model("t5", seed=3, spread=0.3).double().train()
loss = CrossEntropyWithNTL(tiny.encoding().numbers.resized(model.config.vocab_size)).with_implementation("fused")
data, layout = tiny.dataset(), tiny.layout("t5")
counts = loss.count(layout.train_batch([data[i] for i in range(8)])["labels"])  # of all processes
batch = layout.train_batch([data[i] for i in range(8)[rows]])
inner = model
with LinearHead(inner, loss) if linear else torch.enable_grad():
    if world == 2:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        if linear:
            parts = model(**model_inputs(batch), labels=batch["labels"], counts=counts)
        else:
            parts = loss(model(**model_inputs(batch)), batch, counts)
        (parts.total * world).backward()
        optimizer.step()
        optimizer.zero_grad()
if rank == 0:
    torch.save(inner.state_dict(), path)
if world == 2:
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["linear", "logits"])
def test_two_processes_are_one(tmp_path, how):
    """DistributedDataParallel over unequal shares of a batch, with the counts of all of it."""
    tests = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{tests}:{tests.parent}", "PATH": "", "OMP_NUM_THREADS": "1"}
    port = str(29000 + hash(str(tmp_path)) % 2000)

    def start(rank, expected, path):
        command = [sys.executable, "-c", PROGRAM, str(rank), port, str(path), how, expected]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    processes = [start(0, "alone", tmp_path / "one"), start(0, "both", tmp_path / "two"), start(1, "both", "")]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    one, two = torch.load(tmp_path / "one"), torch.load(tmp_path / "two")
    torch.testing.assert_close(two, one, rtol=0, atol=1e-12)
