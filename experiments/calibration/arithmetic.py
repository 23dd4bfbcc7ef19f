"""Calibration of the experiments on arithmetic: which model, which questions and which learning rate.

Only the CE arm is trained and only the validation split is looked at. The rule: of the candidates
that clear the floor by 0.1 in accuracy and finish within five minutes on one core, the one of highest accuracy.
"""

from experiments.analysis.table import Table

ADD_OR_SUB = ("t5_nano@1e-3", "t5_nano@5e-4", "t5_nano@2e-3", "gpt2_nano@1e-3")
RULE = (
    "Rule: of the candidates that clear the constants by 0.1 in accuracy and take at most five minutes on one core, "
    "the one of highest validation accuracy; every arm of every experiment on arithmetic inherits it."
)
TABLES = (
    Table(
        title="Calibration of arithmetic: add_or_sub, easy; CE, validation split",
        splits=("validation",),
        metrics=("accuracy", "log_mae", "token_accuracy"),
        arms=ADD_OR_SUB,
        baseline="t5_nano@1e-3",
        notes=(RULE, "`@` gives the learning rate."),
    ),
    Table(
        title="Calibration of arithmetic: add_sub_multiple, easy; CE, validation split",
        name="add_sub_multiple",
        splits=("validation",),
        metrics=("accuracy", "log_mae", "token_accuracy"),
        arms=("t5_nano@1e-3/add_sub_multiple",),
        baseline="t5_nano@1e-3/add_sub_multiple",
        notes=(RULE, "The module of the paper's ablation."),
    ),
)
