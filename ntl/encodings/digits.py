"""Digit by digit: `▁2024` becomes `▁ 2 0 2 4`, and the number tokens are exactly the ten tokens `0` to `9`."""

from ntl.encodings.base import Encoding


class Digits(Encoding):
    """Every ASCII digit is a token of its own, by a pre-tokenizer that is saved with the tokenizer.

    The vocabulary stays as it is; its pieces with several digits, or with a marked one, are merely never produced.
    The published tokenizer cuts a piece that holds a digit into all of its characters: T5's `▁$1` is `▁ $ 1` there and
    `▁$ 1` here, with the same number tokens.
    """

    name = "digits"
    split_digits = True
    decodings = ("generate", "expected")
