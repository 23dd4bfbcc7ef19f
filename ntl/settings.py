"""What a run can be told, as plain dataclasses: the one place where these defaults stand.

The yaml files under `conf/` name these classes as `_target_` and hold what a choice sets differently. Importing this
module loads neither torch nor transformers, so a misspelt key is answered at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

T = TypeVar("T")

NOT_IDENTITY = "cannot change a result"
# Annotates an option that cannot change what a run computes (a path, a source, a schedule of saving):
# such options are no part of a run's identity and stay out of its record.
NotIdentity = Annotated[T, NOT_IDENTITY]


CUSTOM = "custom"  # the name of a model whose name is to be taken from its source


@dataclass
class LoraSettings:
    """Low-rank adapters (LoRA) that are trained in place of a model's own weights."""

    r: int = 0  # rank of an adapter, such as 16; 0 makes none
    alpha: float = 32.0  # an adapter's product is scaled by alpha / r
    dropout: float = 0.0
    targets: Any = "all-linear"  # layers that get an adapter: a list of the ends of their names, as [q_proj, v_proj],
    # or a regular expression of whole names, or "all-linear" for all linear ones but the output layer


@dataclass
class ModelSettings:
    """A model: where its weights and tokenizer come from, and its size when it is built from scratch."""

    name: str
    family: str  # "t5", "gpt2", or "auto": any encoder-decoder or decoder-only model, as its own config.json says
    init: str = "scratch"  # "scratch" or "pretrained"
    hub: str | None = None  # id on the model hub
    revision: str | None = None
    path: NotIdentity[str | None] = None  # local folder in the hub's layout, taken instead of the hub
    tokenizer: str = "bpe"  # "bpe": trained on the training split; "pretrained": the model's own
    vocab_size: int = 512  # of the trained tokenizer, at most
    question_tokens: int | None = None  # of longer questions the rest is cut off, and they are counted
    loss_on: str = "answer"  # decoder-only models: "answer", or "all" for question and answer
    architecture: dict[str, Any] = field(default_factory=dict)  # arguments of the configuration class
    lora: dict[str, Any] = field(default_factory=lambda: asdict(LoraSettings()))  # options of LoraSettings

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


@dataclass
class TrainSettings:
    """How a run is trained. Steps count optimizer updates; the defaults suit the small models on one CPU core."""

    steps: int = 1800
    batch_size: int = 64
    accumulate: int = 1  # micro-batches per step; batch_size is the size of one micro-batch
    learning_rate: float = 1e-3
    warmup_steps: int = 200
    schedule: str = "cosine"  # any scheduler name of transformers
    schedule_options: dict[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    precision: str = "fp32"  # "fp32", "bf16" or "fp16"
    eval_every: int = 450  # steps between validations
    eval_examples: int | None = None  # validation questions used while training; None for all
    keep_best: bool = True  # end with the checkpoint of the lowest validation loss part named by the objective
    log_every: NotIdentity[int] = 50
    gradient_norms_every: NotIdentity[int | None] = None  # steps between measurements of |∇ λNTL| / |∇ CE|;
    # None: as eval_every, 0: never
    workers: NotIdentity[int] = 0
    threads: NotIdentity[int | None] = None  # torch threads; None leaves torch's own choice
    device: NotIdentity[str] = "auto"  # "auto" or "cpu"
    loss_implementation: NotIdentity[str] = "auto"  # how the loss is computed; results are the same but for rounding.
    # "plain": by autograd; "fused": in one pass over the logits; "linear": from hidden states, never holding all
    # logits; "auto": "linear" where the logits are many and it can be
    fsdp: NotIdentity[dict[str, Any]] = field(default_factory=dict)  # on several processes: `fsdp_config` of
    # transformers' TrainingArguments, to hold only a part of the model in each; empty: all of it


@dataclass
class EvalSettings:
    """How a trained model is scored."""

    beams: int = 1  # 1 is greedy; the paper's runs use 4
    batch_size: NotIdentity[int] = 256
    examples: int | None = None  # questions of each test split; None for all
    decode: str = "generate"  # "generate", or "expected" for digit-wise expected values
    margin: int = 10  # tokens that a generated answer may be longer than the longest training answer
    untrained: bool = True  # score the model before training as well
