"""The tokenizer as it is: numbers are whatever pieces its vocabulary cuts them into."""

from ntl.encodings.base import Encoding


class Subword(Encoding):
    """Tokens of several digits may occur; every token that is a plain decimal numeral is a number token.

    Of T5's vocabulary that are fewer than the 705 pieces of the published runs, which took all that `float()` takes.
    A piece with other characters (`▁$1`, `(5)`, `1,000`) is no number token, there or here.
    """

    name = "subword"
    split_digits = False
    because = "expected values are taken over single digits, as loss.encoding=digits has them"
