"""Build a model as its settings say: the architecture, its weights, and the ids that its encoding gives it."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl import hub, options
from ntl.files import file_sha256
from ntl.models import lora
from ntl.models.initialisation import initialise, seeded
from ntl.rows import Row
from ntl.settings import LoraSettings, ModelSettings
from ntl.text import did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from ntl.encodings import Encoding, TokenizerSource

SEQ2SEQ = ("t5",)


class NotAvailable(ValueError):
    """A model that is neither on the hub, nor in its cache, nor in a local folder; or that is none that writes text."""


def source(settings: ModelSettings) -> str | None:
    """Where weights and tokenizer are read from: the local folder where one is given, else the hub id."""
    return settings.path or settings.hub


def check(settings: ModelSettings, encoding: type[Encoding] | None = None) -> None:
    """Raise a ValueError for settings that name no buildable model (for `encoding`), before any work starts."""
    options.check(settings, "model")
    if settings.family == "auto" and source(settings) is None:
        raise ValueError(
            f"model '{settings.name}' names no source: set model.name=<hub id or folder>, as in "
            "model.name=Qwen/Qwen2.5-0.5B"
        )
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
    lora.check_options(LoraSettings(**settings.lora))
    if settings.adapters is not None:
        lora.check(settings.adapters, encoding)
        if settings.init != "pretrained":
            raise ValueError(
                f"model.lora: got adapters with model.init={settings.init}, expected pretrained weights for them to "
                "adapt: set model.init=pretrained, or model.lora.r=0"
            )
    if settings.family == "auto":
        if settings.path is not None:  # the hub's is read when the run starts
            _language_model(_published_config(settings), settings)
    else:  # with published weights too, which do without: the one key that is wrong may be the one that was meant
        _check_architecture(settings.family, json.dumps(settings.architecture, sort_keys=True))


@cache
def _check_architecture(family: str, architecture: str) -> None:
    """Build the model without its weights: the library takes any key, and says late what does not fit."""
    import torch
    import transformers

    arguments = json.loads(architecture)
    _check_keys(arguments, _config_class(family)())
    auto = getattr(transformers, "AutoModelForSeq2SeqLM" if family in SEQ2SEQ else "AutoModelForCausalLM")
    try:
        with torch.device("meta"):
            auto.from_config(_config_class(family)(**arguments))
    except Exception as error:  # the library raises all kinds
        raise ValueError(f"model.architecture: no {family} model can be built of {arguments} ({error})") from error


def _check_keys(options: Mapping[str, Any], config: PreTrainedConfig) -> None:
    known = vars(config) | config.attribute_map
    for key in options:
        if key not in known:
            raise ValueError(f"model.architecture: {did_you_mean('key', key, known)}")
        default, where = getattr(config, key, None), f"model.architecture.{key}: got {options[key]!r}, expected"
        if isinstance(default, bool) or options[key] is None:
            continue
        if isinstance(default, int) and default > 0 and not _is_whole(options[key], 1):
            raise ValueError(f"{where} an integer of at least 1")
        if isinstance(default, float) and not _is_real(options[key]):
            raise ValueError(f"{where} a finite number of at least 0")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _config_class(family: str) -> type[PreTrainedConfig]:
    import transformers

    return {"t5": transformers.T5Config, "gpt2": transformers.GPT2Config}[family]


def reads_hub(settings: ModelSettings) -> bool:
    """Whether weights, tokenizer or architecture are read from the hub."""
    reads = "pretrained" in (settings.init, settings.tokenizer) or settings.family == "auto"
    return reads and settings.path is None


def find(settings: ModelSettings) -> None:
    """Raise NotAvailable if what is to be read from the hub is neither there nor in the local cache."""
    if reads_hub(settings):
        config = _published_config(settings)
        if settings.init == "pretrained" or settings.family == "auto":
            _language_model(config, settings)


def model_type(settings: ModelSettings) -> str:
    """The type that transformers gives the model, such as "t5" or "qwen2".

    Raises:
        NotAvailable: it is to be read from the hub, and is neither there nor in the local cache.
    """
    return settings.family if settings.family != "auto" else _published_config(settings).model_type


def _not_available(settings: ModelSettings, error: Exception) -> NotAvailable:
    reason = hub.reason(error) if settings.path is None else (str(error).strip() or type(error).__name__).split("\n")[0]
    scratch = ", or train the same size from scratch by model.init=scratch model.tokenizer=bpe"
    return NotAvailable(
        f"model '{settings.name}' could not be read from '{source(settings)}' ({reason}); give a local folder in the "
        f"hub's layout by model.path=<folder>{'' if settings.family == 'auto' else scratch}"
    )


def tokenizer_source(settings: ModelSettings, rows: Sequence[Row]) -> TokenizerSource:
    """The tokenizer that a model's encoding starts from: its own, or one trained on the training rows."""
    from ntl.encodings import PretrainedTokenizer, TrainedBPE

    if settings.tokenizer == "pretrained":
        return PretrainedTokenizer(source(settings), settings.revision)
    return TrainedBPE((row[part] for row in rows for part in ("question", "answer")), settings.vocab_size)


