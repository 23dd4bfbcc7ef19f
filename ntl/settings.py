"""What a run can be told, as plain dataclasses: the one place where these defaults stand.

The yaml files under `conf/` name these classes as `_target_` and state what a choice sets differently. Importing this
module loads neither torch nor transformers, so that a misspelt key is reported at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ntl.options import option

NO_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")  # schedules of transformers that take no warm-up
CUSTOM = "custom"  # the name of a model whose name is to be taken from its source


@dataclass
class LoraSettings:
    """Low-rank adapters (LoRA) that are trained in place of a model's own weights."""

    r: int = option(0, "rank of an adapter, such as 16; 0 makes none", at_least=0)
    alpha: float = option(32.0, "an adapter's product is scaled by alpha / r", above=0)
    dropout: float = option(0.0, "dropout of an adapter's input", at_least=0, below=1)
    targets: Any = option(
        "all-linear",
        "layers that get an adapter: a list of the ends of their names, as [q_proj, v_proj], or a regular expression "
        "of whole names, or all-linear for all linear layers but the output layer",
    )


@dataclass
class ModelSettings:
    """A model: where its weights and tokenizer come from, and its size when it is built from scratch."""

    name: str = option(meaning="names the runs; for model=custom also a hub id or a folder")
    family: str = option(
        meaning="any encoder–decoder or decoder-only model, as its config.json says, is auto",
        choices=("t5", "gpt2", "auto"),
    )
    init: str = option("scratch", "where weights come from", choices=("scratch", "pretrained"))
    hub: str | None = option(None, "id on the model hub")
    revision: str | None = option(None, "revision on the hub")
    path: str | None = option(None, "local folder in the hub's layout, instead of the hub", identity=False)
    tokenizer: str = option(
        "bpe", "bpe is trained on the training split; pretrained is the model's own", choices=("bpe", "pretrained")
    )
    vocab_size: int = option(512, "largest size of the trained tokenizer; 256 bytes and two specials", at_least=258)
    question_tokens: int | None = option(None, "longer questions are cut to this length, and counted", at_least=1)
    loss_on: str = option(
        "answer", "decoder-only models: answer only, or question and answer", choices=("answer", "all")
    )
    architecture: dict[str, Any] = option(meaning="arguments of the configuration class", factory=dict)
    lora: dict[str, Any] = option(meaning="options of LoraSettings", factory=lambda: asdict(LoraSettings()))

    @property
    def adapters(self) -> LoraSettings | None:
        """What is trained in place of all weights, if anything."""
        lora = LoraSettings(**self.lora)
        return None if lora.r == 0 else lora


