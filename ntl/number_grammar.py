r"""Numbers in text: the one grammar for references, model output and custom data. `docs/numbers.md` lists spellings.

A text is scanned from left to right for candidates: everything that begins like a number, with the signs, separators,
exponents and fraction bars that belong to it. The last candidate decides: its value is the number of the text, and a
malformed one (`1,2,3`, `24.12.2024`, `2^3`) means that the text has no number. Inside `\boxed{…}`, nothing else counts.

Standard library only: data preparation and the checks before a run do not load torch.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache

LONGEST = 10_000  # places of a number: beyond it, 1e999999999 would be written out as a billion digits


@dataclass(frozen=True)
class Style:
    """How numbers are written where a spelling is ambiguous: `1,234` is 1234 in English and 1.234 in German.

    Attributes:
        decimal: the decimal mark, "." or ",".
        thousands: the characters that may separate groups of three digits, of ",", "." and a blank.
    """

    decimal: str = "."
    thousands: str = ","


ENGLISH = Style()  # references and model output
PLAIN = Style(thousands="")  # number columns, unless the data set declares otherwise

_QUOTIENT, _EXACT = Context(prec=50), Context(prec=LONGEST)
_CURRENCY = "$€£¥₹"
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_VULGAR = "¼-¾⅐-⅞↉"
# One character for one character, so that positions stay. The no-break blank stands for all blanks that only
# typography puts between digits, and the apostrophe for separators of thousands that mean nothing else.
_CHARACTERS = {
    **dict.fromkeys("\u2212\u2010\u2011\u2013\ufe63\uff0d", "-"),
    **dict.fromkeys("\uff0b\ufe62", "+"),
    **dict.fromkeys("\u2009\u2007\u202f", "\u00a0"),
    **dict.fromkeys("\u2019\u066c", "'"),
    "\uff0e": ".",
    "\uff0c": ",",
    "\u2044": "/",
}
_SEPARATORS = r"['_\u00a0]|\{,\}|\\,"  # of thousands, whatever the style

# The published evaluation takes the last of these: any sign, blanks after it, digits, a fraction.
_PAPER = re.compile(r"[+-]?\s*\d+(?:\.\d+)?")
# A sign directly after a letter, a digit or a closing bracket is an operator or a hyphen, and a dot directly after a
# letter, a digit or a dot is punctuation: `3-4` ends in 4, `1.2.3` in 3, `-.5` is minus one half.
_SIGNED = re.compile(r"(?:(?<![\w)\]])[+-])?(?:[0-9]+(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)")


def parse_number(text: str, style: Style = ENGLISH) -> Decimal | None:
    """Return the number of a text, exactly: the value of its last candidate; None where there is none.

    A fraction without a finite decimal form (`1/3`) is rounded to 50 significant digits.
    """
    if style.decimal == "." and len(text) < LONGEST and _SIGNED.fullmatch(text):  # most are that plain
        return Decimal(text)
    last = _last(text, style)
    return None if last is None else _value(last, style)


def is_number(text: str, style: Style = ENGLISH) -> bool:
    """Return whether `text` is one number and nothing else but white space, a currency sign and a full stop."""
    return _alone(text, style) is not None


def malformed(text: str, style: Style = ENGLISH) -> str | None:
    """Return the last candidate of a text if it is no number in this style, such as `3,14` in English; else None."""
    last = _last(text, style)
    return last.group() if last is not None and _value(last, style) is None else None


def plain_answer(text: str, style: Style = PLAIN) -> str | None:
    """Return an answer with its numbers written plainly: `ENGLISH` then reads it as `style` reads `text`.

    An answer that is one number becomes that number: `1.234,50 €` is `1234.50`, `1/4` is `0.25`, and a plain decimal
    stays as it is. In any other text, the numbers are rewritten as `plain_numbers` does.

    Returns:
        None for a number without a finite decimal form, such as `1/3`.
    """
    found = _alone(text, style)
    if found is None:
        return plain_numbers(text, style)
    number, fraction = _value(found, style), _fraction(found, style)
    if _SIGNED.fullmatch(text.strip()) and Decimal(text.strip()) == number:
        return text
    return None if fraction is not None and abs(Fraction(number)) != fraction else f"{number:f}"


def plain_numbers(text: str, style: Style = ENGLISH) -> str:
    """Return a text with the digits, signs, separators and decimal marks of its numbers in plain ASCII.

    `1,234` becomes `1234`, and `.5` becomes `0.5`; fractions and exponents stay, and so does what is malformed.
    """
    changed, end = [], 0
    written = _ascii(text, style)
    for found in _candidates(written, style):
        parts = re.sub("[^/:]+", lambda run: _rewritten(run.group(), style), found["parts"] or "")
        start, stop = found.span("parts") if found["parts"] else (found.end(), found.end())
        changed += [text[end : found.start()], written[found.start() : start], parts, written[stop : found.end()]]
        end = found.end()
    return "".join([*changed, text[end:]])


def paper_number(text: str) -> Decimal | None:
    """Return the number of a text as the paper's evaluation reads it: the last digits with a fraction and a sign.

    `1,234` is 234, `1e5` is 5, `.5` is 5, and a sign counts wherever it stands: `3-4` and `3 - 4` are −4.
    """
    match = None
    for match in _PAPER.finditer(text):  # noqa: B007 (the last one is wanted)
        pass
    return None if match is None else Decimal("".join(match.group().split()))


def numbers_in(text: str) -> list[re.Match[str]]:
    """Return the optionally signed ASCII decimals of a text from left to right, as an encoding cuts them out.

    No separators, exponents or fractions: of `1,000` these are 1 and 000. Data sets write their numbers plainly.
    """
    return list(_SIGNED.finditer(text))


def _ascii(text: str, style: Style) -> str:
    """Return `text` with digits of all scripts, signs and separators in ASCII, of the same length."""
    if text.isascii():
        return text
    return "".join(
        str(unicodedata.decimal(char))
        if char.isdecimal()
        else style.decimal
        if char == "\u066b"
        else _CHARACTERS.get(char, char)
        for char in text
    )


def _boxed(text: str) -> str:
    r"""Return what stands in the last `\boxed{…}` of a text, or the text if it has none."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return text
    start += len(r"\boxed{")
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[start:end]
    return text[start:]  # cut off by the limit of an answer


