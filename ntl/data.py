"""Examples → batches, for encoder–decoder and decoder-only models alike.

A layout says how a question and its answer are laid out for a model family. In every training batch `labels` stand
under the logits that predict them (no shift is left to the loss), -100 where nothing is to be predicted; keys that
begin with `labels` are for the objective, all others for the model's `forward`. A prompt batch holds no answer.

Encodings may give further values per token beside `input_ids` (xVal: the number a token stands for). They travel along
under their own key, as `decoder_<key>` on the decoder's side and as `labels_<key>` beside the labels. What an encoding
names among its `target_pads` is for the objective alone: it comes as `labels_<key>` and in no other form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ntl.numbers import IGNORE_INDEX
from ntl.rows import Encoded, Row

if TYPE_CHECKING:
    from ntl.encodings import Encoding


class EncodedDataset(torch.utils.data.Dataset):
    """Rows with their questions and answers encoded once, up front.

    Of a question only the first `question_tokens` tokens are kept (None: all); `cut` counts the longer ones.
    """

    def __init__(self, rows: Sequence[Row], encoding: Encoding, question_tokens: int | None = None) -> None:
        self.rows = rows
        self.items = [(encoding.encode(row["question"]), encoding.encode_answer(row["answer"])) for row in rows]
        self.cut = 0
        for question, _ in self.items if question_tokens is not None else ():
            self.cut += len(question["input_ids"]) > question_tokens
            for values in question.values():
                del values[question_tokens:]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Encoded, Encoded]:
        return self.items[index]

    def longest_answer(self) -> int:
        """Tokens of the longest answer, its end token included."""
        return max((len(answer["input_ids"]) for _, answer in self.items), default=0) + 1

    def answers_beyond(self, limit: int) -> int:
        """Return how many answers have more than `limit` tokens, without their end token."""
        return sum(len(answer["input_ids"]) > limit for _, answer in self.items)


class Layout(Protocol):
    """How a model family lays a question and its answer out."""

    pads: Mapping[str, Any]  # by key of what `encode` returns
    target_pads: Mapping[str, Any]

    def train_batch(self, items: Sequence[tuple[Encoded, Encoded]]) -> dict[str, torch.Tensor]: ...

    def prompt_batch(self, questions: Sequence[Encoded]) -> dict[str, torch.Tensor]: ...

    def given(self, item: tuple[Encoded, Encoded]) -> Encoded: ...  # what `prompt_batch` takes of a row

    def length(self, item: tuple[Encoded, Encoded]) -> int: ...


class EncoderDecoder:
    """The question goes to the encoder; the decoder is given the answer, shifted by one, and predicts it."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.pads, self.target_pads = encoding.pad_values, encoding.target_pads
        self.end = {"input_ids": encoding.tokenizer.eos_token_id}
        start = encoding.decoder_start_id
        self.start = {"input_ids": encoding.tokenizer.pad_token_id if start is None else start}
        self.prefix = _prefix(encoding)

    def train_batch(self, items: Sequence[tuple[Encoded, Encoded]]) -> dict[str, torch.Tensor]:
        """Returns input_ids, attention_mask (B, S); decoder_input_ids, labels (B, T); and further keys alike."""
        batch = self.prompt_batch([question for question, _ in items])
        for key, pad in self.pads.items():
            answers = [[*answer[key], self.end.get(key, pad)] for _, answer in items]
            shifted = [[self.start.get(key, pad), *answer[:-1]] for answer in answers]
            main = key == "input_ids"
            batch[f"decoder_{key}"] = _pad(shifted, pad)
            batch["labels" if main else f"labels_{key}"] = _pad(answers, IGNORE_INDEX if main else pad)
        for key, pad in self.target_pads.items():
            batch[f"labels_{key}"] = _pad([[*answer[key], pad] for _, answer in items], pad)
        return batch

    def prompt_batch(self, questions: Sequence[Encoded]) -> dict[str, torch.Tensor]:
        """Returns input_ids and attention_mask (B, S), padded on the right."""
        questions = [
            {key: [*self.prefix[key], *q[key], self.end.get(key, pad)] for key, pad in self.pads.items()}
            for q in questions
        ]
        return _prompt(questions, self.pads, left=False)

    def given(self, item: tuple[Encoded, Encoded]) -> Encoded:
        return item[0]

    def length(self, item: tuple[Encoded, Encoded]) -> int:
        return len(self.prefix["input_ids"]) + len(item[0]["input_ids"]) + len(item[1]["input_ids"]) + 2


