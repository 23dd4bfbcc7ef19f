"""What can be measured: the parts, and the names of the methods as they stand in records, tables and figures."""

from __future__ import annotations

from dataclasses import dataclass

SHARES = (0.1, 0.6)  # of labels that are number tokens
PARTS = ("loss", "head", "growth", "step")

CE = "CE"
CE_FUSED = "CE, fused"
PLAIN = "CE + NTL, plain"
FUSED = "CE + NTL, fused"
REWEIGHED = "CE + NTL reweighed, fused"
NTLOSS = "CE + ntloss"
NTLOSS_DEFAULT = "CE + ntloss, its default (reweighed)"
LINEAR = "CE + NTL, linear"
LIGER = "CE, Liger's fused linear"
TRAINER = "CE, plain Trainer"
OUR_CE, OUR_NTL = "CE, our default path", "CE + NTL, our default path"


@dataclass(frozen=True)
class BenchmarkSettings:
    """How much is measured. `quick` gives an impression in a minute or two."""

    parts: tuple[str, ...] = PARTS
    rounds: int = 7
    quick: bool = False

    def size(self, tokens: int) -> int:
        return max(64, tokens // 8) if self.quick else tokens
