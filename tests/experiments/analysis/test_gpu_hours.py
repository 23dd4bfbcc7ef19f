"""What a run would take: parameters, FLOPs and bytes agree with what a small model really does."""

import json
import re
import socket

import pytest
import torch
import transformers
from helpers.shared_data import shared
from torch.utils.flop_counter import FlopCounterMode

from experiments.__main__ import main
from experiments.analysis import gpu_hours as plan
from experiments.config.compose import ConfigurationError, compose
from experiments.config.instantiate import instantiate
from ntl.settings import ModelSettings

SIZE = {
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 5},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 64},
}
LENGTHS = {"t5": (6, 3), "gpt2": (0, 9)}


def small(family, device="cpu", **options):
    config = {"t5": transformers.T5Config, "gpt2": transformers.GPT2Config}[family]
    auto = transformers.AutoModelForSeq2SeqLM if family == "t5" else transformers.AutoModelForCausalLM
    with torch.device(device):
        return auto.from_config(config(**SIZE[family], vocab_size=70, **options), attn_implementation="eager")


def inputs(family, rows=4, device="cpu"):
    encoder, decoder = LENGTHS[family]
    names = {"input_ids": encoder, "decoder_input_ids": decoder} if encoder else {"input_ids": decoder}
    return {name: torch.ones(rows, length, dtype=torch.long, device=device) for name, length in names.items()}


# The decoder's keys and values of the encoder's states multiply for each encoder token.
CROSS = re.compile(r"EncDecAttention\.(k|v)\.")


def products_of_weights(model, encoder_tokens, decoder_tokens):
    """6 · N · tokens: FLOPs of a training step's products with weights, by the usual rule of thumb."""
    encoder = {id(p) for p in model.get_encoder().parameters()} if model.config.is_encoder_decoder else set()
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    total = model.get_output_embeddings().weight.numel() * decoder_tokens
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and id(parameter) not in embeddings and not name.startswith("lm_head"):
            of_encoder = id(parameter) in encoder or CROSS.search(name)
            total += parameter.numel() * (encoder_tokens if of_encoder else decoder_tokens)
    return 6 * total


