"""Numbers that are regressed: how they are scaled, and how they become digits."""

import math
from decimal import Decimal

import numpy as np
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
    assert (scale.mean, scale.decimals) == (pytest.approx(9.5 / 3), None)
    targets = [scale.standardise(x) for x in (1, 2.5, 6)]
    assert sum(targets) == pytest.approx(0.0, abs=1e-12)
    assert sum(t * t for t in targets) / 3 == pytest.approx(1.0)
    constant = Scale().fitted([Decimal(5)] * 3)
    assert constant.restore(constant.standardise(5.0)) == 5.0
    assert Scale(unit=1.0).standardise(-5.0) == pytest.approx(-math.log(6))
    around_zero = Scale().fitted([Decimal(3), Decimal(4)], centre=False)
    assert (around_zero.mean, around_zero.std) == (0.0, pytest.approx(12.5**0.5))
    assert Scale().fitted([]) == Scale()


@pytest.mark.parametrize("unit", [None, 1.0])
@pytest.mark.parametrize("centre", [True, False])
def test_zero_can_be_written(unit, centre):
    """In single precision, and with what rounding leaves of a sum; the next number is not 0."""
    scale = Scale(unit=unit).fitted([Decimal(0), Decimal(3), Decimal("7.25"), Decimal(1000)], centre=centre)
    zero = np.float32(scale.standardise(0.0))
    assert scale.text(float(zero)) == "0"
    assert scale.text(float(np.nextafter(zero, np.float32(-1)))) == "0"
    assert scale.text(float(zero) + 1e-5) != "0"
    assert Scale(unit=unit).text(math.nan) == ""


@pytest.mark.parametrize("unit", [None, 1.0])
def test_what_is_written_has_the_error_of_the_output(unit):
    """Answers are whole numbers (jokes have scores of 0 to 11), predictions are not."""
    draw = np.random.default_rng(0)
    targets = draw.choice(12, size=2000, p=[0.4, 0.2, *[0.04] * 10])
    scale = Scale(unit=unit).fitted([Decimal(int(x)) for x in targets])
    outputs = draw.normal(scale.standardise(1.6), 0.3, size=2000).astype(np.float32)
    written = np.array([float(scale.text(float(z))) for z in outputs])
    raw = np.array([scale.restore(float(z)) for z in outputs])
    rmse = [np.sqrt(np.mean((numbers - targets) ** 2)) for numbers in (written, raw)]
    assert abs(rmse[0] - rmse[1]) < 1e-4
    assert np.allclose(written, raw, rtol=1e-6, atol=1e-6)


def test_what_no_data_set_holds_is_cut():
    assert Scale(unit=1.0).restore(1e6) == pytest.approx(1e30)
    assert Scale().restore(-1e35) == -1e30


@pytest.mark.parametrize("options", [{"significant": 0}, {"significant": 2.5}, {"decimals": -1}])
def test_bad_options(options):
    with pytest.raises(ValueError, match="expected an integer"):
        Scale(**options)
