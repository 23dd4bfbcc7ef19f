"""Time and memory of the losses, measured side by side; `record` writes them down, `experiments.runtime` shows them.

All methods of a comparison run in one process, in turn, in a new order every round; a ratio is the median over rounds
of the time divided by that of the first method in the same round, so that what else the machine does in the meantime
falls on all alike. Memory is what the process (or the GPU's allocator) reached above where it stood before, measured in
a run of its own.
"""

from __future__ import annotations

import ctypes
import gc
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.benchmark.settings import (
    CE,
    CE_FUSED,
    FUSED,
    LIGER,
    LINEAR,
    NTLOSS,
    NTLOSS_DEFAULT,
    OUR_CE,
    OUR_NTL,
    PLAIN,
    REWEIGHED,
    SHARES,
    TRAINER,
    BenchmarkSettings,
)
from ntl.losses import CrossEntropy, CrossEntropyWithNTL
from ntl.losses.functional import cross_entropy, cross_entropy_with_ntl, linear_cross_entropy_with_ntl
from ntl.numbers import NumberVocabulary

Step = Callable[[], None]


@dataclass(frozen=True)
class Vocabulary:
    """The size of a model's output layer, and how many labels are measured at a time."""

    name: str
    columns: int
    width: int  # of the hidden states
    tokens: int  # for the loss alone
    head_tokens: int  # for the loss with the head


VOCABULARIES = (
    Vocabulary("T5", 32_128, 512, 1024, 1024),
    Vocabulary("GPT-2", 50_257, 768, 1024, 512),
    Vocabulary("Qwen", 151_936, 896, 512, 256),
)
GROWTH = (256, 1024, 4096, 16_384)
LIMIT = 12 * 2**30  # bytes that a measurement may take


# ── Methods ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def digits(columns: int) -> NumberVocabulary:
    """Ten digits, spread over a vocabulary of so many columns."""
    ids = torch.arange(10) * (columns // 11) + 7
    return NumberVocabulary(ids=ids, values=torch.arange(10, dtype=torch.float64), vocab_size=columns)


@cache
def ntloss_of(columns: int, reweigh: bool) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The package's own loss for the same vocabulary, or None where it is not installed."""
    try:
        from ntloss import NTLoss
    except ImportError:
        return None
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(columns)}
    for digit, index in enumerate(digits(columns).ids.tolist()):
        del words[f"w{index}"]
        words[str(digit)] = index
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0")
    loss = NTLoss(tokenizer=tokenizer, vocab_size=columns, reweigh=reweigh)
    return lambda logits, labels: loss(logits[None], labels[None])


def labels_of(tokens: int, columns: int, share: float, device: str) -> Tensor:
    """Random labels (tokens,), of which `share` are digits."""
    numbers = digits(columns)
    labels = torch.randint(columns, (tokens,))
    labels[numbers.mask(labels)] = 0
    chosen = torch.randperm(tokens)[: round(share * tokens)]
    labels[chosen] = numbers.ids[torch.randint(10, chosen.shape)]
    return labels.to(device)


def loss_methods(columns: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Losses of logits (N, C) and labels (N,)."""
    numbers = digits(columns)
    methods: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        CE: F.cross_entropy,
        CE_FUSED: lambda x, y: cross_entropy(x, y, implementation="fused"),
        PLAIN: lambda x, y: cross_entropy_with_ntl(x, y, numbers, implementation="plain"),
        FUSED: lambda x, y: cross_entropy_with_ntl(x, y, numbers, implementation="fused"),
        REWEIGHED: lambda x, y: cross_entropy_with_ntl(x, y, numbers, reweigh=True, implementation="fused"),
    }
    for name, reweigh in ((NTLOSS, False), (NTLOSS_DEFAULT, True)):
        if (loss := ntloss_of(columns, reweigh)) is not None:
            methods[name] = lambda x, y, loss=loss: F.cross_entropy(x, y) + 0.3 * loss(x, y)
    return methods


def head_methods(columns: int) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Losses of hidden states (N, D), a head's weight (C, D), and labels (N,)."""
    numbers = digits(columns)
    losses = loss_methods(columns)
    methods: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        f"head + {name}": lambda h, w, y, loss=losses[name]: loss(F.linear(h, w), y)
        for name in (CE, PLAIN, FUSED, NTLOSS)
        if name in losses
    }
    methods[LINEAR] = lambda h, w, y: linear_cross_entropy_with_ntl(h, w, y, numbers)
    if (liger := liger_loss()) is not None:
        methods[LIGER] = lambda h, w, y: liger(w, h, y)
    return methods


def liger_loss() -> Callable[..., Tensor] | None:
    """Liger's fused linear cross-entropy where it runs: with its package, Triton and a GPU."""
    if not torch.cuda.is_available():
        return None
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return None
    return LigerFusedLinearCrossEntropyLoss()


