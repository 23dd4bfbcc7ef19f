"""How numbers enter and leave a model. One module per encoding; `build` finds an encoding by its name.

torch is loaded with the first class that is asked for: `ntl.encodings.options` can be read without it.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from ntl.text import expected_one_of

if TYPE_CHECKING:
    from ntl.encodings.base import Encoding, Generated
    from ntl.encodings.tokenizers import LoadedTokenizer, PretrainedTokenizer, TokenizerSource, TrainedBPE

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


def __getattr__(name: str) -> Any:
    """Load what `__all__` names, or the class of an encoding, such as `ntl.encodings.XVal`."""
    if name in __all__:
        for module in ("base", "tokenizers"):
            if (found := getattr(import_module(f"{__name__}.{module}"), name, None)) is not None:
                globals()[name] = found
                return found
    if name[:1].isupper():
        for encoding in available().values():
            if encoding.__name__ == name:
                return encoding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def available() -> dict[str, type[Encoding]]:
    """Return every encoding by name: the classes of this package's modules that state a `name` of their own."""
    from ntl.encodings.base import Encoding

    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
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
