"""Build a model as its settings say: the architecture, its weights, and the ids that its encoding gives it."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl.models.initialisation import initialise, seeded
from ntl.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from ntl.data import Row
    from ntl.encodings import Encoding, TokenizerSource

SEQ2SEQ = ("t5",)
FAMILIES = ("t5", "gpt2")


class NotAvailable(ValueError):
    """Weights or a tokenizer that are neither on the hub, nor in its cache, nor in a local folder."""


def source(settings: ModelSettings) -> str | None:
    """Where weights and tokenizer are read from: the local folder where one is given, else the hub id."""
    return settings.path or settings.hub


def check(settings: ModelSettings) -> None:
    """Raise a ValueError for settings that name no buildable model, before any work starts."""
    if settings.family not in FAMILIES:
        raise ValueError(f"model.family: got '{settings.family}', expected one of {', '.join(FAMILIES)}")
    for key, valid in {
        "init": ("scratch", "pretrained"),
        "tokenizer": ("bpe", "pretrained"),
        "loss_on": ("answer", "all"),
    }.items():
        if getattr(settings, key) not in valid:
            raise ValueError(f"model.{key}: got '{getattr(settings, key)}', expected one of {', '.join(valid)}")
    if "pretrained" in (settings.init, settings.tokenizer) and source(settings) is None:
        raise ValueError(
            f"model '{settings.name}' reads {'weights' if settings.init == 'pretrained' else 'a tokenizer'} "
            "but names no source: set model.hub=<id> or model.path=<folder>"
        )
    if settings.init == "pretrained" and settings.tokenizer != "pretrained":
        raise ValueError(
            f"model '{settings.name}': pretrained weights need their own tokenizer; "
            "set model.tokenizer=pretrained, or model.init=scratch"
        )
    if settings.path is not None and not Path(settings.path).is_dir():
        raise ValueError(f"model.path: '{settings.path}' is no folder; give one in the hub's layout (config.json, …)")
    if settings.tokenizer == "bpe" and settings.vocab_size < 258:
        raise ValueError(
            f"model.vocab_size: got {settings.vocab_size}, expected at least 258: bytes and specials"
        )
    tokens = settings.question_tokens
    if tokens is not None and tokens < 1:
        raise ValueError(f"model.question_tokens: got {tokens}, expected an integer of at least 1, or null for all")
    if settings.init == "scratch":
        _check_architecture(settings.family, json.dumps(settings.architecture, sort_keys=True))


@cache
def _check_architecture(family: str, architecture: str) -> None:
    """Build the model without its weights: the library takes any key, and says late what does not fit."""
    import torch
    import transformers

    options = json.loads(architecture)
    known = vars(_config_class(family)()) | _config_class(family).attribute_map
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(key, known) or sorted(known)
            raise ValueError(f"model.architecture: unknown key '{key}'; nearest: {', '.join(near)}")
    auto = getattr(transformers, "AutoModelForSeq2SeqLM" if family in SEQ2SEQ else "AutoModelForCausalLM")
    try:
        with torch.device("meta"):
            auto.from_config(_config_class(family)(**options))
    except Exception as error:  # the library raises all kinds
        raise ValueError(f"model.architecture: no {family} model can be built of {options} ({error})") from error


def _config_class(family: str) -> type[PreTrainedConfig]:
    import transformers

    return {"t5": transformers.T5Config, "gpt2": transformers.GPT2Config}[family]


def find(settings: ModelSettings) -> None:
    """Raise NotAvailable if what is to be read from the hub is neither there nor in the local cache."""
    if "pretrained" in (settings.init, settings.tokenizer) and settings.path is None:
        _find(settings.name, settings.hub, settings.revision)


@cache
def _find(name: str, hub: str, revision: str | None) -> None:
    from transformers.utils import cached_file

    try:
        cached_file(hub, "config.json", revision=revision)
    except (OSError, ValueError) as error:
        raise _not_available(name, hub, error) from error


def _not_available(name: str, where: str | None, error: Exception) -> NotAvailable:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return NotAvailable(
        f"model '{name}' could not be read from '{where}' ({first}); give a local folder in the hub's layout by "
        "model.path=<folder>, or train the same size from scratch by model.init=scratch model.tokenizer=bpe"
    )


def tokenizer_source(settings: ModelSettings, rows: Sequence[Row]) -> TokenizerSource:
    """The tokenizer that a model's encoding starts from: its own, or one trained on the training rows."""
    from ntl.encodings import PretrainedTokenizer, TrainedBPE

    if settings.tokenizer == "pretrained":
        return PretrainedTokenizer(source(settings), settings.revision)
    return TrainedBPE((row[part] for row in rows for part in ("question", "answer")), settings.vocab_size)


