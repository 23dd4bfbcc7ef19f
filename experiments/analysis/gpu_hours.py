"""What an experiment would take: parameters, memory, arithmetic and GPU-hours of every arm, without running it.

Nothing is downloaded and no weight is made: models are built on the meta device, of the sizes in `conf/model`.
How each number comes about stands in `NOTES`, which is printed below the tables.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from tabulate import tabulate
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from experiments.analysis.records import key
from experiments.config.compose import ConfigurationError, load_experiment, run_config
from experiments.config.instantiate import instantiate
from ntl.settings import ModelSettings
from ntl.text import did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from data_prep.base import Dataset

GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class GPU:
    """An accelerator: its makers' peak rates (dense, in TFLOP/s), and the memory (GiB) that programs have of it."""

    half: float  # bf16 and fp16 matrix products
    single: float  # fp32, without TF32
    memory: float


GPUS = {
    "H200": GPU(989, 67, 139),
    "H100": GPU(989, 67, 79),
    "A100": GPU(312, 19.5, 79),
    "L40S": GPU(362, 91.6, 44),
    "RTX4090": GPU(165, 82.6, 23.5),
    "RTX3090": GPU(71, 35.6, 23.5),
}
# Assumptions. Both shares are what plain PyTorch reaches on matrices that are large enough.
SHARE = {"half": 0.35, "single": 0.6}  # of the peak
LAUNCH = 10e-6  # seconds that PyTorch takes to start one operation, which small models wait for

NOTES = """\
parameters   of the language model, tied ones once, whatever an encoding adds (a number head, tokens) or leaves out
tokens       of a step: batch · accumulate · longest question (encoder) + longest answer (decoder) of a batch, or of
             both together for decoder-only models, each with an end token. {lengths}
weights      4 bytes a parameter (AdamW updates in fp32), and 2 for the copy that bf16 or fp16 computes with
optimizer    gradients 4 bytes and AdamW's two moments 8 bytes a trained parameter (all in bf16: 2 + 2 + 4)
activations  bytes that autograd keeps of one micro-batch's forward pass and cross-entropy, counted on the meta device
             in the precision of training, with the attention weights held (fused attention kernels keep less)
FLOPs        steps · accumulate · the matrix products of one micro-batch's forward and backward pass, attention's
             included, as torch.utils.flop_counter counts them on the meta device
GPU-hours    on one {gpu}: the larger of FLOPs / ({rates}) and three times the operations of a
             forward pass at {launch:.0f} µs each (marked *: the GPU waits for the program that starts them);
             validations, and answers to the tests, not counted
"""


@dataclass(frozen=True)
class RunEstimate:
    """What one run takes. Memory in bytes."""

    parameters: int
    trained: int
    tokens: tuple[int, int]  # of a step, encoder and decoder
    weights: float
    optimizer: float
    activations: float
    flops: float
    hours: float
    waits: bool  # the GPU waits for the program that starts its operations
    measured: bool  # the lengths, on prepared data
    half: bool  # computes in bf16 or fp16

    @property
    def memory(self) -> float:
        return self.weights + self.optimizer + self.activations


def write(names: Sequence[str], gpu: str = "H200", data: Path = ROOT / "data") -> str:
    """Return the plan of experiments as text.

    Args:
        gpu: one of `GPUS`.
        data: where prepared data lie.

    Raises:
        ConfigurationError: an unknown GPU.
    """
    if gpu not in GPUS:
        raise ConfigurationError(did_you_mean("GPU", gpu, GPUS))
    blocks, hours, estimates = [], {}, []
    for name in names:
        experiment = load_experiment(name)
        if not experiment.arms:
            continue
        lines, total, largest = [], 0.0, 0.0
        for arm in experiment.arms:
            seeds = experiment.seeds_of[arm]
            config = run_config(experiment, arm, 0)
            its = estimate(config, GPUS[gpu], data)
            estimates.append(its)
            hours |= {key({**config, "seed": seed}): its.hours for seed in seeds}
            total += its.hours * len(seeds)
            largest = max(largest, its.memory / GIB)
            lines.append(_line(arm, config, its, len(seeds)))
        table = tabulate(lines, HEADERS, "simple", disable_numparse=True, colalign=["left"] * 2 + ["right"] * 10)
        fits = "" if largest <= GPUS[gpu].memory else f"; {largest:.0f} GiB do not fit into one {gpu}"
        blocks.append(f"{name}\n\n{table}\n\n{_hours(total)} GPU-hours{fits}")
    if len(blocks) > 1:
        blocks.append(f"in all: {_hours(sum(hours.values()))} GPU-hours (runs that experiments share counted once)")
    return "\n\n\n".join([*blocks, _notes(gpu, estimates)])


