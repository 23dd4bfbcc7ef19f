"""Initial weights that depend on the seed and on a parameter's own name, and on nothing else.

Libraries draw all weights from one stream of random numbers, so one more row of an embedding changes every weight
drawn after it. Arms of an experiment are paired by seed: what two models have in common must start out the same. Here
every module draws from a stream seeded by (seed, its name), and every row of a token embedding from one seeded by
(seed, the name, its token), so that models with different vocabularies share the rows of the tokens they share.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def stream_seed(seed: int, *names: str) -> int:
    """A 63-bit seed from a run's seed and names."""
    digest = hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@contextmanager
def seeded(seed: int, *names: str) -> Iterator[None]:
    """Draw from a stream of its own in this block, and leave the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, *names))
        yield


@torch.no_grad()
def initialise(model: nn.Module, seed: int, tokens: Mapping[str, int] | None = None) -> None:
    """Draw all weights of a transformers model anew, in place.

    Args:
        model: a `PreTrainedModel`; its own `_init_weights` says how each kind of module is drawn.
        seed: the run's seed.
        tokens: token → id. Rows of the input embedding (and of an untied output layer) are drawn by token; rows of
            ids that no token has are drawn by id.

    A language model and its body alone (GPT-2's `transformer.h.0` and `h.0`) draw the same weights. The global random
    state is left as it was.
    """
    body = f"{model.base_model_prefix}."
    with torch.random.fork_rng(devices=[]):
        # A composite module may draw its children's weights with a spread of its own (T5's attention does), and has
        # the last word, as in the library: so children come first.
        for name, module in reversed(list(model.named_modules())):
            torch.manual_seed(stream_seed(seed, name.removeprefix(body)))
            model._init_weights(module)
        if tokens is not None:
            config = model.config
            spread = getattr(config, "initializer_range", None) or config.initializer_factor
            seen: set[int] = set()
            for name, module in (("input", model.get_input_embeddings()), ("output", model.get_output_embeddings())):
                weight = getattr(module, "weight", None)
                if weight is None or weight.data_ptr() in seen:
                    continue
                seen.add(weight.data_ptr())
                _draw_rows(weight, spread, seed, name, tokens)


def _draw_rows(weight: torch.Tensor, spread: float, seed: int, name: str, tokens: Mapping[str, int]) -> None:
    """Redraw the rows of a (vocabulary × width) matrix token by token, with standard deviation `spread`."""
    names = {index: token for token, index in tokens.items()}
    for row in range(weight.shape[0]):
        torch.manual_seed(stream_seed(seed, name, names.get(row, f"<id {row}>")))
        weight[row] = torch.randn(weight.shape[1]) * spread


def fingerprints(model: nn.Module) -> dict[str, str]:
    """Hashes of the weights that are trained, by block of the model (`encoder.block.0`, `layers.3`) or else by name.

    Wrappers that hold the same layers (a body with another head, adapters) give them the same names, so that runs of
    different arms can be compared in what they share.
    """
    hashes: dict[str, Any] = {}
    body = getattr(model, "base_model_prefix", "")
    for name, weight in sorted(model.named_parameters()):
        if not weight.requires_grad:
            continue
        name = name.removeprefix("base_model.model.").removeprefix("model.").removeprefix(f"{body}.")
        block = match[0] if (match := re.match(r"\D*\.\d+(?=\.)", name)) else name
        raw = weight.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        hashes.setdefault(block, hashlib.sha256()).update(f"{name} {tuple(weight.shape)} ".encode() + raw.tobytes())
    return {block: found.hexdigest()[:16] for block, found in hashes.items()}