def build(settings: ModelSettings, encoding: Encoding, seed: int) -> PreTrainedModel:
    """Build the model that `settings` name, for the tokens of `encoding`.

    Args:
        settings: see `ntl.settings.ModelSettings`.
        encoding: gives the number of tokens and the ids of padding, end and decoder start.
        seed: the run's seed; weights drawn from scratch depend on it and on each parameter's name.

    Raises:
        NotAvailable: weights that cannot be had; the text says where they were sought and what to do.
    """
    check(settings)
    if settings.init == "scratch":
        config = scratch_config(settings, encoding)
        model = encoding.model_class(config)(config)
        initialise(model, seed, encoding.tokenizer.get_vocab())
    else:
        with seeded(seed, "added"):  # what the published weights lack: a head, rows of new tokens
            model = _read(settings, encoding)
    _use_token_ids(model, encoding)
    encoding.adapt(model)
    encoding.resize(model.config.vocab_size)
    return model


def _read(settings: ModelSettings, encoding: Encoding) -> PreTrainedModel:
    """Read published weights and make room for the encoding's tokens."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(source(settings), revision=settings.revision)
        model = encoding.model_class(config).from_pretrained(
            source(settings), revision=settings.revision, dtype="float32"
        )
    except (OSError, ValueError) as error:
        raise _not_available(settings.name, source(settings), error) from error
    tokens = len(encoding.tokenizer)
    if tokens > model.get_input_embeddings().weight.shape[0]:
        # Past a multiple of 64, as tensor cores like it and as the published runs did.
        model.resize_token_embeddings(tokens, pad_to_multiple_of=64)
    return model


def scratch_config(settings: ModelSettings, encoding: Encoding | None) -> PreTrainedConfig:
    """The transformers configuration of a model from scratch; without an encoding, at its published vocabulary."""
    import transformers

    options: dict[str, Any] = dict(settings.architecture)
    if encoding is not None:
        options["vocab_size"] = max(len(encoding.tokenizer), options.get("vocab_size", 0))
    if settings.family == "t5":
        return transformers.T5Config(decoder_start_token_id=0, **options)
    return transformers.GPT2Config(**options)


def _use_token_ids(model: PreTrainedModel, encoding: Encoding) -> None:
    """Tell the model and its generation which ids pad, end and start a text."""
    tokenizer = encoding.tokenizer
    configs = (model.config, getattr(model, "generation_config", None))
    for config in filter(None, configs):  # a model that predicts no tokens has nothing to generate with
        config.pad_token_id = tokenizer.pad_token_id
        config.eos_token_id = tokenizer.eos_token_id
        if model.config.is_encoder_decoder:
            config.decoder_start_token_id = tokenizer.pad_token_id
        else:
            config.bos_token_id = tokenizer.eos_token_id


def describe(model: PreTrainedModel) -> dict[str, int]:
    """Sizes for the record: parameters (tied ones once) and columns of the logits."""
    return {"parameters": model.num_parameters(), "vocabulary": model.config.vocab_size}


def fingerprint(settings: ModelSettings) -> str | None:
    """What identifies weights and tokenizer that are read and not made: a hash of a local folder's files, else the
    hub id with its revision; None where both are made from scratch."""
    if "pretrained" not in (settings.init, settings.tokenizer):
        return None
    if settings.path is None:
        return f"{settings.hub}@{settings.revision or 'main'}"
    weights = (".safetensors", ".bin") if settings.init == "pretrained" else ()
    names = (".json", ".model", ".txt", *weights)
    digest = hashlib.sha256()
    for path in sorted(p for p in Path(settings.path).iterdir() if p.suffix in names):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