HEADERS = ["arm", "model", "parameters", "steps", "tokens a step", "weights", "optimizer", "activations", "GiB in all"]
HEADERS += ["FLOPs", "hours a run", "hours"]


def _line(arm: str, config: Mapping[str, Any], its: RunEstimate, seeds: int) -> list[str]:
    encoder, decoder = its.tokens
    size = f"{its.parameters / 1e9:.2f} B" if its.parameters >= 1e9 else f"{its.parameters / 1e6:.1f} M"
    return [
        arm,
        config["model"]["name"],
        size if its.trained == its.parameters else f"{size} ({its.trained / 1e6:.2f} M trained)",
        f"{config['train']['steps']:,}",
        f"{encoder:,} + {decoder:,}" if encoder else f"{decoder:,}",
        *(f"{part / GIB:.2f}" for part in (its.weights, its.optimizer, its.activations, its.memory)),
        f"{its.flops:.1e}",
        f"{_hours(its.hours)}{'*' if its.waits else ' '}",
        _hours(its.hours * seeds),
    ]


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _notes(gpu: str, estimates: Sequence[RunEstimate]) -> str:
    measured, precisions = {its.measured for its in estimates}, {its.half for its in estimates}
    if measured == {True}:
        lengths = "Measured on the prepared data."
    elif measured == {False}:
        lengths = "Assumed (data_prep, typical_tokens): no data are prepared."
    else:
        lengths = "Measured where the data are prepared, else assumed (data_prep, typical_tokens)."
    rates = " or ".join(
        f"{SHARE[kind]:.0%} of {getattr(GPUS[gpu], kind):g} TFLOP/s in {'bf16' if half else 'fp32'}"
        for half, kind in ((False, "single"), (True, "half"))
        if half in precisions
    )
    return NOTES.format(gpu=gpu, rates=rates, launch=LAUNCH * 1e6, lengths=lengths)


def estimate(config: Mapping[str, Any], gpu: GPU, data: Path = ROOT / "data") -> RunEstimate:
    """Return what the run that `config` describes takes on `gpu`."""
    parts = instantiate(config)
    half = parts.train.precision != "fp32"
    apart = config["loss"]["encoding"] != "subword"
    lengths = measured_lengths(parts.dataset, parts.train.batch_size, apart, data)
    question, answer = lengths or parts.dataset.typical_tokens
    question = min(question, parts.model.question_tokens or question)
    model = json.dumps(asdict(parts.model))
    try:
        shape = _shape(model, half, parts.train.batch_size, question, answer)
    except ValueError as error:  # such as a model that is neither in a folder nor on the hub
        raise ConfigurationError(str(error)) from error
    every = parts.train.accumulate
    flops = parts.train.steps * every * shape.flops
    computing = flops / (SHARE["half" if half else "single"] * (gpu.half if half else gpu.single) * 1e12)
    starting = parts.train.steps * every * 3 * shape.operations * LAUNCH
    return RunEstimate(
        parameters=shape.parameters,
        trained=shape.trained,
        tokens=(shape.encoder_tokens * every, shape.decoder_tokens * every),
        weights=(6 if half else 4) * shape.parameters,
        optimizer=12 * shape.trained,
        activations=shape.activations,
        flops=flops,
        hours=max(computing, starting) / 3600,
        waits=starting > computing,
        measured=lengths is not None,
        half=half,
    )


# Lengths.

_PIECES = re.compile(r"[^\W\d_]+|[0-9]+|[^\w\s]|\w")