def _last(text: str, style: Style) -> re.Match[str] | None:
    """Return the candidate that decides, if there is one."""
    last = None
    for last in _candidates(_boxed(_ascii(text, style)), style):  # noqa: B007 (the last one is wanted)
        pass
    return last


def _candidates(text: str, style: Style) -> Iterator[re.Match[str]]:
    """Yield the candidates of an ASCII-written text; an exponent of a unit or variable (`m^2`) is none."""
    return (found for found in _candidate(style).finditer(text) if found["power"] is None)


@cache
def _candidate(style: Style) -> re.Pattern[str]:
    separators = rf"[.,]|{_SEPARATORS}" + ("|[ ](?=[0-9]{3}(?![0-9]|-[A-Za-z]))" if " " in style.thousands else "")
    run = rf"(?:(?<![0-9])[0-9]+|(?:(?<![\w.,])|(?<=[0-9]x))[.,][0-9]+)(?:(?:{separators})[0-9]+)*"
    exponent = r"[+-]?[0-9]{1,9}"
    return re.compile(
        rf"""
        (?P<power>\^\{{?[+-]?[0-9.]*[0-9]\}}?)
        | (?:(?P<sign>(?<![\w)\]}}%])(?<![0-9][{_CURRENCY}])[+-])(?:\\?[{_CURRENCY}]\ ?)?)?
        (?:
            \\[dt]?frac\{{(?P<top>[0-9]+)\}}\{{(?P<bottom>[0-9]+)\}}
            | (?:(?<![0-9.,/:])(?P<before>[0-9]{{1,3}})\ ?)?(?P<vulgar>[{_VULGAR}])
            | (?<![0-9.,/:])(?P<whole>[0-9]{{1,3}})\ (?P<over>[1-9][0-9]?)/(?P<under>[0-9]+)(?![0-9/:]|[.,][0-9])
            | (?P<parts>{run}(?:[/:]{run})*)
            (?:
                [eE](?P<e>{exponent})(?![\w])
                | \ ?(?:[×x*·⋅]|\\times|\\cdot)\ ?10(?:\^|\*\*)\{{?(?P<ten>{exponent})\}}?
                | \ ?(?:[×x*·⋅]|\\times|\\cdot)\ ?10(?P<super_ten>[⁰¹²³⁴-⁹⁺⁻]+)
                | (?:\^|\*\*)\{{?(?P<raised>[+-]?[0-9]+)\}}?
                | (?P<super>[⁰¹²³⁴-⁹⁺⁻]+)
            )?
        )
        """,
        re.VERBOSE,
    )


