"""Options are declared once; a value that one cannot have is named, with what is expected."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from ntl.options import REQUIRED, OptionError, check, option, options_of, redeclared


@dataclass
class Settings:
    name: str = option(meaning="of the run")
    steps: int = option(10, "updates", at_least=1)
    rate: float = option(0.1, above=0, below=1)
    limit: int | None = option(None, at_least=1)
    kind: str = option("was", choices=("was", "mse", "mae"))
    workers: int = option(0, at_least=0, identity=False)
    plain: bool = False


@dataclass
class Other(Settings):
    steps: int = redeclared(Settings, "steps", 20)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 0}, "train.steps: got 0, expected an integer of at least 1"),
        ({"steps": True}, "train.steps: got True, expected an integer of at least 1"),
        ({"steps": 1.5}, "train.steps: got 1.5, expected an integer of at least 1"),
        ({"rate": float("nan")}, "train.rate: got nan, expected a finite number above 0 and below 1"),
        ({"rate": 1}, "train.rate: got 1, expected a finite number above 0 and below 1"),
        ({"limit": 0}, "train.limit: got 0, expected an integer of at least 1 or null"),
        ({"kind": "wa"}, "train.kind: got 'wa', expected one of was, mse, mae; did you mean was?"),
        ({"plain": 1}, "train.plain: got 1, expected true or false"),
        ({"name": " "}, "train.name: got ' ', expected a text"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(wrong, said):
    with pytest.raises(OptionError, match=r"^train") as error:
        check(Settings(**{"name": "x"} | wrong), "train")
    assert str(error.value) == said


def test_valid_values_pass():
    check(Settings("x"))
    check(Settings("x", steps=1, rate=0.999, limit=3, kind="mae", plain=True))
    check(Other("x"))


def test_a_declaration_is_read_as_it_was_written():
    declared = options_of(Other)
    assert (declared["steps"].default, declared["steps"].at_least, declared["steps"].meaning) == (20, 1, "updates")
    assert declared["name"].default is REQUIRED
    assert [name for name, one in declared.items() if not one.identity] == ["workers"]


def test_declarations_load_no_torch():
    code = "import sys, ntl.settings, data_prep; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