@pytest.mark.parametrize("family", ["t5", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_of_weights_and_attention(family, tied):
    model = small(family, tie_word_embeddings=tied)
    with FlopCounterMode(display=False) as counter:
        model(**inputs(family)).logits.sum().backward()
    attention = sum(n for operation, n in counter.get_flop_counts()["Global"].items() if "bmm" in str(operation))
    counted = plan.training_pass(small(family, "meta", tie_word_embeddings=tied), inputs(family, device="meta"))[2]
    assert attention > 0
    assert counted - attention == products_of_weights(model, *(4 * length for length in LENGTHS[family]))


@pytest.mark.parametrize("name", ["t5_small", "gpt2_small"])
def test_flops_of_published_models_are_about_those_of_the_rule_of_thumb(name):
    settings = instantiate(compose([f"model={name}", "dataset=arithmetic"])).model
    shape = plan.shape(settings, False, 32, 39, 5)
    expected = products_of_weights(plan.meta_model(settings), shape.encoder_tokens, shape.decoder_tokens)
    assert expected < shape.flops < 1.02 * expected


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_activations_are_the_bytes_that_a_real_model_keeps(family):
    models = {device: small(family, device).train() for device in ("meta", "cpu")}
    counted = {device: plan.training_pass(model, inputs(family, device=device)) for device, model in models.items()}
    assert counted["meta"] == counted["cpu"]
    twice = plan.training_pass(models["meta"], inputs(family, 8, "meta"))
    assert twice[1] == counted["meta"][1]  # as many operations
    assert twice[2] == 2 * counted["meta"][2]
    assert 1.9 < twice[0] / counted["meta"][0] <= 2
    half = plan.training_pass(small(family, "meta").train().bfloat16(), inputs(family, device="meta"))
    assert 0.4 < half[0] / counted["meta"][0] < 0.8


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a plan asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("name", "parameters", "memory"),
    [
        ("t5_small", "60.5 M", 0.90),
        ("t5_base", "222.9 M", 3.32),
        ("t5_3b", "2.85 B", 42.5),
        ("gpt2_small", "124.4 M", 1.85),
        ("gpt2_medium", "354.8 M", 5.29),
    ],
)
def test_published_models_have_their_published_sizes(name, parameters, memory, no_network, tmp_path):
    config = compose([f"model={name}", "dataset=arithmetic", "train.batch_size=1"])
    its = plan.estimate(config, plan.GPUS["H200"], tmp_path)
    assert plan._line("arm", config, its, 1)[2] == parameters
    assert (its.weights + its.optimizer) / 2**30 == pytest.approx(memory, rel=0.01)  # 16 bytes a parameter
    assert not its.measured


def test_the_time_is_that_of_the_formula(tmp_path):
    small, large = (
        compose(
            ["model=gpt2_small", "dataset=multiplication", "train.steps=900", f"train.batch_size={size}", "logger=none"]
        )
        for size in (1, 64)
    )
    first, second = (plan.estimate(config, plan.GPUS["A100"], tmp_path) for config in (small, large))
    assert first.waits and not second.waits
    assert second.flops == 64 * first.flops
    assert second.flops == pytest.approx(900 * products_of_weights(GPT2, *second.tokens), rel=0.02)
    assert second.hours == pytest.approx(second.flops / (0.6 * 19.5e12) / 3600)
    question, answer = 16, 11
    assert second.tokens == (0, 64 * (question + answer + 1))
    half = plan.estimate({**large, "train": {**large["train"], "precision": "bf16"}}, plan.GPUS["A100"], tmp_path)
    assert half.flops / (0.35 * 312e12) / 3600 <= half.hours < second.hours / 3
    assert half.weights == 1.5 * second.weights and half.optimizer == second.optimizer
    split = {**large["train"], "batch_size": 16, "accumulate": 4}
    accumulated = plan.estimate({**large, "train": split}, plan.GPUS["A100"], tmp_path)
    assert accumulated.flops == second.flops and accumulated.activations < second.activations / 3.5


with torch.device("meta"):
    GPT2 = transformers.GPT2LMHeadModel(transformers.GPT2Config())


def test_adapters_take_less(tmp_path):
    read = {"init": "pretrained", "hub": "someone/gpt2", "tokenizer": "pretrained"}
    settings = ModelSettings("gpt2_small", "gpt2", **read, architecture=SIZE["gpt2"])
    whole = plan.shape(settings, False, 4, 8, 3)
    settings.lora = {"r": 2}
    adapted = plan.shape(settings, False, 4, 8, 3)
    assert adapted.parameters - whole.parameters == adapted.trained > 0
    assert adapted.flops < whole.flops
    plain, its = (
        plan.estimate(compose(["model=gpt2_small", f"model.lora.r={rank}"]), plan.GPUS["H200"], tmp_path)
        for rank in (0, 8)
    )
    assert its.flops == pytest.approx(plain.flops * 4 / 6, rel=0.03)  # no gradients of the frozen weights
    assert its.optimizer == 12 * its.trained < 0.1 * its.weights


@pytest.mark.parametrize("tokenizer", ["t5", "gpt2"])
@pytest.mark.parametrize("encoding", ["digits", "subword"])
def test_estimated_tokens_are_about_those_of_published_tokenizers(tokenizer, encoding):
    from ntl.encodings import PretrainedTokenizer, build

    using = build(encoding, PretrainedTokenizer(str(shared(f"tokenizers/{tokenizer}"))))
    with shared("gsm8k/test.jsonl").open() as file:
        texts = [value for line in list(file)[:150] for value in json.loads(line).values()]
    real = sum(len(using.encode(text)["input_ids"]) for text in texts)
    assert sum(plan.estimated_tokens(text, encoding == "digits") for text in texts) == pytest.approx(real, rel=0.2)


def test_estimated_tokens_by_hand():
    assert plan.estimated_tokens("What is 123 - 4.5?", True) == 2 + 3 + 1 + 3 + 1
    assert plan.estimated_tokens("What is 123 - 4.5?", False) == 2 + 2 + 1 + 3 + 1
    assert plan.estimated_tokens("extraordinarily", True) == 3


def test_lengths_are_measured_where_the_data_are_prepared(tmp_path):
    for name, count in (("train", 30), ("test", 4)):
        rows = [{"question": f"{n} {'a ' * (n % 3)}", "answer": "12345"} for n in range(10, 10 + count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [f"dataset.{name}={tmp_path / name}.jsonl" for name in ("train", "test")]
    config = compose(["dataset=custom", *files, "train.batch_size=32", "logger=none"])
    before = plan.estimate(config, plan.GPUS["H200"], tmp_path / "data")
    assert not before.measured and before.tokens == (32 * 101, 32 * 21)
    instantiate(config).dataset.prepare(tmp_path / "data", progress=False)
    after = plan.estimate(config, plan.GPUS["H200"], tmp_path / "data")
    assert after.measured and after.tokens == (32 * (4 + 1), 32 * (5 + 1))
    cut = {**config, "model": {**config["model"], "question_tokens": 3}}
    assert plan.estimate(cut, plan.GPUS["H200"], tmp_path / "data").tokens == (32 * (3 + 1), 32 * (5 + 1))


def test_the_command_sums_runs_and_says_how(no_network, capsys):
    assert main(["plan", "paper/rjokes", "paper/successors", "--gpu", "A100"]) == 0
    said = capsys.readouterr().out
    rows = [re.split(r"  +", line.strip()) for line in said.splitlines() if re.match(r"\S+ +t5_small", line)]
    assert all(row[2] == "60.5 M" and row[3] == "2,500,000" for row in rows)
    totals = [float(value.replace(",", "")) for value in re.findall(r"([\d,]+) GPU-hours", said)]
    by_arm = [float(row[-1].replace(",", "")) for row in rows]
    assert sum(totals[:2]) == pytest.approx(sum(by_arm), rel=0.02)
    shared_arms = 2  # successors has rjokes' CE and NTL-WAS as well
    assert totals[2] == pytest.approx(sum(by_arm) - shared_arms * by_arm[0], rel=0.02)
    assert "as torch.utils.flop_counter counts them" in said and "of 19.5 TFLOP/s in fp32" in said


def test_an_unknown_gpu_is_answered_with_the_nearest(capsys):
    assert main(["plan", "ablation", "--gpu", "H20"]) == 2
    assert "unknown GPU 'H20'; nearest: H200" in capsys.readouterr().err
    with pytest.raises(ConfigurationError):
        plan.write(["ablation"], "TPU")