def estimated_tokens(text: str, digits_apart: bool) -> int:
    """Return about how many tokens a published tokenizer makes of `text`, to within a fifth.

    Words of up to six letters and punctuation marks are one each, numbers one for each digit, or for each two where
    digits may stay together.
    """
    tokens = 0
    for piece in _PIECES.findall(text):
        if piece[0].isdigit():
            tokens += len(piece) if digits_apart else math.ceil(len(piece) / 2)
        else:
            tokens += math.ceil(len(piece) / 6)
    return tokens


def measured_lengths(dataset: Dataset, batch_size: int, digits_apart: bool, data: Path) -> tuple[int, int] | None:
    """Return the mean length (tokens) of a batch's longest question and answer, or None if the data are not prepared.

    On 64 batches drawn from the first 20,000 training rows.
    """
    path = dataset.location(data) / "train.jsonl"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in islice(file, 20_000)]
    draw = random.Random(0)
    size = min(batch_size, len(rows))
    batches = [draw.sample(rows, size) for _ in range(64)]
    question, answer = (
        math.ceil(mean(max(estimated_tokens(row[part], digits_apart) for row in batch) for batch in batches))
        for part in ("question", "answer")
    )
    return question, answer


# Models.


@dataclass(frozen=True)
class Shape:
    """A model on the meta device, and what a training step on one micro-batch computes and keeps."""

    parameters: int
    trained: int
    encoder_tokens: int
    decoder_tokens: int
    activations: int  # bytes that the forward pass keeps for the backward pass
    operations: int  # of the forward pass
    flops: int  # of the forward and the backward pass


@cache
def _shape(model: str, half: bool, batch_size: int, question: int, answer: int) -> Shape:
    return shape(ModelSettings(**json.loads(model)), half, batch_size, question, answer)


def shape(settings: ModelSettings, half: bool, rows: int, question: int, answer: int) -> Shape:
    """Return the shape of a model and of a micro-batch of `rows` whose longest question and answer are so long."""
    model = meta_model(settings)
    parameters = sum(p.numel() for p in model.parameters())
    with torch.device("meta"):
        if model.config.is_encoder_decoder:
            ids = {"input_ids": (rows, question + 1), "decoder_input_ids": (rows, answer + 1)}
            tokens = rows * (question + 1), rows * (answer + 1)
        else:
            ids = {"input_ids": (rows, question + answer + 1)}
            tokens = 0, rows * (question + answer + 1)
        inputs = {name: torch.zeros(size, dtype=torch.long) for name, size in ids.items()}
    if half:
        model = model.to(torch.bfloat16)
    trained = parameters
    if settings.adapters is not None:
        from ntl.models import lora

        with torch.device("meta"):
            model = lora.add(model, settings.adapters, seed=0)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        parameters += trained
    return Shape(parameters, trained, *tokens, *training_pass(model.train(), inputs))


def meta_model(settings: ModelSettings) -> PreTrainedModel:
    """Build the model of `settings` without its weights; at its published vocabulary, or the trained tokenizer's."""
    import transformers

    from ntl.models.build import scratch_config

    config = scratch_config(settings, None)
    if settings.tokenizer == "bpe":
        config.vocab_size = settings.vocab_size
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)


class _Counter(TorchDispatchMode):
    """Counts the operations that compute something: not those that look at a tensor in another way."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view and function is not torch.ops.aten._unsafe_view.default
        return function(*args, **(kwargs or {}))


def training_pass(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[int, int, int]:
    """Run a forward and a backward pass with cross-entropy.

    Returns:
        The bytes that autograd keeps of the forward pass, the operations of the forward pass, and the FLOPs of both.
    """
    kept: list[torch.Tensor] = []  # held, so that no two storages have the same address

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with FlopCounterMode(display=False) as flops:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), _Counter() as counter:
            logits = model(**inputs).logits
            labels = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
            loss = nn.functional.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())
        loss.backward()
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in kept}
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    activations = sum(size for address, size in storages.items() if address not in weights)
    return activations, counter.count, flops.get_total_flops()