class DecoderOnly:
    """Question, a line break, answer and end token in one sequence; loss on the answer, or on all of it.

    A sequence begins with what the tokenizer itself puts before a text: Llama's `<s>`, nothing for GPT-2 and Qwen.
    """

    def __init__(self, encoding: Encoding, loss_on: str = "answer") -> None:
        self.encoding = encoding
        self.pads, self.target_pads = encoding.pad_values, encoding.target_pads
        self.end = {"input_ids": encoding.tokenizer.eos_token_id}
        self.loss_on_all = loss_on == "all"
        self.prefix = _prefix(encoding)
        self.separator = encoding.encode("\n")

    def train_batch(self, items: Sequence[tuple[Encoded, Encoded]]) -> dict[str, torch.Tensor]:
        """Returns input_ids, attention_mask, labels (B, T), padded on the right; labels[t] is the token after t."""
        batch: dict[str, torch.Tensor] = {}
        for key, pad in (self.pads | self.target_pads).items():
            main = key == "input_ids"
            inputs, labels = [], []
            for question, answer in items:
                prompt = [*self.prefix[key], *question[key], *self.separator[key]]
                whole = [*prompt, *answer[key], self.end.get(key, pad)]
                inputs.append(whole[:-1])
                unseen = [] if self.loss_on_all else [IGNORE_INDEX if main else pad] * (len(prompt) - 1)
                labels.append([*unseen, *whole[1 + len(unseen) :]])
            if key in self.pads:
                batch[key] = _pad(inputs, pad)
            batch["labels" if main else f"labels_{key}"] = _pad(labels, IGNORE_INDEX if main else pad)
            if main:
                batch["attention_mask"] = _mask([len(row) for row in inputs], batch[key].shape[1], left=False)
        return batch

    def prompt_batch(self, questions: Sequence[Encoded]) -> dict[str, torch.Tensor]:
        """Returns input_ids and attention_mask (B, S), padded on the left, so that every row ends where it goes on."""
        questions = [{key: [*self.prefix[key], *q[key], *self.separator[key]] for key in self.pads} for q in questions]
        return _prompt(questions, self.pads, left=True)

    def given(self, item: tuple[Encoded, Encoded]) -> Encoded:
        return item[0]

    def length(self, item: tuple[Encoded, Encoded]) -> int:
        around = len(self.prefix["input_ids"]) + len(self.separator["input_ids"])
        return around + len(item[0]["input_ids"]) + len(item[1]["input_ids"]) + 1


