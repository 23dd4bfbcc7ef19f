"""Numbers that are regressed: how they are scaled, and how they become digits."""

import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl.encodings.values import Scale

finite = st.floats(-1e12, 1e12)


@pytest.mark.parametrize(
    ("number", "options", "text"),
    [
        (12345.678, {}, "12345.68"),  # seven significant digits
        (33050176857048.0, {}, "33050180000000"),  # no exponent
        (0.000012345678, {}, "0.00001234568"),
        (-0.5, {}, "-0.5"),
        (2.0, {}, "2"),
        (100.0, {}, "100"),
        (0.0, {}, "0"),
        (-1e-9, {"decimals": 3}, "0"),  # no sign of zero
        (2.5, {"decimals": 0}, "2"),  # half to even
        (3.5, {"decimals": 0}, "4"),
        (2.4449999, {"decimals": 2}, "2.44"),  # rounded once, not by way of 2.445
        (0.1 + 0.2, {}, "0.3"),
        (123.0, {"significant": 2}, "120"),
        (math.nan, {}, ""),
    ],
)
def test_how_a_value_becomes_digits(number, options, text):
    assert Scale(**options).write(number) == text


@settings(deadline=None)
@given(finite)
def test_digits_are_the_nearest_to_the_value(number):
    text = Scale().write(number)
    assert "e" not in text.lower()
    last = 10.0 ** (math.floor(math.log10(abs(number))) - 6) if number else 0.0
    assert abs(float(text) - number) <= 0.5000001 * last


@settings(deadline=None)
@given(finite, st.sampled_from([None, 1.0, 2.2]))
def test_restoring_undoes_standardising(number, unit):
    scale = Scale(unit=unit).fitted([Decimal(-3), Decimal("7.25"), Decimal(1000)])
    assert math.isclose(scale.restore(scale.standardise(number)), number, rel_tol=1e-9, abs_tol=1e-9)


def test_fitting():
    scale = Scale().fitted([Decimal(1), Decimal("2.50"), Decimal(6)])
    assert (scale.mean, scale.decimals) == (pytest.approx(9.5 / 3), 2)
    targets = [scale.standardise(x) for x in (1, 2.5, 6)]
    assert sum(targets) == pytest.approx(0.0, abs=1e-12)
    assert sum(t * t for t in targets) / 3 == pytest.approx(1.0)
    assert Scale(decimals=1).fitted([Decimal("0.25")]).decimals == 1
    constant = Scale().fitted([Decimal(5)] * 3)
    assert constant.restore(constant.standardise(5.0)) == 5.0
    raw = Scale(unit=1.0).fitted([Decimal(5)], standardise=False)
    assert raw.standardise(-5.0) == pytest.approx(-math.log(6))
    assert Scale().fitted([]) == Scale()


def test_what_no_data_set_holds_is_cut():
    assert Scale(unit=1.0).restore(1e6) == pytest.approx(1e30)
    assert Scale().restore(-1e35) == -1e30


@pytest.mark.parametrize("options", [{"significant": 0}, {"significant": 2.5}, {"decimals": -1}])
def test_bad_options(options):
    with pytest.raises(ValueError, match="expected an integer"):
        Scale(**options)
