"""Words for messages, and numbers as text. Standard library only, so that every other module may use it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from decimal import Decimal
from typing import Any


def nearest(word: Any, candidates: Iterable[str], count: int = 3) -> list[str]:
    """Return at most `count` candidates that `word` may be a misspelling of, best first; case is ignored."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(str(word).lower(), by_lower, n=count, cutoff=0.5)
    return [by_lower[name] for name in close]


def suggestion(word: Any, candidates: Iterable[str]) -> str:
    """Return `nearest: …` with the nearest candidates, or `valid: …` with all of them if none is near."""
    candidates = sorted(candidates)
    close = nearest(word, candidates)
    return f"nearest: {', '.join(close)}" if close else f"valid: {', '.join(candidates)}"


def did_you_mean(kind: str, got: str, candidates: Iterable[str], of: str = "") -> str:
    """Return one sentence for an unknown name: what was given and the nearest valid names, or all if none is near."""
    return f"unknown {kind} '{got}'{of and f' of {of}'}; {suggestion(got, candidates)}"


def expected_one_of(got: Any, choices: Iterable[str]) -> str:
    """Return `expected one of …` for a short list of choices, with the nearest ones if `got` resembles any."""
    choices = list(choices)
    close = nearest(got, choices)
    return f"expected one of {', '.join(choices)}" + (f"; did you mean {' or '.join(close)}?" if close else "")


def plain_number(number: Decimal) -> str:
    """Write a number exactly, without exponent, trailing zeros or a negative zero: 1.50 is 1.5, 1E+3 is 1000."""
    if not number:
        return "0"
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
