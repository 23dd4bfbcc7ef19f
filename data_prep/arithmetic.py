"""The ablation's part of the mathematics data: a few arithmetic modules at chosen difficulties.

The paper takes `arithmetic__add_sub_multiple` with 33,333 training and 1,000 validation questions of each of the three
difficulties, and `arithmetic__add_sub_multiple_longer` for extrapolation. The defaults are what a model of a million
parameters can learn in minutes on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from data_prep.base import Dataset
from data_prep.mathematics import Mathematics
from ntl.options import redeclared


@dataclass
class Arithmetic(Mathematics):
    """The data set `arithmetic`: `mathematics` with other defaults."""

    typical_tokens: ClassVar = (38, 4)  # of add_sub_multiple at all difficulties

    name: str = redeclared(Dataset, "name", "arithmetic")
    modules: Sequence[str] = redeclared(Mathematics, "modules", ("arithmetic__add_or_sub",))
    difficulties: Sequence[str] = redeclared(Mathematics, "difficulties", ("easy",))
    # The official interpolation test of add_or_sub has a fixed entropy of 12, outside the easy range (4-8): it
    # interpolates only if all difficulties are trained on.
    interpolation: Sequence[str] | None = redeclared(Mathematics, "interpolation", ("arithmetic__add_or_sub@easy",))
    extrapolation: Sequence[str] = redeclared(Mathematics, "extrapolation", ("arithmetic__add_or_sub@medium",))
    train_size: int | None = redeclared(Mathematics, "train_size", 100_000)
    validation_size: int = redeclared(Mathematics, "validation_size", 1000)
    test_size: int | None = redeclared(Mathematics, "test_size", 4000)
