"""What was tried, on CE and validation data alone, before the settings of an experiment were fixed."""


def rule(dataset: str, clears: str, best: str) -> str:
    """The sentence that says how a candidate is chosen."""
    return (
        f"Rule: of the candidates that beat the constants in {clears} and take at most five minutes on one core, the "
        f"one of the best {best} on the validation split; where none does, the one of the best {best}, and the table "
        f"says floor. What is chosen stands in `conf/scale/cpu/{dataset}.yaml`; every arm inherits it."
    )
