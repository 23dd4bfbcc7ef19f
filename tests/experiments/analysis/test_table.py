"""What a table declares."""

import dataclasses

import pytest

from experiments.ablation import MAIN
from experiments.analysis.frame import frame
from experiments.analysis.table import Comparison, Table


def test_a_table_that_names_an_unknown_arm_says_so(arms):
    table = dataclasses.replace(MAIN, comparisons=(Comparison("ntl_wsa@0.3", "ce", "a slip"),))
    with pytest.raises(ValueError, match=r"ntl_wsa@0\.3.*ablation\.yaml has the arms ce, "):
        frame(table, "ablation", arms)


def test_a_median_follows_its_mean_once():
    table = Table("A", ("test",), ("mae", "accuracy", "median_absolute_error"), "ce")
    assert table.shown_metrics() == ("mae", "median_absolute_error", "accuracy")
