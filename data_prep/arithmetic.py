"""The ablation's part of the mathematics data: a few arithmetic modules at chosen difficulties.

The paper takes `arithmetic__add_sub_multiple` with 33,333 training and 1,000 validation questions of each of the three
difficulties, and `arithmetic__add_sub_multiple_longer` for extrapolation. The defaults are what a model of a million
parameters can learn in minutes on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from data_prep.mathematics import Mathematics


@dataclass
class Arithmetic(Mathematics):
    """Options of `conf/dataset/arithmetic.yaml`: those of `mathematics`, with other defaults."""

    typical_tokens: ClassVar = (38, 4)  # of add_sub_multiple at all difficulties

    name: str = "arithmetic"
    modules: Sequence[str] = ("arithmetic__add_or_sub",)
    difficulties: Sequence[str] = ("easy",)
    interpolation: Sequence[str] | None = ("arithmetic__add_or_sub@easy",)
    extrapolation: Sequence[str] = ("arithmetic__add_or_sub@medium",)
    train_size: int | None = 100_000
    validation_size: int = 1000
    test_size: int | None = 1000
