"""What every encoding does: text → what the model sees → text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from ntl.encodings.expected import ExpectedValueProcessor
from ntl.encodings.options import EncodingOptions
from ntl.encodings.tokenizers import TokenizerSource
from ntl.numbers import NumberVocabulary
from ntl.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

DECODINGS = ("generate", "expected")


@dataclass(frozen=True)
class Generated:
    """An answer: its text, whether it was cut at the length limit, and its tokens, end token excluded."""

    text: str
    truncated: bool
    ids: list[int] = field(default_factory=list)


class Encoding:
    """Owns the tokenizer, the number vocabulary, and the way answers are generated. Subclasses are found by `name`.

    Args:
        source: of the tokenizer.
        options: those that `Options` declares, by keyword; ValueError for one that is out of range.

    Attributes:
        Options: frozen dataclass that declares the options (see `ntl.options`); `options` is an instance of it.
        tokenizer: a fast tokenizer with end and padding token.
        numbers: the number tokens, for logits as wide as the model's (see `resize`).
        decoder_start_id: what the decoder of an encoder–decoder model begins with; None is the padding token. Published
            weights may have learnt another (see `ntl.models.build`).
        report: counters for the run's record, such as how many numbers were rounded.

    What an encoding can be used with stands in class attributes, which `check` compares with a run's choices:
        families: of models; None for all.
        answers: what the answers of a data set may be.
        decodings: ways to choose the next token.
        searches: whether several beams can be used.
        because: the reason for these limits, for the error message.

    Where an encoding adds layers to a model, `heads` names them: they are trained whole beside adapters.

    An encoding with a `blank`, the id of a token, has its answers filled in at that token (see `ntl.data.FillIn`). The
    answers of a `pooled` one are predicted from the end of the question (see `ntl.data.OneNumber`). The models of a
    `scratch_only` one are like no published model: no weights can be loaded.
    """

    blank: int | None = None
    pooled: ClassVar[bool] = False
    scratch_only: ClassVar[bool] = False

    Options: ClassVar[type[EncodingOptions]] = EncodingOptions
    name: ClassVar[str] = ""
    split_digits: ClassVar[bool] = False
    families: ClassVar[tuple[str, ...] | None] = None
    answers: ClassVar[tuple[str, ...]] = ("number", "text")
    decodings: ClassVar[tuple[str, ...]] = ("generate",)
    searches: ClassVar[bool] = True
    because: ClassVar[str] = ""
    heads: ClassVar[tuple[str, ...]] = ()

    decoder_start_id: int | None = None

    def __init__(self, source: TokenizerSource, **options: Any) -> None:
        self.options = self.Options(**options)
        self.tokenizer = source.load(self.split_digits)
        self.numbers = self._find_numbers()
        self.report: Counter[str] = Counter()

    @classmethod
    def check(cls, *, family: str, answers: str, decode: str, **options: Any) -> None:
        """Raise a ValueError for what this encoding cannot be used with, before any work starts.

        Args:
            family: of the model, as in `ModelSettings.family`.
            answers: what the data set's answers are, "number" or "text".
            decode: as in `EvalSettings.decode`.
            options: of the encoding, by name.
        """
        cls.Options(**options)
        for what, got, accepted in (
            ("a model of family", family, cls.families),
            ("answers that are a", answers, cls.answers),
            ("eval.decode", decode, cls.decodings),
        ):
            if accepted is not None and got not in accepted:
                raise ValueError(
                    f"the encoding '{cls.name}' got {what} '{got}', expected {' or '.join(accepted)}"
                    f"{': ' + cls.because if cls.because else ''}"
                )

    @classmethod
    def is_plain(cls) -> bool:
        """Return whether models are used as they are published, neither tokens nor weights being added."""
        adding = ("model_class", "adapt", "_find_numbers")
        return all(getattr(cls, name) is getattr(Encoding, name) for name in adding)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, beside the source, that make this encoding again: options and what `fit` has learnt."""
        return asdict(self.options)

    def fit(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Check that the rows of each split can be written in this encoding, and learn from `rows["train"]`.

        Raises:
            ValueError: an answer that cannot be written; the text names split and row.
        """

    def model_class(self, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """Return the class of model for `config`: the library's language model, unless an encoding brings its own."""
        import transformers

        if config.is_encoder_decoder:
            return transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)]
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]

    def adapt(self, model: PreTrainedModel) -> None:
        """Add to a built or loaded model, in place, what is computed and not trained."""

    def _find_numbers(self) -> NumberVocabulary:
        return NumberVocabulary.from_tokenizer(self.tokenizer, digits_only=self.split_digits)

    def take_report(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        counted = {what: count for what, count in self.report.items() if count}
        self.report.clear()
        return counted

    @cached_property
    def prefix(self) -> list[int]:
        """What the tokenizer itself puts before a text: the id of Llama's `<s>`; nothing for T5, GPT-2 and Qwen."""
        marked = self.tokenizer.backend_tokenizer.encode("0")
        return marked.ids[: marked.special_tokens_mask.index(0)]

    @property
    def pad_values(self) -> dict[str, Any]:
        """What fills up each list that `encode` returns. Labels are filled by length, never by comparing with it."""
        return {"input_ids": self.tokenizer.pad_token_id}

    @property
    def target_pads(self) -> dict[str, Any]:
        """What fills up each list of `encode` that only the objective may see: `labels_<key>` in a training batch."""
        return {}

    def encode(self, text: str) -> dict[str, list]:
        """Return `{"input_ids": […]}`, and further lists of the same length where an encoding needs them.

        No start or end token is added.
        """
        return {"input_ids": self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids}

    def encode_answer(self, text: str) -> dict[str, list]:
        """Return what `encode` does, for an answer, where an encoding writes answers in a way of their own."""
        return self.encode(text)

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """Return the text of (T,) token ids, special tokens and ids beyond the tokenizer's vocabulary left out.

        `decode(encode(text)["input_ids"]) == text` holds for every text with a trained tokenizer, and with GPT-2's for
        every text that does not spell its end token. T5's turns characters into compatible ones (`²` into `2`) and
        white space into single blanks, and has no piece for ``< { } \\ ^ ` ~``, which are lost.
        """
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        return self.tokenizer.backend_tokenizer.decode(list(filter(_is_id, ids)), skip_special_tokens=True)

    def perfect_answer(self, target: Mapping[str, Sequence]) -> str:
        """Return the text written by a model that predicts every target of an answer, as `encode_answer` returns it.

        Where it differs from the encoded text, no model can be right by exact comparison.
        """
        return self.decode(target["input_ids"])

    def _join(self, pieces: Iterable[int | str]) -> str:
        """Return the text of token ids and of texts that stand between them; special tokens are left out."""
        backend = self.tokenizer.backend_tokenizer
        special = {index for index, token in backend.get_added_tokens_decoder().items() if token.special}
        tokens = (
            piece if isinstance(piece, str) else backend.id_to_token(piece)
            for piece in pieces
            if isinstance(piece, str) or (piece not in special and _is_id(piece))
        )
        return backend.decoder.decode([token for token in tokens if token is not None])

    def _add_tokens(self, tokens: Sequence[str]) -> list[int]:
        """Add tokens that no text is ever cut into, not even one that spells them, and return their ids."""
        self.tokenizer.split_special_tokens = True
        self.tokenizer.backend_tokenizer.encode_special_tokens = True
        self.tokenizer.add_tokens(list(tokens), special_tokens=True)
        return self.tokenizer.convert_tokens_to_ids(list(tokens))

    def resize(self, vocab_size: int) -> None:
        """Take the model's output width into account, which may exceed the tokenizer's length."""
        if vocab_size < len(self.tokenizer):
            raise ValueError(
                f"got an output layer of {vocab_size} columns for a tokenizer of {len(self.tokenizer)} tokens, "
                "expected at least as many: resize the model's embeddings"
            )
        self.numbers = self.numbers.resized(vocab_size)

    def logits_processors(self, decode: str) -> list[LogitsProcessor]:
        """Return what changes the scores of the next token under `decode` ("generate" or "expected")."""
        if decode not in DECODINGS:
            raise ValueError(f"got decode='{decode}', expected one of {', '.join(DECODINGS)}")
        return [ExpectedValueProcessor(self.numbers)] if decode == "expected" else []

    def generate(
        self,
        model: PreTrainedModel,
        prompts: Mapping[str, Tensor],
        *,
        max_new_tokens: int,
        num_beams: int = 1,
        decode: str = "generate",
    ) -> list[Generated]:
        """Answer a batch of prompts: greedily, or by beam search where the encoding has one; nothing is sampled.

        Args:
            model: encoder–decoder or decoder-only; put into evaluation mode meanwhile.
            prompts: what a layout's `prompt_batch` returns: input_ids and attention_mask (B, S), padded on the right
                for encoder–decoder and on the left for decoder-only models. Moved to the model's device.
            max_new_tokens: the limit of an answer's tokens, end token included. An answer without an end token within
                it counts as cut.
            decode: "expected" writes, at each number token, the one nearest to the expected value.
        """
        inputs = {key: value.to(model.device) for key, value in prompts.items()}
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                return self._answers(model, inputs, max_new_tokens=max_new_tokens, num_beams=num_beams, decode=decode)
        finally:
            model.train(training)

    def _answers(
        self, model: PreTrainedModel, inputs: dict[str, Tensor], *, max_new_tokens: int, num_beams: int, decode: str
    ) -> list[Generated]:
        """Do what `generate` says, by the library's `generate`; an encoding with a way of its own overrides it.

        Only what is given here steers the generation: settings that a hub model brings along (a penalty on repeated
        tokens, say, which would be absurd for digits) are set aside.
        """
        if hasattr(model, "get_base_model"):  # adapters are in its layers; the wrapper has a generation of its own
            model = model.get_base_model()
        processors = LogitsProcessorList(self.logits_processors(decode))
        prompt_length = inputs["input_ids"].shape[1]
        seq2seq = model.config.is_encoder_decoder
        limit = getattr(model.config, "max_position_embeddings", None)
        if not seq2seq and limit is not None and prompt_length + max_new_tokens > limit:
            raise ValueError(
                f"got prompts of {prompt_length} tokens and answers of up to {max_new_tokens}, expected at most "
                f"{limit} together, the positions of this model: shorten the questions, or take a longer model"
            )
        own = model.generation_config
        model.generation_config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            num_beams=num_beams,
            do_sample=False,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            bos_token_id=own.bos_token_id,
            decoder_start_token_id=own.decoder_start_token_id if seq2seq else None,
        )
        try:
            output = model.generate(**inputs, logits_processor=processors)
        finally:
            model.generation_config = own
        # an encoder–decoder model's output begins with its start token, a decoder-only model's with the prompt
        return [self._answer(ids) for ids in output[:, 1 if seq2seq else prompt_length :].tolist()]

    def _answer(self, ids: list[int]) -> Generated:
        end = self.tokenizer.eos_token_id
        truncated = end not in ids
        ids = ids if truncated else ids[: ids.index(end)]
        return Generated(self.decode(ids), truncated, ids)

    def save(self, folder: str | Path) -> None:
        """Save the tokenizer, which `AutoTokenizer.from_pretrained` loads and which then cuts texts just the same."""
        self.tokenizer.save_pretrained(folder)


def _is_id(index: int) -> bool:
    """Return whether the Rust tokenizer can look `index` up; what fills up labels, −100, it cannot."""
    return 0 <= index < 2**32
