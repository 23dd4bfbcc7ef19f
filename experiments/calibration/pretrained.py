"""Calibration of the experiments on pretrained weights: which learning rate, by CE's validation split."""

from experiments.analysis.table import Table

RULE = (
    "Rule: the candidate of the best {best} on the validation split. What is chosen stands in "
    "`conf/scale/pretrained/{dataset}.yaml`; every arm inherits it."
)


def _table(dataset: str, *metrics: str) -> Table:
    arms = (f"{dataset}@1e-3", f"{dataset}@3e-4")
    rule = RULE.format(best=metrics[0], dataset=dataset)
    notes = (rule, "`@` gives the learning rate.")
    title = f"Calibration of {dataset} with SmolLM2-135M; CE"
    return Table(title, ("validation",), metrics, arms[0], name=dataset, arms=arms, notes=notes)


TABLES = (
    _table("rjokes", "spearman", "rmse", "nll"),
    _table("multiplication", "accuracy", "mape", "nll"),
    _table("mathematics", "accuracy", "log_mae", "nll"),
    _table("gsm8k", "nll", "accuracy", "rouge1"),
    _table("multirc", "rouge1", "bleu", "nll"),
)