@cache
def _numeral(style: Style) -> re.Pattern[str]:
    decimal = re.escape(style.decimal)
    separator = _SEPARATORS + (f"|[{style.thousands}]" if style.thousands else "")
    grouped = rf"[1-9][0-9]{{0,2}}(?P<separator>{separator})[0-9]{{3}}(?:(?P=separator)[0-9]{{3}})*(?![0-9])"
    return re.compile(rf"(?:{grouped}|[0-9]+)(?:{decimal}[0-9]+)?|{decimal}[0-9]+")


def _digits(numeral: str, style: Style) -> str:
    """Return a numeral as a plain ASCII decimal: digits, or digits with one interior dot."""
    whole, mark, fraction = numeral.partition(style.decimal)
    return re.sub("[^0-9]", "", whole).rjust(1, "0") + (mark and f".{fraction}")


def _plain(run: str, style: Style) -> Decimal | None:
    """Return the value of digits with separators, or None where the separators do not form a number."""
    if len(run) >= LONGEST or not _numeral(style).fullmatch(run):
        return None
    return Decimal(_digits(run, style))


def _rewritten(run: str, style: Style) -> str:
    return run if _plain(run, style) is None else _digits(run, style)


def _fraction(found: re.Match[str], style: Style) -> Fraction | None:
    """Return the exact value of a candidate that is written as a fraction, without its sign; None for others."""
    whole, top, bottom = "0", found["top"], found["bottom"]
    if found["vulgar"]:
        whole = found["before"] or "0"
        top, _, bottom = unicodedata.normalize("NFKC", found["vulgar"]).partition("\u2044")
    elif found["over"]:
        whole, top, bottom = found["whole"], found["over"], found["under"]
    elif found["parts"] and re.fullmatch("[^/:]+/[^/:]+", found["parts"]):
        top, bottom = found["parts"].split("/")
    numbers = [None if part is None else _plain(part, style) for part in (whole, top, bottom)]
    if None in numbers or not numbers[2] or (found["over"] and numbers[1] >= numbers[2]):
        return None
    return Fraction(numbers[0]) + Fraction(numbers[1]) / Fraction(numbers[2])


def _value(found: re.Match[str], style: Style) -> Decimal | None:
    """Return what a candidate is worth, or None where it is malformed."""
    fraction = _fraction(found, style)
    if fraction is not None:
        if found["e"] or found["ten"] or found["super_ten"] or found["raised"] or found["super"]:
            return None
        number = _QUOTIENT.divide(Decimal(fraction.numerator), Decimal(fraction.denominator))
    elif found["parts"] is None or (number := _plain(found["parts"], style)) is None:
        return None
    raised = found["raised"] or (found["super"] or "").translate(_SUPERSCRIPTS)
    exponent = found["e"] or found["ten"] or (found["super_ten"] or "").translate(_SUPERSCRIPTS)
    if raised:
        if found["parts"] != "10":
            return None
        number, exponent = Decimal(1), raised
    if exponent:
        if not re.fullmatch("[+-]?[0-9]{1,9}", exponent):
            return None
        number = _EXACT.scaleb(number, int(exponent)) if abs(int(exponent)) < 2 * LONGEST else Decimal("Infinity")
    if not number.is_finite() or (number and abs(number.adjusted()) >= LONGEST):
        return None
    return number.copy_negate() if found["sign"] == "-" else number


def _alone(text: str, style: Style) -> re.Match[str] | None:
    r"""Return the number that a text consists of, a currency sign on either side and a full stop aside."""
    written = _ascii(text, style).strip()
    written = re.sub(rf"^\\?[{_CURRENCY}] ?|(?<=[0-9])(?: ?[{_CURRENCY}])?\.?$", "", written)
    found = _candidate(style).fullmatch(written)
    return None if found is None or found["power"] is not None or _value(found, style) is None else found