def build(settings: ModelSettings, encoding: Encoding, seed: int) -> PreTrainedModel:
    """Build the model that `settings` name, for the tokens of `encoding`; with adapters in a `PeftModel`.

    Args:
        settings: see `ntl.settings.ModelSettings`.
        encoding: gives the number of tokens and the ids of padding, end and decoder start.
        seed: the run's seed; weights drawn from scratch depend on it and on each parameter's name.

    Raises:
        NotAvailable: weights that cannot be had; the text says where they were sought and what to do.
    """
    check(settings, type(encoding))
    if settings.init == "scratch":
        config = scratch_config(settings, encoding)
        model = encoding.model_class(config)(config)
        initialise(model, seed, encoding.tokenizer.get_vocab())
    else:
        with seeded(seed, "added"):  # what the published weights lack: a head, rows of new tokens
            model = _read(settings, encoding)
    _use_token_ids(model, encoding, published=settings.tokenizer == "pretrained")
    encoding.adapt(model)
    encoding.resize(model.config.vocab_size)
    return model if settings.adapters is None else lora.add(model, settings.adapters, seed)


def _published_config(settings: ModelSettings) -> PreTrainedConfig:
    """Read the config.json of what `settings` name, `architecture` put over it where weights are drawn anew."""
    import transformers

    try:
        if settings.path is None:
            config = copy.deepcopy(_hub_config(settings.hub, settings.revision))
        else:
            config = transformers.AutoConfig.from_pretrained(settings.path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _not_available(settings, error) from error
    if settings.family == "auto" and settings.init == "scratch":
        _check_keys(settings.architecture, config)
        for key, value in settings.architecture.items():
            setattr(config, key, value)
    return config


@cache
def _hub_config(identity: str, revision: str | None) -> PreTrainedConfig:
    import transformers

    return transformers.AutoConfig.from_pretrained(identity, **hub.options(revision))


def _language_model(config: PreTrainedConfig, settings: ModelSettings) -> None:
    """Raise NotAvailable unless `config` is of a causal or a sequence-to-sequence language model."""
    import transformers

    if config.is_encoder_decoder:
        written, masked = transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, False
    else:  # BERT and its kin have a causal class, but have not learnt to write
        written = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if type(config) not in written or masked:
        raise NotAvailable(
            f"model '{settings.name}': '{source(settings)}' holds a model of type '{config.model_type}', expected one "
            "that writes text: a causal language model (Llama, Qwen, …) or an encoder–decoder model (T5, BART, …)"
        )
    if settings.family not in ("auto", config.model_type):
        raise NotAvailable(
            f"model.family: got '{settings.family}' for '{source(settings)}', which holds a model of type "
            f"'{config.model_type}'; use model=custom model.name={source(settings)}"
        )


def _read(settings: ModelSettings, encoding: Encoding) -> PreTrainedModel:
    """Read published weights and make room for the encoding's tokens."""
    from safetensors import SafetensorError

    config = _published_config(settings)
    _language_model(config, settings)
    try:
        options = hub.options(settings.revision) if settings.path is None else {"trust_remote_code": False}
        options |= {"config": config, "dtype": "float32"}
        model = encoding.model_class(config).from_pretrained(source(settings), **options)
    except pickle.UnpicklingError as error:  # torch's own text says how to run what a pickle holds: not here
        damaged = ValueError("its weights are damaged, or a pickle of other things than tensors, which is never run")
        raise _not_available(settings, damaged) from error
    except (OSError, ValueError, SafetensorError) as error:
        raise _not_available(settings, error) from error
    tokens = len(encoding.tokenizer)
    if tokens > model.get_input_embeddings().weight.shape[0]:
        # Past a multiple of 64, as tensor cores like it and as the published runs did.
        model.resize_token_embeddings(tokens, pad_to_multiple_of=64)
    return model


def scratch_config(settings: ModelSettings, encoding: Encoding | None) -> PreTrainedConfig:
    """The transformers configuration of a model from scratch; without an encoding, at its published vocabulary."""
    import transformers

    if settings.family == "auto":
        config = _published_config(settings)
        _language_model(config, settings)
        if encoding is not None:
            own = config.vocab_size if settings.tokenizer == "pretrained" else 0
            config.vocab_size = max(len(encoding.tokenizer), own)
        return config
    options: dict[str, Any] = dict(settings.architecture)
    if encoding is not None:
        options["vocab_size"] = max(len(encoding.tokenizer), options.get("vocab_size", 0))
    if settings.family == "t5":
        return transformers.T5Config(decoder_start_token_id=0, **options)
    return transformers.GPT2Config(**options)


def _use_token_ids(model: PreTrainedModel, encoding: Encoding, published: bool) -> None:
    """Tell the model and its generation which ids pad, end and start a text.

    With a published tokenizer a decoder starts as the published model's does.
    """
    tokenizer = encoding.tokenizer
    start = getattr(model.config, "decoder_start_token_id", None) if published else None
    start = tokenizer.pad_token_id if start is None else start
    configs = (model.config, getattr(model, "generation_config", None))
    for config in filter(None, configs):  # a model that predicts no tokens has nothing to generate with
        config.pad_token_id = tokenizer.pad_token_id
        config.eos_token_id = tokenizer.eos_token_id
        if model.config.is_encoder_decoder:
            config.decoder_start_token_id = encoding.decoder_start_id = start
        else:
            bos = tokenizer.bos_token_id
            config.bos_token_id = tokenizer.eos_token_id if bos is None else bos


def describe(model: PreTrainedModel, settings: ModelSettings) -> dict[str, Any]:
    """Sizes for the record: parameters (tied ones once), how many of them are trained where not all are, and columns of
    the logits; and the commit of the hub's repository that was read."""
    described: dict[str, Any] = {"parameters": model.num_parameters(), "vocabulary": model.config.vocab_size}
    trained = model.num_parameters(only_trainable=True)
    if trained != described["parameters"]:
        described["trained"] = trained
    if reads_hub(settings):
        described["commit"] = hub.commit(settings.hub, settings.revision)
    return described


def fingerprint(settings: ModelSettings) -> str | None:
    """What identifies weights and tokenizer that are read and not made: a hash of a local folder's files, else the
    hub id with its revision; None where both are made from scratch."""
    if "pretrained" not in (settings.init, settings.tokenizer) and settings.family != "auto":
        return None
    if settings.path is None:
        return f"{settings.hub}@{settings.revision or 'main'}"
    weights = (".safetensors", ".bin") if settings.init == "pretrained" else ()
    names = (".json", ".model", ".txt", *weights)
    digest = hashlib.sha256()
    for path in sorted(p for p in Path(settings.path).iterdir() if p.suffix in names):
        digest.update(path.name.encode() + b"\0")
        digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()