def with_source(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model of family "auto" with its `hub` or `path` set, and a name fit for a file.

    A person gives the source as `model.name`, a folder or else a hub id: `Qwen/Qwen2.5-0.5B` becomes the name
    `Qwen2.5_0.5B` with `hub: Qwen/Qwen2.5-0.5B`. Other models are returned as they are.

    Raises:
        ValueError: the name looks like a folder, and there is none.
    """
    model = dict(model)
    if model["family"] != "auto":
        return model
    name = model["name"]
    if name != CUSTOM and model["hub"] is None and model["path"] is None:
        folder = Path(name).expanduser()
        if folder.is_dir():
            model["path"] = str(folder)
        elif folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise ValueError(
                f"model.name: got '{name}', which is no folder; give a folder in the hub's layout, or a hub id "
                "such as Qwen/Qwen2.5-0.5B"
            )
        else:
            model["hub"] = name
    source = model["path"] or model["hub"]
    if source is not None:
        shown = Path(source).expanduser().resolve().name if name in (CUSTOM, source) or "/" in name else name
        model["name"] = re.sub(r"[^A-Za-z0-9_.]+", "_", shown).strip("_.") or CUSTOM
    return model


def unused(model: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a model that cannot change a run, because of its other options, with the reason."""
    weights, tokenizer = (model.get(part) == "pretrained" for part in ("init", "tokenizer"))
    found = {}
    if weights:
        found["architecture"] = "the weights are pretrained"
    if tokenizer:
        found["vocab_size"] = "the tokenizer is pretrained"
    if not (weights or tokenizer) and model.get("family") != "auto":
        found |= dict.fromkeys(("hub", "revision"), "neither weights nor tokenizer are read")
    if model.get("family") == "t5":
        found["loss_on"] = "an encoder–decoder model has a loss on answers alone"
    if not (model.get("lora") or {}).get("r"):
        found["lora"] = "its rank r is 0"
    return found


@dataclass
class TrainSettings:
    """How a run is trained. The defaults suit the small models on one CPU core."""

    steps: int = option(1800, "optimizer updates", at_least=1)
    batch_size: int = option(64, "rows of one micro-batch", at_least=1)
    accumulate: int = option(1, "micro-batches per step", at_least=1)
    learning_rate: float = option(1e-3, "peak learning rate", above=0)
    warmup_steps: int = option(200, "steps of linear warm-up, of schedules that have one", at_least=0)
    schedule: str = option("cosine", "any scheduler name of transformers")
    schedule_options: dict[str, Any] = option(meaning="arguments of the scheduler", factory=dict)
    weight_decay: float = option(0.01, "weight decay of AdamW", at_least=0)
    max_grad_norm: float = option(1.0, "gradients are clipped at this norm; 0: not at all", at_least=0)
    precision: str = option("fp32", "precision of training", choices=("fp32", "bf16", "fp16"))
    eval_every: int = option(450, "steps between validations; the nearest divisor of steps is used", at_least=1)
    eval_examples: int | None = option(None, "validation questions while training; null: all", at_least=1)
    answer_examples: int = option(
        0,
        "validation questions that are answered at each validation, for curves of accuracy; 0: none",
        at_least=0,
        identity=False,
    )
    answer_groups: str | None = option(
        None,
        "field of these questions, such as digits or module: curves of each of its values as well; null: none",
        identity=False,
    )
    keep_best: bool = option(True, "end with the checkpoint of the lowest validation loss (see Objective.selection)")
    log_every: int = option(50, "steps between rows of the training log", at_least=1, identity=False)
    gradient_norms_every: int | None = option(
        None,
        "steps between measurements of |∇ λNTL| / |∇ CE|; null: as eval_every, 0: never",
        at_least=0,
        identity=False,
    )
    workers: int = option(0, "processes that load batches", at_least=0, identity=False)
    threads: int | None = option(None, "torch threads; null: torch's own choice", at_least=1, identity=False)
    device: str = option("auto", "where to train", choices=("auto", "cpu"), identity=False)
    loss_implementation: str = option(
        "auto",
        "how the loss is computed; the result is the same up to rounding. plain: by autograd; fused: in one pass over "
        "the logits; linear: from hidden states, never holding all logits; auto: linear where the logits are many",
        choices=("auto", "plain", "fused", "linear"),
        identity=False,
    )
    fsdp: dict[str, Any] = option(
        meaning="on several processes: fsdp_config of transformers' TrainingArguments; empty: no sharding",
        factory=dict,
        identity=False,
    )


def effective(train: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return the options of a training for which another value is used than the one given: that value, and why.

    Args:
        train: options by name, of the types that `TrainSettings` declares.
    """
    found: dict[str, tuple[Any, str]] = {}
    steps, every = train["steps"], train["eval_every"]
    if steps % every:
        divisors = {d for n in range(1, math.isqrt(steps) + 1) if steps % n == 0 for d in (n, steps // n)}
        nearest = min(divisors, key=lambda divisor: (abs(math.log(divisor / every)), divisor))
        found["eval_every"] = nearest, f"it divides train.steps={steps}, so that the last weights are validated too"
    if train["warmup_steps"] and train["schedule"] in NO_WARMUP:
        found["warmup_steps"] = 0, f"train.schedule={train['schedule']} has no warm-up"
    return found


@dataclass
class EvalSettings:
    """How a trained model is scored."""

    beams: int = option(1, "1 is greedy; the paper's runs use 4", at_least=1)
    batch_size: int = option(256, "questions that are answered at a time", at_least=1, identity=False)
    examples: int | None = option(None, "questions of each test split; null: all", at_least=1)
    decode: str = option("generate", "expected writes digit-wise expected values", choices=("generate", "expected"))
    answer_tokens: int | None = option(
        None, "limit of a generated answer; null: the longest reference answer and margin", at_least=1
    )
    margin: int = option(10, "tokens that an answer may be longer than the longest reference answer", at_least=0)
    limit_from: str = option("train", "splits whose reference answers set that limit", choices=("train", "all"))
    untrained: bool = option(True, "score the model before training as well")