def differentiated(loss: Callable[..., Tensor], inputs: Sequence[Tensor], *rest: Tensor) -> Step:
    """Forward and backward, with gradients in the leaves that are dropped before the next."""

    def step() -> None:
        for tensor in inputs:
            tensor.grad = None
        loss(*inputs, *rest).backward()

    return step


def training_steps(family: str, settings: BenchmarkSettings, device: str) -> tuple[dict[str, Step], int, int]:
    """Whole training steps of T5-small or GPT-2 small from scratch, through transformers' Trainer: all with one model,
    batch and optimizer. Returns them with tokens and columns."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        T5Config,
        T5ForConditionalGeneration,
        Trainer,
        TrainingArguments,
    )

    from ntl.models.linear_head import LinearHead
    from ntl.training.trainer import ObjectiveTrainer

    torch.manual_seed(0)
    if family == "T5-small":
        config = T5Config(vocab_size=32_128, decoder_start_token_id=0)  # its own defaults are T5-small
        rows, length, model = 4 if settings.quick else 16, 16, T5ForConditionalGeneration(config)
        inputs = {name: torch.randint(100, 32_000, (rows, 2 * length)) for name in ("input_ids",)}
        inputs["decoder_input_ids"] = torch.randint(100, 32_000, (rows, length))
    else:
        config = GPT2Config()
        rows, length, model = 1 if settings.quick else 4, 64, GPT2LMHeadModel(config)
        inputs = {"input_ids": torch.randint(100, 50_000, (rows, length))}
    model.to(device).train()
    labels = labels_of(rows * length, config.vocab_size, 0.6, "cpu").view(rows, length)
    batch = {name: value.to(device) for name, value in inputs.items()} | {"labels": labels.to(device)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    arguments = TrainingArguments(
        output_dir=str(Path(tempfile.gettempdir()) / "ntl-runtime"),
        report_to="none",
        use_cpu=device == "cpu",
        remove_unused_columns=False,
        disable_tqdm=True,
    )

    def step(trainer: Trainer, given: Mapping[str, Tensor]) -> None:
        count = trainer._get_num_items_in_batch([given], torch.device(device))
        trainer.training_step(model, dict(given), count)
        optimizer.step()
        optimizer.zero_grad()

    numbers = digits(config.vocab_size)
    # the model shifts its own labels where it is decoder-only
    own = batch if family == "T5-small" else batch | {"labels": batch["labels"].roll(1, -1)}
    methods: dict[str, Step] = {}
    plain = Trainer(model=model, args=arguments)
    methods[TRAINER] = lambda: step(plain, own)
    for name, weight, implementation in (
        (OUR_CE, 0.0, "linear"),
        (OUR_NTL, 0.3, "linear"),
        ("CE + NTL, train.loss_implementation=fused", 0.3, "fused"),
        ("CE + NTL, train.loss_implementation=plain", 0.3, "plain"),
    ):
        objective = CrossEntropyWithNTL(numbers, weight=weight) if weight else CrossEntropy(numbers)
        linear = implementation == "linear"
        objective = objective.with_implementation("plain" if linear else implementation)
        trainer = ObjectiveTrainer(objective=objective, linear=linear, model=model, args=arguments)

        def ours(trainer: Trainer = trainer, linear: bool = linear) -> None:
            with LinearHead(model, trainer.objective) if linear else nullcontext():
                step(trainer, batch)

        methods[name] = ours
    if (loss := ntloss_of(config.vocab_size, reweigh=False)) is not None:

        def with_package(outputs: Any, targets: Tensor, num_items_in_batch: Any = None) -> Tensor:
            logits, targets = outputs.logits.flatten(0, 1), targets.flatten()
            return F.cross_entropy(logits, targets) + 0.3 * loss(logits, targets)

        other = Trainer(model=model, args=arguments, compute_loss_func=with_package)
        methods["CE + ntloss, plain Trainer"] = lambda: step(other, batch)
    return methods, rows * length, config.vocab_size


# ── Measuring ───────────────────────────────────────────────────────────────────────────────────────────────────────


def alternate(methods: Mapping[str, Step], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each method in each round, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    names = list(methods)
    for index in range(-1, rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            elapsed = timed(methods[name], device)
            if index >= 0:
                seconds[name].append(elapsed)
    return seconds


def timed(step: Step, device: str) -> float:
    """Seconds that a step takes; on a GPU, from its own events."""
    if device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000
    start_time = time.perf_counter()
    step()
    return time.perf_counter() - start_time


def peak_memory(step: Step, device: str) -> float | None:
    """MiB that a step needs beyond what is there before it; None where the system does not tell."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed is given back, so that it cannot be used again unseen
        before = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except (OSError, AttributeError):
        return None
    step()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    """A field of the process's status, in KiB."""
    return int(re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)[1])


