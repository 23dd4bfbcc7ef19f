"""Answering: a model writes an answer to every question of a split.

All methods go through this one path; what is particular to one (how it generates) is its encoding's. Token accuracy,
NLL and digit error come from a teacher-forced pass and count the answer's tokens only, over the whole split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from ntl import distributed, options
from ntl.data import EncodedDataset, Layout, answers_only, model_inputs
from ntl.evaluation.metrics import TokenStats
from ntl.losses.functional import expected_numbers
from ntl.models.linear_head import labelled_logits
from ntl.numbers import IGNORE_INDEX, NumberVocabulary
from ntl.settings import EvalSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ntl.encodings import Encoding


@dataclass
class Answers:
    """What a model answered to the questions of one split, in their order."""

    texts: list[str]
    truncated: list[bool]  # cut at the limit of new tokens
    tokens: list[TokenStats]  # of the reference answer, teacher-forced


def check(settings: EvalSettings) -> None:
    """Raise a ValueError for settings that cannot be evaluated with, before any work starts."""
    options.check(settings, "eval")
    if settings.decode == "expected" and settings.beams != 1:
        raise ValueError("eval.decode=expected picks digits one by one; set eval.beams=1 with it")


def answer_limit(settings: EvalSettings, train: EncodedDataset, tests: Mapping[str, EncodedDataset]) -> int:
    """Return the limit of a generated answer in tokens, end token included.

    Args:
        tests: the splits that will be answered; they count with `limit_from=all`.
    """
    if settings.answer_tokens is not None:
        return settings.answer_tokens
    counted = [train, *(tests.values() if settings.limit_from == "all" else ())]
    return max(data.longest_answer() for data in counted) + settings.margin


def truncation_notes(tests: Mapping[str, EncodedDataset], limit: int) -> list[str]:
    """Return a sentence for each split with reference answers beyond the limit of a generated answer."""
    return [
        f"{split}: {count:,} of {len(data):,} reference answers have more tokens than an answer may have ({limit}), so "
        "that no answer to them can be right; eval.limit_from=all takes the limit from the test splits too"
        for split, data in tests.items()
        if (count := data.answers_beyond(limit))
    ]


class TooLong(ValueError):
    """A question that leaves the model no room for an answer."""


def check_lengths(config: Any, layout: Layout, data: Mapping[str, EncodedDataset], max_new_tokens: int) -> None:
    """Raise TooLong for a split with a question that leaves a model too few positions to answer.

    Args:
        config: of the model; one without a limit of positions (T5) takes everything.
        data: by split.
        max_new_tokens: limit of a generated answer.
    """
    limit = None if config.is_encoder_decoder else getattr(config, "max_position_embeddings", None)
    if limit is None:
        return
    empty = {"input_ids": []}
    for split, items in data.items():
        prompt = max((layout.length((question, empty)) - 1 for question, _ in items), default=0)
        forced = max((layout.length(item) - 1 for item in items), default=0)  # the reference answer, as trained
        if max(prompt + max_new_tokens, forced) > limit:
            raise TooLong(
                f"the split '{split}' needs {max(prompt + max_new_tokens, forced)} positions (its longest question has "
                f"{prompt} tokens, and answers have up to {max_new_tokens}), and the model has {limit}: leave out long "
                "questions, lower eval.margin, or, from scratch, raise model.architecture.n_positions"
            )


@torch.no_grad()
def answer(
    model: PreTrainedModel,
    encoding: Encoding,
    layout: Layout,
    data: EncodedDataset,
    settings: EvalSettings,
    max_new_tokens: int,
    title: str | None = None,
) -> Answers:
    """Let `model` answer every question of `data`.

    Processes that have joined (`ntl.distributed`) share the batches out, and all return all answers.

    Args:
        max_new_tokens: limit of a generated answer, its end token included.
        title: of a progress bar; None for no bar.
    """
    was_training = model.training
    model.eval()
    answered: dict[int, tuple[str, bool, TokenStats]] = {}
    forced = answers_only(layout)
    share = distributed.share(list(_batches(data, layout, settings.batch_size)))
    hidden = title is None or distributed.rank() > 0
    bar = tqdm(total=sum(map(len, share)), desc=title, disable=hidden or None, leave=False)
    for indices in share:
        items = [data[index] for index in indices]
        prompts = _on_device(layout.prompt_batch([layout.given(item) for item in items]), model)
        generated = encoding.generate(
            model, prompts, max_new_tokens=max_new_tokens, num_beams=settings.beams, decode=settings.decode
        )
        stats = _teacher_forced(model, _on_device(forced.train_batch(items), model), encoding.numbers)
        for index, result, stat in zip(indices, generated, stats, strict=True):
            answered[index] = result.text, result.truncated, stat
        bar.update(len(indices))
    bar.close()
    model.train(was_training)
    for others in distributed.gathered(answered):
        answered |= others
    in_order = [answered[index] for index in range(len(data))]
    return Answers(*([row[column] for row in in_order] for column in range(3)))


def _teacher_forced(
    model: PreTrainedModel, batch: dict[str, torch.Tensor], numbers: NumberVocabulary
) -> list[TokenStats]:
    """Return the sums over each row's labels; without any for a model that predicts no tokens."""
    labels, valid = batch["labels"], batch["labels"] != IGNORE_INDEX
    logits = labelled_logits(model, model_inputs(batch), labels)
    if logits is None:
        return [TokenStats()] * len(labels)
    logits, targets = logits.float(), labels[valid]
    found = {
        "correct": logits.argmax(-1) == targets,
        "tokens": torch.ones_like(targets),
        "nll_sum": cross_entropy(logits, targets, reduction="none").double(),
    }
    if _are_digits(numbers):
        is_digit, values = numbers.mask(targets), numbers.to(targets.device).values
        index = numbers.to(targets.device).lookup(targets).clamp_min(0)
        errors = (expected_numbers(logits, numbers)[0].double() - values[index]).abs()
        found |= {"digits": is_digit, "digit_error_sum": errors.where(is_digit, 0.0)}
    row = valid.nonzero()[:, 0]
    sums = {
        name: torch.zeros(len(labels), dtype=torch.double, device=labels.device).index_add(0, row, values.double())
        for name, values in found.items()
    }
    counts = ("correct", "tokens", "digits")
    return [
        TokenStats(**{name: int(values[i]) if name in counts else float(values[i]) for name, values in sums.items()})
        for i in range(len(labels))
    ]


def _are_digits(numbers: NumberVocabulary) -> bool:
    """Return whether all number tokens are worth a digit, and not all the same."""
    return set(numbers.values.tolist()) <= set(range(10)) and len(numbers.values.unique()) > 1


def _batches(data: EncodedDataset, layout: Layout, size: int) -> Iterator[list[int]]:
    """Indices in batches of like length, so that little is padded; the same batches whatever the model."""
    order = sorted(range(len(data)), key=lambda index: (layout.length(data[index]), index))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _on_device(batch: dict[str, torch.Tensor], model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {key: value.to(model.device) for key, value in batch.items()}
