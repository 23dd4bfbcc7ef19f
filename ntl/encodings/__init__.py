"""How numbers enter and leave a model. One module per encoding; `build` finds an encoding by its name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from ntl.encodings.base import Encoding, Generated
from ntl.encodings.tokenizers import LoadedTokenizer, PretrainedTokenizer, TokenizerSource, TrainedBPE
from ntl.text import expected_one_of

__all__ = [
    "Encoding",
    "Generated",
    "LoadedTokenizer",
    "PretrainedTokenizer",
    "TokenizerSource",
    "TrainedBPE",
    "available",
    "build",
]


def available() -> dict[str, type[Encoding]]:
    """Return every encoding by name: the classes of this package's modules that state a `name` of their own."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    candidates = (value for module in modules for value in vars(module).values())
    classes = {c for c in candidates if isinstance(c, type) and issubclass(c, Encoding) and vars(c).get("name")}
    return {cls.name: cls for cls in sorted(classes, key=lambda cls: cls.name)}


def build(name: str, source: TokenizerSource, **options: Any) -> Encoding:
    """Build the encoding called `name` on the tokenizer that `source` loads.

    Args:
        options: further arguments of the encoding's class.

    Raises:
        ValueError: there is no such encoding, or the tokenizer does not suit it.
    """
    encodings = available()
    if name not in encodings:
        raise ValueError(f"got encoding '{name}', {expected_one_of(name, encodings)}")
    return encodings[name](source, **options)