def measure(
    settings: BenchmarkSettings, device: str, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Measure what the settings name. Each measurement has part, vocabulary, columns, tokens, numbers, dtype, method,
    seconds (by round) and memory_mib."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    measured = []
    for part in settings.parts:
        for what, methods, cleaner in {"loss": _losses, "head": _heads, "growth": _growth, "step": _steps}[part](
            settings, device, dtype
        ):
            say(", ".join(str(value) for value in what.values()))
            rounds = min(settings.rounds, what.pop("rounds", settings.rounds))
            memory = {}
            for name, step in methods.items():
                step()  # buffers that libraries make once
                cleaner()
                memory[name] = peak_memory(step, device)
                cleaner()
            for name, seconds in alternate(methods, rounds, device).items():
                measured.append(
                    {"part": part, **what, "dtype": str(dtype).removeprefix("torch."), "method": name}
                    | {"seconds": [float(f"{value:.4g}") for value in seconds]}
                    | {"memory_mib": None if memory[name] is None else round(memory[name], 1)}
                )
            methods.clear()
            gc.collect()
    return measured


Cases = Iterator[tuple[dict[str, Any], dict[str, Step], Callable[[], None]]]


def _losses(settings: BenchmarkSettings, device: str, dtype: torch.dtype) -> Cases:
    for vocabulary in VOCABULARIES:
        for share in SHARES:
            yield _loss_case(vocabulary, settings.size(vocabulary.tokens), share, device, dtype)


def _heads(settings: BenchmarkSettings, device: str, dtype: torch.dtype) -> Cases:
    for vocabulary in VOCABULARIES:
        tokens = settings.size(vocabulary.head_tokens)
        yield _head_case(vocabulary, tokens, device, dtype, rounds=3)


def _growth(settings: BenchmarkSettings, device: str, dtype: torch.dtype) -> Cases:
    vocabulary = VOCABULARIES[0]
    for tokens in GROWTH[:2] if settings.quick else GROWTH:
        rounds = 5 if tokens <= 1024 else 3 if tokens <= 4096 else 1
        what, methods, cleaner = _loss_case(vocabulary, tokens, 0.6, device, dtype)
        yield what | {"rounds": rounds}, methods, cleaner
        yield _head_case(vocabulary, tokens, device, dtype, rounds=rounds, only=(f"head + {CE}", LINEAR, LIGER))


def _steps(settings: BenchmarkSettings, device: str, dtype: torch.dtype) -> Cases:
    for family in ("T5-small", "GPT-2 small"):
        methods, tokens, columns = training_steps(family, settings, device)
        what = {"vocabulary": family, "columns": columns, "tokens": tokens, "numbers": 0.6, "rounds": 5}
        yield what, methods, lambda: None


def _loss_case(vocabulary: Vocabulary, tokens: int, share: float, device: str, dtype: torch.dtype) -> tuple:
    torch.manual_seed(0)
    logits = torch.randn(tokens, vocabulary.columns).mul_(2).to(device, dtype).requires_grad_()
    labels = labels_of(tokens, vocabulary.columns, share, device)
    methods = {
        name: differentiated(loss, [logits], labels)
        for name, loss in loss_methods(vocabulary.columns).items()
        if _fits(name, logits)
    }
    what = {"vocabulary": vocabulary.name, "columns": vocabulary.columns, "tokens": tokens, "numbers": share}
    return what, methods, lambda: setattr(logits, "grad", None)


def _head_case(
    vocabulary: Vocabulary, tokens: int, device: str, dtype: torch.dtype, rounds: int, only: Sequence[str] | None = None
) -> tuple:
    torch.manual_seed(0)
    hidden = torch.randn(tokens, vocabulary.width).to(device, dtype).requires_grad_()
    matrix = torch.randn(vocabulary.columns, vocabulary.width).mul_(0.05).to(device, dtype).requires_grad_()
    labels = labels_of(tokens, vocabulary.columns, 0.6, device)
    methods = {
        name: differentiated(loss, [hidden, matrix], labels)
        for name, loss in head_methods(vocabulary.columns).items()
        if only is None or name in only
    }
    what = {"vocabulary": vocabulary.name, "columns": vocabulary.columns, "tokens": tokens, "numbers": 0.6}

    def clean() -> None:
        hidden.grad = matrix.grad = None

    return what | {"rounds": rounds}, methods, clean


def _fits(method: str, logits: Tensor) -> bool:
    """Whether a method is expected to stay within `LIMIT`: in matrices as large as the logits, given ones included."""
    matrices = {CE: 4, CE_FUSED: 2, FUSED: 2, REWEIGHED: 2, PLAIN: 5, NTLOSS: 6, NTLOSS_DEFAULT: 9}
    return matrices[method] * logits.numel() * logits.element_size() <= LIMIT
