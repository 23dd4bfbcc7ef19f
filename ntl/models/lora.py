"""Low-rank adapters (LoRA): small matrices that are trained beside a model's frozen weights, by way of `peft`.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2022).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ntl import options
from ntl.models.initialisation import seeded
from ntl.settings import LoraSettings

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel

    from ntl.encodings import Encoding


def check(settings: LoraSettings, encoding: type[Encoding] | None = None) -> None:
    """Raise a ValueError for adapters that cannot be made (for `encoding`), before any work starts."""
    if encoding is not None and not (encoding.is_plain() or encoding.heads):
        raise ValueError(
            f"model.lora: got the encoding '{encoding.name}', which adds tokens to a model, expected one that does "
            "not (digits, subword, scalar): of the model's own weights none is trained"
        )


def check_options(settings: LoraSettings) -> None:
    """Raise a ValueError for options that no adapters can have, whether or not there are to be any."""
    options.check(settings, "model.lora")
    targets = settings.targets
    named = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    if not targets or not (named or isinstance(targets, str)):
        raise ValueError(
            f"model.lora.targets: got {targets!r}, expected names of layers such as [q_proj, v_proj], a regular "
            "expression of whole names, or all-linear"
        )


def check_targets(config: PreTrainedConfig, settings: LoraSettings) -> None:
    """Raise a ValueError for targets that a model of this configuration does not have, or whose weight is shared.

    The model is built without weights (on the meta device).
    """
    import torch
    import transformers

    family = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    with torch.device("meta"):
        adapted = _adapted(getattr(transformers, family).from_config(config), settings, seed=0)
    # T5's configuration class reads every model as tied, and keeps in this attribute what the file says. If the
    # weights are untied is known once they are loaded: see `add`.
    if getattr(config, "scale_decoder_outputs", True):
        _refuse_shared(adapted, settings)


def add(model: PreTrainedModel, settings: LoraSettings, seed: int, heads: Sequence[str] = ()) -> PeftModel:
    """Return `model` frozen, with adapters that are drawn from `seed` and change nothing before they are trained.

    Args:
        heads: layers of the model that are trained whole, such as a number head, and get no adapter.

    Raises:
        ValueError: the model does not have the targets, or a target shares its weight with another layer.
    """
    adapted = _adapted(model, settings, seed, heads)
    _refuse_shared(adapted, settings)
    return adapted


def _adapted(model: PreTrainedModel, settings: LoraSettings, seed: int, heads: Sequence[str] = ()) -> PeftModel:
    from peft import LoraConfig, TaskType, get_peft_model

    writes = TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.targets,
        modules_to_save=list(heads) or None,
        exclude_modules=list(heads) or None,
        task_type=None if heads else writes,  # a model with a head of its own takes what that head's forward takes
    )
    try:
        with seeded(seed, "lora"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fan_in_fan_out")  # of GPT-2's layers, which peft adjusts itself
            warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")  # `_refuse_shared`
            warnings.filterwarnings("ignore", category=FutureWarning)
            return get_peft_model(model, config)
    except ValueError as error:
        layers = sorted({name.rpartition(".")[2] for name, part in model.named_modules() if hasattr(part, "weight")})
        raise ValueError(
            f"model.lora.targets: got {settings.targets!r}, expected layers of this model ({', '.join(layers)})"
        ) from error


def _refuse_shared(model: PeftModel, settings: LoraSettings) -> None:
    """Raise a ValueError if an adapter is on a layer whose weight other layers share.

    Merging adds the adapter's product to the weight, and so to all these layers: another model would be saved than the
    one that was trained.
    """
    sharing: dict[int, set[str]] = {}
    for name, part in model.get_base_model().named_modules(remove_duplicate=False):
        if (weight := part._parameters.get("weight")) is not None:
            sharing.setdefault(id(weight), set()).add(name)
    for names in sharing.values():
        adapted = {name.removesuffix(".base_layer") for name in names if name.endswith(".base_layer")}
        others = sorted({name.removesuffix(".base_layer") for name in names} - {min(adapted, default="")})
        if adapted and others:
            raise ValueError(
                f"model.lora.targets: got {settings.targets!r}, which adapts {min(adapted)}, expected layers with a "
                f"weight of their own: it shares its weight with {', '.join(others)}, and merging the adapter would "
                "change them too; leave it out (all-linear does)"
            )


def merged(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """Return the plain model: its weights with the products of the adapters added, in place."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
