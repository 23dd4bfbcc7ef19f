"""Suggestions for misspelt names, and numbers as plain decimals."""

from decimal import Decimal

import pytest

from ntl.text import did_you_mean, expected_one_of, nearest, plain_number, suggestion


def test_the_nearest_come_first_whatever_their_case():
    assert nearest("ablatoin", ["gsm8k", "ablation", "ablations"])[0] == "ablation"
    assert nearest("WAS", ["mse", "was"]) == ["was"]
    assert nearest("h20", ["H200", "A100"]) == ["H200"]
    assert nearest("xyz", ["was", "mse"]) == []


def test_all_are_named_where_none_is_near():
    assert suggestion("los", ["model", "loss"]) == "nearest: loss"
    assert suggestion("xyz", ["model", "loss"]) == "valid: loss, model"


def test_one_sentence_for_an_unknown_name():
    assert did_you_mean("key", "los", ["loss"]) == "unknown key 'los'; nearest: loss"
    assert did_you_mean("arm", "c", ["ce"], of="experiment 'a'") == "unknown arm 'c' of experiment 'a'; nearest: ce"


def test_short_lists_are_named_whole_and_in_their_order():
    assert expected_one_of("wass", ("was", "mse")) == "expected one of was, mse; did you mean was?"
    assert expected_one_of(3, ("was", "mse")) == "expected one of was, mse"


@pytest.mark.parametrize(
    ("value", "text"),
    [("1E+3", "1000"), ("1.50", "1.5"), ("-0.00", "0"), ("100", "100"), ("-2E-7", "-0.0000002"), ("10.0", "10")],
)
def test_plain_number(value, text):
    assert plain_number(Decimal(value)) == text