class FillIn:
    """The question with a blank after it, and an end token: the last token of the answer is filled in at the blank.

    Tokens of the answer before its last one are shown, in prompts too: published xVal shows the sign of the answer.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.pads, self.target_pads = encoding.pad_values, encoding.target_pads
        self.blank = {"input_ids": encoding.blank}
        self.end = {"input_ids": encoding.tokenizer.eos_token_id}

    def train_batch(self, items: Sequence[tuple[Encoded, Encoded]]) -> dict[str, torch.Tensor]:
        """Returns input_ids, attention_mask, labels (B, S); labels stand at the blanks."""
        given = [self.given(item) for item in items]
        batch = self.prompt_batch(given)
        for key, pad in (self.pads | self.target_pads).items():
            main = key == "input_ids"
            unseen = IGNORE_INDEX if main else pad
            labels = [
                [*[unseen] * len(shown["input_ids"]), answer[key][-1], unseen]
                for shown, (_, answer) in zip(given, items, strict=True)
            ]
            batch["labels" if main else f"labels_{key}"] = _pad(labels, unseen)
        return batch

    def prompt_batch(self, questions: Sequence[Encoded]) -> dict[str, torch.Tensor]:
        """Returns input_ids and attention_mask (B, S), padded on the right, with one blank."""
        rows = [
            {key: [*q[key], self.blank.get(key, pad), self.end.get(key, pad)] for key, pad in self.pads.items()}
            for q in questions
        ]
        return _prompt(rows, self.pads, left=False)

    def given(self, item: tuple[Encoded, Encoded]) -> Encoded:
        question, answer = item
        return {key: [*question[key], *answer[key][:-1]] for key in self.pads}

    def length(self, item: tuple[Encoded, Encoded]) -> int:
        return len(item[0]["input_ids"]) + len(item[1]["input_ids"]) + 1


class OneNumber:
    """The question alone, and one label: a number that is predicted from the state at the question's last token.

    That is the end token for encoder–decoder models, whose decoder reads the question as well, and otherwise the line
    break after which an answer would begin.
    """

    def __init__(self, encoding: Encoding, encoder_decoder: bool) -> None:
        self.pads, self.target_pads = encoding.pad_values, encoding.target_pads
        tokenizer, start = encoding.tokenizer, encoding.decoder_start_id
        self.prefix = encoding.prefix
        self.end = [tokenizer.eos_token_id] if encoder_decoder else encoding.encode("\n")["input_ids"]
        self.start = (tokenizer.pad_token_id if start is None else start) if encoder_decoder else None

    def train_batch(self, items: Sequence[tuple[Encoded, Encoded]]) -> dict[str, torch.Tensor]:
        """Returns what `prompt_batch` does, and labels and labels_<target> (B, 1)."""
        batch = self.prompt_batch([question for question, _ in items])
        for key in self.pads | self.target_pads:
            batch["labels" if key == "input_ids" else f"labels_{key}"] = torch.tensor([a[key] for _, a in items])
        return batch

    def prompt_batch(self, questions: Sequence[Encoded]) -> dict[str, torch.Tensor]:
        """Returns input_ids and attention_mask (B, S), padded on the right, and decoder_input_ids for a decoder."""
        rows = [{"input_ids": [*self.prefix, *question["input_ids"], *self.end]} for question in questions]
        batch = _prompt(rows, self.pads, left=False)
        if self.start is not None:
            shifted = [[self.start, *row["input_ids"][:-1]] for row in rows]
            batch["decoder_input_ids"] = _pad(shifted, self.pads["input_ids"])
        return batch

    def given(self, item: tuple[Encoded, Encoded]) -> Encoded:
        return item[0]

    def length(self, item: tuple[Encoded, Encoded]) -> int:
        return len(self.prefix) + len(item[0]["input_ids"]) + len(self.end) + 1


def layout_for(model_is_encoder_decoder: bool, encoding: Encoding, loss_on: str = "answer") -> Layout:
    """The layout of a model family, or of an encoding whose answers are no text that follows the question."""
    if encoding.blank is not None:
        return FillIn(encoding)
    if encoding.pooled:
        return OneNumber(encoding, model_is_encoder_decoder)
    return EncoderDecoder(encoding) if model_is_encoder_decoder else DecoderOnly(encoding, loss_on)


def answers_only(layout: Layout) -> Layout:
    """The same layout with labels on the answer alone, whatever the loss is taken on."""
    return DecoderOnly(layout.encoding) if isinstance(layout, DecoderOnly) else layout


def model_inputs(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The part of a batch that the model's `forward` takes."""
    return {key: value for key, value in batch.items() if not key.startswith("labels")}


def without_labels(batch: Mapping[str, torch.Tensor], layout: Layout) -> dict[str, torch.Tensor]:
    """The same batch with nothing in it to be learnt."""
    nothing = {"labels": IGNORE_INDEX} | {
        f"labels_{key}": pad for key, pad in (layout.pads | layout.target_pads).items()
    }
    return {key: value.clone().fill_(nothing[key]) if key in nothing else value for key, value in batch.items()}


def _prefix(encoding: Encoding) -> Encoded:
    """What every text begins with, as `encode` would return it."""
    pads = encoding.pad_values | encoding.target_pads
    return {key: encoding.prefix if key == "input_ids" else [pad] * len(encoding.prefix) for key, pad in pads.items()}


def _prompt(rows: Sequence[Encoded], pads: Mapping[str, Any], left: bool) -> dict[str, torch.Tensor]:
    batch = {key: _pad([row[key] for row in rows], pad, left) for key, pad in pads.items()}
    batch["attention_mask"] = _mask([len(row["input_ids"]) for row in rows], batch["input_ids"].shape[1], left)
    return batch


def _pad(rows: Sequence[list], value: float, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    if left:
        return torch.tensor([[value] * (width - len(row)) + row for row in rows])
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def _mask(lengths: Sequence[int], width: int, left: bool) -> torch.Tensor:
    positions = torch.arange(width)
    lengths = torch.tensor(lengths)[:, None]
    return (positions >= width - lengths if left else positions < lengths).long()
