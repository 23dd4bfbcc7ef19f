"""The methods of the paper on the DeepMind mathematics data, pooled and for each module.

All arms split digits but those named `/subword`; `rt` and `xval` write numbers in ways of their own.
"""

from experiments.analysis.figures import Figure
from experiments.analysis.table import EACH, Comparison, Table

PAPER = (
    "hub weights, 1.05 million steps of 32, all three difficulties, 666,333 training questions of each module at each; "
    "CE with subword tokens by the published commands, NTL with digits"
)
COMPARISONS = (
    Comparison("ntl_was@0.3", "ce/subword", "loss and tokenization, as published"),
    Comparison("ntl_was@0.3/subword", "ce/subword", "loss, with subword tokens"),
    Comparison("ce", "ce/subword", "tokenization"),
    Comparison("ntl_was@0.3", "ntl_mse@0.3", "kind of NTL"),
    Comparison("rt_ntl@0.3", "rt", "NTL-MSE on top of the Regression Transformer"),
    Comparison("ntl_was@0.3", "rt", "NTL against the Regression Transformer's encoding"),
)
TOKENIZATION = (
    "In the published commands CE kept T5's own subword tokens while the NTL arms split digits; a public summary gives "
    "0.64 for CE with digits and 0.43 with subwords. Here the arms that split digits differ from `ce` in the loss "
    "alone; the published pairing stands under the further comparisons. Published number tokens of the subword arms "
    "were all 705 pieces that Python's `float` reads, signs and trailing dots included; ours are plain decimals."
)
ENCODINGS = (
    "`rt` and the two forms of xVal have vocabularies of their own, so that their difference to `ce` is one of method. "
    "`xval_mask` is xVal as published beside NTL: an encoder from scratch that fills in the answer's number. Its "
    "numbers are unsigned, and, as in the published evaluation, it is shown the sign of the answer, in tests too. "
    "`xval`, T5 with xVal's numbers from the paper's repository, generates the answer with its sign; it regresses "
    "logarithms, where the published code regresses raw values z-scored in each batch. Both answer greedily, and write "
    "floats of seven significant digits: compare them by accuracy (isclose), which decides C04."
)
RT = (
    "The published `rt_ntl` numbers come from a different loss: there, padding (label −100) wraps around to the id of "
    "a number token and is trained as its digit; here it is ignored. `rt` keeps zeros at the end of decimals and T5's "
    "`▁` before a number, which the published tokenizer drops."
)
MAE = "MAE and R² of logarithms are the paper's MAE and R² on this data: of sign(x)·log10(|x| + 1)."

MAIN = Table(
    title="Mathematics",
    splits=("interpolate", "extrapolate"),
    metrics=("accuracy", "log_mae", "log_r2", "accuracy_isclose", "accuracy_paper_parser"),
    baseline="ce",
    comparisons=COMPARISONS,
    paper_setting=PAPER,
    notes=(TOKENIZATION, ENCODINGS, RT, MAE),
)
TABLES = (
    MAIN,
    Table(
        title="Mathematics by module",
        name="modules",
        splits=("interpolate", "extrapolate"),
        metrics=("accuracy", "log_mae", "accuracy_isclose", "accuracy_paper_parser"),
        baseline="ce",
        groups=EACH,
        paper_setting=PAPER,
        notes=(TOKENIZATION, ENCODINGS, RT, MAE),
    ),
)
FIGURES = (Figure(MAIN, metrics=("accuracy", "log_mae")),)
