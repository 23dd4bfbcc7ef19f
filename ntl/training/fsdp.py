"""Training a model that is sharded over processes (PyTorch's FSDP 2, through accelerate)."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils.constants import FSDP_MODEL_NAME
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from ntl import distributed
from ntl.settings import TrainSettings

# Options of transformers' `fsdp_config`, and what they may be. Others contradict what is done here (checkpoints hold
# the whole model, and each process has loaded it), do not work (activation_checkpointing: T5's attention computes
# another number of tensors anew than it saved), or cannot be tried without GPUs (cpu_offload).
OPTIONS = {"version": (2,), "reshard_after_forward": (True, False)}


def is_sharded(settings: TrainSettings) -> bool:
    """Return whether each process holds a part of the model only."""
    return bool(settings.fsdp) and distributed.size() > 1


def shard_on(device: torch.device) -> None:
    """Let accelerate shard on `device`: PyTorch can on any, but accelerate does so on GPUs and the like alone."""
    if device.type == "cpu":
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def shard_tied(model: PreTrainedModel, plugin: FullyShardedDataParallelPlugin) -> None:
    """Shard the modules that share the input embedding's weight as one unit, which PyTorch requires of tied weights.

    accelerate, which shards everything else, would put T5's, which are in four modules, into several.
    """
    weight = model.get_input_embeddings().weight
    tied = [module for module in model.modules() if getattr(module, "weight", None) is weight]
    policy = plugin.mixed_precision_policy or MixedPrecisionPolicy()
    fully_shard(tied, reshard_after_forward=False, mp_policy=policy, offload_policy=plugin.cpu_offload)


def share_of_weights(model: torch.nn.Module) -> float:
    """Return the share of a model's weights that this process holds."""
    parameters = list(model.parameters())
    here = sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in parameters)
    return here / sum(p.numel() for p in parameters)


def load_whole(model: PreTrainedModel, checkpoint: Path) -> None:
    """Load the weights of a sharded model's checkpoint into a whole model."""
    path = checkpoint / f"{FSDP_MODEL_NAME}.bin"
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
