"""Which tokens are numbers and what they are worth. Numbers in text: `ntl.number_grammar`.

Imports torch and the standard library only, so that the losses do too. A tokenizer is whatever has `get_vocab()`.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ntl.text import plain_number

IGNORE_INDEX = -100  # the label where nothing is to be predicted, as in torch.nn.functional.cross_entropy
SPACE_MARKERS = ("▁", "Ġ", " ")  # how SentencePiece, byte-level BPE and plain vocabularies write a space in a token
DIGITS = "0123456789"

_NUMERAL = re.compile(r"[0-9]+(?:\.[0-9]+)?")

# Codes of the characters of a token, as `places` reads them.
_BREAK, _DIGIT, _DOT, _BLANK = 0, 1, 2, 3


def numeral(token: str) -> str | None:
    """Return the ASCII decimal numeral that `token` spells after one leading space marker, or None.

    A numeral is digits, or digits with one interior dot. Everything else that `float()` or `str.isdigit()` would
    take (`²`, `٣`, `1_000`, `1e5`, `inf`, `-5`, `.5`, `5.`) is not one.
    """
    if token[:1] in SPACE_MARKERS:
        token = token[1:]
    return token if _NUMERAL.fullmatch(token) else None


@dataclass(frozen=True, eq=False)
class NumberVocabulary:
    """The number tokens of a vocabulary.

    Attributes:
        ids: (K,) int64, ascending token ids.
        values: (K,) float64, what each is worth.
        vocab_size: columns of the logits. It may exceed the tokenizer's length (padded output layers).
        dot_ids: ids of the bare token `.`, the decimal point between digits; used by `places` alone.
        tokens: the K tokens as spelt, marker included; used by `places` alone. Spelt from the values when not given.
        token_places: the K places, where a token stands for a digit at one certain place; `places` then returns them.
    """

    ids: Tensor
    values: Tensor
    vocab_size: int
    dot_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    token_places: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # Tensors made in inference mode cannot be saved for a backward pass, and these are kept for good.
        with torch.inference_mode(False):
            ids = torch.as_tensor(self.ids, dtype=torch.int64).clone()
            values = torch.as_tensor(self.values, dtype=torch.float64).clone()
        if ids.ndim != 1 or not len(ids) or ids.shape != values.shape:
            raise ValueError(
                f"got ids of shape {tuple(ids.shape)} and values of shape {tuple(values.shape)}, expected two vectors "
                "of one length, at least 1: give one value per number token"
            )
        if bool((ids.diff() <= 0).any()):
            raise ValueError("got ids that are not strictly ascending: sort ids and values by id, each id once")
        if not bool(values.isfinite().all()):
            raise ValueError("got values that are not finite: leave out tokens that are worth no number")
        if int(ids[0]) < 0 or int(ids[-1]) >= self.vocab_size:
            raise ValueError(
                f"got number tokens with ids {int(ids[0])} to {int(ids[-1])} for vocab_size={self.vocab_size}, "
                "expected ids from 0 to vocab_size − 1: give the number of columns of the model's logits"
            )
        tokens = tuple(self.tokens) or tuple(_spell(value) for value in values.tolist())
        if len(tokens) != len(ids):
            raise ValueError(f"got {len(tokens)} tokens for {len(ids)} ids, expected one each")
        if len(self.token_places) not in (0, len(ids)):
            raise ValueError(f"got {len(self.token_places)} places for {len(ids)} ids, expected one each or none")
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "dot_ids", tuple(self.dot_ids))
        object.__setattr__(self, "_copies", {ids.device: self})

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, vocab_size: int | None = None, digits_only: bool = True
    ) -> NumberVocabulary:
        """Find the number tokens of `tokenizer` (anything with `get_vocab() -> {token: id}`; it is not changed).

        Args:
            vocab_size: columns of the model's logits, where they are more than the tokenizer has tokens.
            digits_only: take exactly the ten unmarked tokens `0` to `9`, whatever else the vocabulary has, for
                tokenizers that split digits: tokens of several (as in T5, GPT-2, Llama 3) are none then. Otherwise
                every token that is an ASCII decimal numeral after its space marker is stripped (see `numeral`).

        Warns:
            UserWarning: digits_only, and the tokenizer writes numbers of a text with other tokens, such as `2024` or
                `Ġ7`: a loss on these number tokens would pass over them. (Seen only where it can `tokenize`.)

        Raises:
            ValueError: the vocabulary lacks a digit (digits_only) or any number, or ids do not fit `vocab_size`.
        """
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        if digits_only:
            missing = [digit for digit in DIGITS if digit not in vocabulary]
            if missing:
                raise ValueError(
                    f"got a vocabulary of {len(vocabulary)} tokens without {' '.join(missing)}, expected the ten "
                    "tokens 0 to 9 without a space marker: use digits_only=False, or a tokenizer that has them"
                )
            found = {digit: digit for digit in DIGITS}
            warn_of_other_numbers(tokenizer, "digits_only")
        else:
            found = {token: number for token in vocabulary if (number := numeral(token))}
            # a piece of more than 308 digits is worth infinity in float64
            found = {token: number for token, number in found.items() if math.isfinite(float(number))}
            if not found:
                raise ValueError(
                    f"got a vocabulary of {len(vocabulary)} tokens, none of them a number; expected tokens like 7, 42 "
                    "or 3.14: a number token loss needs a tokenizer that has them"
                )
        tokens = sorted(found, key=vocabulary.__getitem__)
        return cls(
            ids=torch.tensor([vocabulary[token] for token in tokens]),
            values=torch.tensor([float(found[token]) for token in tokens], dtype=torch.float64),
            vocab_size=vocab_size if vocab_size is not None else max(vocabulary.values()) + 1,
            dot_ids=(vocabulary["."],) if "." in vocabulary else (),
            tokens=tuple(tokens),
        )

    def __len__(self) -> int:
        """Return K, how many number tokens there are."""
        return len(self.tokens)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def to(self, device: torch.device | str) -> NumberVocabulary:
        """Return this vocabulary with its tensors on `device`; copied once for each device, then kept."""
        device = torch.device(device)
        copies: dict[torch.device, NumberVocabulary] = self._copies
        if device not in copies:
            copy = object.__new__(type(self))  # not the constructor: its checks would wait for the device
            with torch.inference_mode(False):
                vars(copy).update(self.__getstate__(), ids=self.ids.to(device), values=self.values.to(device))
            # `cuda` becomes `cuda:0`: the copy is found under either name, and finds its siblings
            copies[device] = copies.setdefault(copy.ids.device, copy)
            object.__setattr__(copy, "_copies", copies)
        return copies[device]

    def resized(self, vocab_size: int) -> NumberVocabulary:
        """Return the same number tokens for logits of `vocab_size` columns."""
        return replace(self, vocab_size=vocab_size)

    @cached_property
    def _index(self) -> Tensor:
        """(vocab_size + 1,) index of each token id among the numbers, else −1; the last entry is for ids outside."""
        with torch.inference_mode(False):
            index = torch.full((self.vocab_size + 1,), -1, dtype=torch.int64, device=self.ids.device)
            index[self.ids] = torch.arange(len(self), device=self.ids.device)
        return index

    @cached_property
    def _characters(self) -> Tensor:
        """(vocab_size + 1, L) codes of the characters of each token: `places` reads labels through this table.

        L is the longest number token, marker included; 1 for plain digits.
        """
        codes = {"0": _DIGIT, ".": _DOT}
        width = max(map(len, self.tokens))
        rows = [
            [codes.get("0" if char in DIGITS else char, _BREAK) for char in token] + [_BLANK] * (width - len(token))
            for token in self.tokens
        ]
        with torch.inference_mode(False):
            table = torch.full((self.vocab_size + 1, width), _BLANK, dtype=torch.int64)
            table[:, 0] = _BREAK
            table[list(self.dot_ids), 0] = _DOT
            table[self.ids.cpu()] = torch.tensor(rows)
            return table.to(self.ids.device)

    @cached_property
    def _token_places(self) -> Tensor:
        with torch.inference_mode(False):
            return torch.tensor(self.token_places, device=self.ids.device)

    def _inside(self, labels: Tensor) -> Tensor:
        """Return `labels` with every id that is no column of the logits (−100, say) replaced by `vocab_size`."""
        return torch.where((labels < 0) | (labels >= self.vocab_size), self.vocab_size, labels).long()

    def lookup(self, labels: Tensor) -> Tensor:
        """Return the index (0 to K − 1) of each label among the number tokens, −1 for all else; any shape."""
        return self.to(labels.device)._index[self._inside(labels)]

    def mask(self, labels: Tensor) -> Tensor:
        """Return True where a label is a number token; any shape."""
        return self.lookup(labels) >= 0

    def marked(self, labels: Tensor) -> Tensor:
        """Return True where a label is a number token with a space marker, which begins a number; any shape."""
        first = self.to(labels.device)._characters[..., 0][self._inside(labels)]
        return self.mask(labels) & (first == _BREAK)

    def places(self, labels: Tensor) -> Tensor:
        """Return the decimal place of each number label within its number: units 0, tens 1, first decimal −1.

        Args:
            labels: (B, T) or (T,) token ids; ids outside the vocabulary (−100, padding) end a number.

        Returns:
            int64 of the same shape. It means something at number labels only, and is 0 elsewhere.

        Numbers are read from left to right as digits, then at most one dot with digits after it. A dot without a
        digit on either side (`5.`, `.5`) belongs to no number; in `1.2.3` the numbers are 1.2 and 3. A token with a
        space marker begins a number of its own. The place of a token of several digits is that of its last digit:
        `12` `3` has places 1 and 0, `3.14` alone has −2.
        """
        if labels.ndim == 1:
            return self.places(labels[None])[0]
        if labels.ndim != 2:
            raise ValueError(f"got labels of shape {tuple(labels.shape)}, expected (B, T) or (T,)")
        if not labels.numel():
            return torch.zeros_like(labels, dtype=torch.int64)
        if self.token_places:
            index = self.lookup(labels)
            return torch.where(index >= 0, self.to(labels.device)._token_places[index.clamp_min(0)], 0)
        characters = self.to(labels.device)._characters[self._inside(labels)]  # (B, T, L)
        batch, length, width = characters.shape
        if width == 1:
            return torch.where(self.mask(labels), _character_places(characters[..., 0]), 0)
        # Close the gaps that short tokens leave, read, and take for each token the place of its last character.
        flat = characters.reshape(batch, length * width)
        order = (flat == _BLANK).to(torch.uint8).argsort(dim=1, stable=True)
        places = torch.zeros_like(flat).scatter(1, order, _character_places(flat.gather(1, order)))
        last = (characters != _BLANK).sum(-1, keepdim=True) - 1
        return torch.where(self.mask(labels), places.view(batch, length, width).gather(2, last)[..., 0], 0)


def warn_of_other_numbers(tokenizer: Any, option: str) -> None:
    """Warn if `tokenizer` writes numbers of a text with other tokens than 0 to 9, which `option` leaves out."""
    if not hasattr(tokenizer, "tokenize"):
        return
    pieces = tokenizer.tokenize("It is 7 or 12 of 2024, or 31.5.")
    others = [piece for piece in pieces if numeral(piece) and piece not in DIGITS]
    if others:
        warnings.warn(
            f"got a tokenizer that writes numbers with tokens such as {' '.join(others)}, and {option}=True, which "
            "counts the tokens 0 to 9 alone: the loss passes over the others. Use "
            f"{option}=False, or a tokenizer that splits numbers into digits",
            stacklevel=3,
        )


def _spell(value: float) -> str:
    """Write a value as a token would spell it: 7.0 as `7`, 0.5 as `0.5`."""
    return plain_number(Decimal(repr(value)))


def _character_places(codes: Tensor) -> Tensor:
    """Return the place of each digit in rows of character codes (B, S); meaningless where there is no digit."""
    position = torch.arange(codes.shape[1], device=codes.device).expand_as(codes)
    digit = codes == _DIGIT
    edge = torch.zeros_like(digit[:, :1])
    before, after = torch.cat([edge, digit[:, :-1]], 1), torch.cat([digit[:, 1:], edge], 1)
    joint = (codes == _DOT) & before & after
    # Joints chain runs of digits: a.b.c.d. Reading from the left, the odd joints of a chain are decimal points.
    joints = joint.cumsum(1)
    start = digit & ~before & ~torch.cat([edge, joint[:, :-1]], 1)
    ordinal = joints - torch.where(start, joints, 0).cummax(1).values
    since_joint = position - torch.where(joint, position, 0).cummax(1).values
    stop = torch.where(digit, codes.shape[1], position).flip(1).cummin(1).values.flip(1)  # the next that is no digit
    return torch.where(ordinal % 2 == 1, -since_joint, stop - 1 - position)
