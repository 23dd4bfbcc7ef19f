"""Where tokenizers come from: the hub or a folder, training on given texts, or the caller's own.

Whatever the source, the result is a plain `PreTrainedTokenizerFast` around a copy of the tokenizer's Rust object. The
classes of single models (`T5Tokenizer`, `GPT2Tokenizer`) write their pre-tokenizer anew whenever they are loaded, and
would lose the splitting of digits; the plain class is loaded from `tokenizer.json` as it was saved.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast, T5Tokenizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from ntl import hub

PAD, END = "<pad>", "</s>"
MAX_DIGITS = 4  # of a trained number token: T5's largest number token is 9001


class TokenizerSource(Protocol):
    """Something that yields a tokenizer, as it is or with every ASCII digit kept apart."""

    def load(self, split_digits: bool) -> PreTrainedTokenizerFast: ...


@dataclass(frozen=True)
class PretrainedTokenizer:
    """A published tokenizer.

    Attributes:
        name_or_path: id on the model hub, or a local folder with one of: `tokenizer.json`; `spiece.model` (T5);
            `vocab.json` and `merges.txt` (GPT-2); or whatever the folder's own configuration names.
        revision: of the hub repository.
    """

    name_or_path: str
    revision: str | None = None

    def load(self, split_digits: bool) -> PreTrainedTokenizerFast:
        """Load it. Raises a ValueError that says what was tried and what to do when there is none to be had."""
        return wrap(self._read(), split_digits)

    def _read(self) -> PreTrainedTokenizerBase:
        folder = Path(self.name_or_path)
        if folder.is_dir():
            return _read_folder(folder)
        if folder.is_absolute() or self.name_or_path.startswith((".", "~")) or self.name_or_path.count("/") > 1:
            raise ValueError(f"got '{self.name_or_path}', which is no folder; give a folder that holds a tokenizer")
        try:
            return AutoTokenizer.from_pretrained(self.name_or_path, **hub.options(self.name_or_path, self.revision))
        except Exception as error:  # no network, no such id, no such revision, a broken download: one answer to all
            raise ValueError(
                f"the tokenizer of '{self.name_or_path}' (revision {self.revision or 'main'}) could not be read: there "
                f"is no folder of that name, and {hub.reason(error)}. Give a local folder in the hub's layout instead "
                "(path=<folder>; for a run model.path=<folder>), or try again with a connection"
            ) from error


class TrainedBPE:
    """A byte-level BPE tokenizer trained on given texts: any text can be written in it, and read back exactly.

    Tokens 0 and 1 are `<pad>` (with which T5's decoder starts) and `</s>`, then come the 256 bytes, the ten digits
    among them, then merges. The same texts in any order, on any number of threads, give the same tokenizer. Up to
    `MAX_DIGITS` digits may merge with each other and with a space before them, or none do (`split_digits`). Without
    that limit, a small vocabulary trained on questions about numbers has tokens up to 1,000,000, and the gradient of
    a loss on their distances is 50 times that of T5's subwords.

    With `marker`, every text begins with a space that decoding removes, as T5's tokenizer does. Together with the end
    token, an answer `123` is then written in as many labels as T5 writes it: `Ġ 1 2 3 </s>`. The marker stays apart
    from a minus too, since T5 has no piece `▁-`.
    """

    def __init__(self, texts: Iterable[str], vocab_size: int, *, marker: bool = False) -> None:
        """
        Args:
            texts: what to train on, one text each.
            vocab_size: tokens at most; few texts give fewer. At least 258, the bytes and two special tokens.
            marker: put T5's space marker before every text.
        """
        self.texts = list(texts)
        self.vocab_size = vocab_size
        self.marker = marker
        smallest = 256 + len((PAD, END))
        if vocab_size < smallest:
            raise ValueError(f"got vocab_size={vocab_size}, expected at least {smallest}: 256 bytes and {PAD}, {END}")
        if not any(self.texts):
            raise ValueError(
                "got no text to train a tokenizer on: give the questions and answers of the training split"
            )

    def load(self, split_digits: bool) -> PreTrainedTokenizerFast:
        """Train it, in seconds for 100,000 short questions."""
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        if self.marker:
            backend.normalizer = normalizers.Prepend(" ")
            backend.decoder = decoders.Sequence([backend.decoder, decoders.Strip(" ", left=1, right=0)])
        _split(backend, ("[0-9]" if split_digits else f"Ġ?[0-9]{{1,{MAX_DIGITS}}}") + "|Ġ(?=-)" * self.marker)
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=2,
            special_tokens=[PAD, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(self.texts, trainer)
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            pad_token=PAD,
            eos_token=END,
            clean_up_tokenization_spaces=False,
            split_special_tokens=True,  # a text that spells `</s>` is a text, and does not end there
        )


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer that the caller has loaded; it is copied and stays as it is."""

    tokenizer: PreTrainedTokenizerBase

    def load(self, split_digits: bool) -> PreTrainedTokenizerFast:
        return wrap(self.tokenizer, split_digits)


def wrap(tokenizer: PreTrainedTokenizerBase, split_digits: bool) -> PreTrainedTokenizerFast:
    """Return a copy of `tokenizer` as a plain fast tokenizer, digits kept apart if wanted.

    A tokenizer without a padding token (GPT-2's) pads with its end token, so that its vocabulary stays as it is. No end
    token is lost by that: who makes batches masks by length, never by comparing with the padding id.

    Raises:
        ValueError: the tokenizer is none of the `tokenizers` library, or it has no end token.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"got a {type(tokenizer).__name__}, expected a tokenizer backed by the tokenizers library (is_fast): "
            "convert it, or load it from a folder with tokenizer.json"
        )
    if tokenizer.eos_token is None:
        raise ValueError(
            f"got a {type(tokenizer).__name__} without an end token, with which every answer ends: set its eos_token"
        )
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    if split_digits:
        _split(backend, "[0-9]")
    names = {"pad_token": tokenizer.eos_token, **tokenizer.special_tokens_map}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        split_special_tokens=tokenizer.split_special_tokens,
        chat_template=getattr(tokenizer, "chat_template", None),
        **names,
    )


def _split(backend: Tokenizer, pattern: str) -> None:
    """Make each match of `pattern` a piece of its own, after the tokenizer's own cutting has put its space markers."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    own = backend.pre_tokenizer
    backend.pre_tokenizer = split if own is None else pre_tokenizers.Sequence([own, split])


def _read_folder(folder: Path) -> PreTrainedTokenizerBase:
    files = sorted(path.name for path in folder.iterdir())
    try:
        if "tokenizer.json" in files and _class_in(folder) in (None, "TokenizersBackend", "PreTrainedTokenizerFast"):
            # AutoTokenizer would take the model's own class for some (Qwen2), whatever the tokenizer says it is
            loader = PreTrainedTokenizerFast
        elif "tokenizer_config.json" in files or "config.json" in files:
            loader = AutoTokenizer
        elif "spiece.model" in files:
            loader = T5Tokenizer
        elif "vocab.json" in files and "merges.txt" in files:
            loader = GPT2Tokenizer
        else:
            raise FileNotFoundError("none of these files is there")
        return loader.from_pretrained(folder, **({"trust_remote_code": False} if loader is AutoTokenizer else {}))
    except Exception as error:  # the library raises all kinds for a broken file
        raise ValueError(
            f"no tokenizer could be read from folder '{folder}' ({_first_line(error)}); it holds "
            f"{', '.join(files) or 'nothing'}, expected tokenizer.json, spiece.model, or vocab.json with merges.txt, "
            "whole: save the tokenizer there with save_pretrained, or name another folder"
        ) from error


def _class_in(folder: Path) -> str | None:
    """Return the tokenizer class, or else the type of model, that a folder's files name."""
    for name, key in (("tokenizer_config.json", "tokenizer_class"), ("config.json", "model_type")):
        if (folder / name).is_file() and (named := json.loads((folder / name).read_text()).get(key)):
            return named
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
