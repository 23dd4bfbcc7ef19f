"""What the records say of each claim of the paper: one verdict, by the rule that was fixed before the runs.

A claim's arms are found in its experiment by name, and their records as every table finds them. An experiment whose
evidence is no run (the speed of a step, an analytic landscape) has a function `judge(claim, results) -> Outcome` in its
module.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tabulate import tabulate

from experiments.analysis import published as paper
from experiments.analysis.frame import same_data, trivial_value
from experiments.analysis.metrics import describe, direction, margin
from experiments.analysis.published import Claim
from experiments.analysis.records import TRIVIAL, ArmRuns, Records, arm_runs, command
from experiments.analysis.rendering import interval, number, probability, write_texts
from experiments.analysis.statistics import (
    LEVEL,
    NOTHING,
    Paired,
    at_ceiling,
    at_floor,
    common,
    detectable,
    detectable_margin,
    equivalence_p,
    holm,
    not_above_zero,
    paired,
    summarise,
    verdict,
)
from experiments.config.compose import experiment_names, load_experiment
from experiments.config.discovery import module, module_name

# The scales at which a claim is judged: from scratch on two CPU cores, and with pretrained weights. Text and regression
# need a model that can read, so that their claims are judged with pretrained weights alone.
CPU, PRETRAINED = "cpu", "pretrained"
_PRETRAINED_ALONE = ("C05", "C06", "C07", "C08", "C09", "C10")
_AT_BOTH = ("C01", "C02", "C03")
# Errors on a regression set: a model that orders the answers can be compared even where a constant has a lower error.
_REGRESSION = ("C08", "C09")
# Seeds of these experiments give the spread of paired differences, before any claim is judged; they are no evidence.
PILOTS = {CPU: "pilot", PRETRAINED: "pretrained/pilot"}
COLUMNS = ("id", "claim", "verdict", "effect", "ci_low", "ci_high", "p", "n", "scale", "paper_effect", "command")
NOT_RUN = "not run"
ANY = ("match",)  # "sometimes": one of several comparisons is enough; all other claims need all

# Metrics that judge a claim in place of the published one. xVal writes floats, which exact equality cannot score:
# answers right to a relative error of 1e-6 reach 0.26 in accuracy. The tolerance is the paper's own.
JUDGED_BY = {"C04": "accuracy_isclose"}


@dataclass(frozen=True)
class Outcome:
    """The evidence for one claim and the verdict on it.

    `effect` and its interval are signed so that positive is what the paper claims (better, for a claim of no effect);
    of several comparisons the one that the verdict hangs on is shown. `p` is what the verdict rests on: Holm-corrected
    for a difference, of both one-sided tests for no effect; `raw_p` is the paired t-test's.
    """

    claim: Claim
    verdict: str = NOT_RUN
    effect: Paired = NOTHING
    p: float | None = None
    raw_p: float | None = None
    seeds: int = 0
    scale: str = CPU
    command: str = ""
    remark: str = ""
    constant: str = ""  # the best trivial predictor, and the arms that beat it
    detectable: float | None = None  # effect that the planned seeds detect with 80 % power (no effect: margin)


@dataclass(frozen=True)
class _Evidence:
    claim: Claim
    scale: str
    comparisons: tuple[Paired, ...]  # signed
    equivalence: tuple[float | None, ...]
    floor: bool
    ceiling: bool
    seeds: int
    constant: str

    @property
    def p(self) -> float | None:
        """Of a claim that needs all its comparisons: the largest."""
        known = [c.p for c in self.comparisons]
        return None if any(p is None for p in known) else max(known)


def judge(records: Records, results: Path) -> list[Outcome]:
    """The outcome of every claim at each scale at which it is judged, in the order of their ids.

    Holm's correction is over the claims of a difference at all scales.
    """
    claims = [replace(claim, metric=JUDGED_BY.get(claim.id, claim.metric)) for claim in paper.claims()]
    judged = [(claim, scale) for claim in claims for scale in scales(claim)]
    outcomes: list[Outcome | _Evidence] = [_examine(claim, scale, records, results) for claim, scale in judged]
    family = [o for o in outcomes if isinstance(o, _Evidence) and not o.claim.no_effect]
    corrected = holm(np.array([np.nan if e.p is None else e.p for e in family]))
    by_claim = {
        (e.claim.id, e.scale): None if np.isnan(p) else float(p) for e, p in zip(family, corrected, strict=True)
    }
    concluded = [_conclude(o, by_claim.get((o.claim.id, o.scale))) if isinstance(o, _Evidence) else o for o in outcomes]
    # Planned for, whether or not the runs have finished: every claim of a difference that rests on runs.
    planned = sum(not claim.no_effect and not _is_measured(claim) for claim, _ in judged)
    return [_with_detectable(outcome, records, planned) for outcome in concluded]


def scales(claim: Claim) -> tuple[str, ...]:
    """Return the scales at which a claim is judged."""
    if claim.id in _AT_BOTH:
        return (CPU, PRETRAINED)
    return (PRETRAINED,) if claim.id in _PRETRAINED_ALONE else (CPU,)


def experiment_of(claim: Claim, scale: str) -> str:
    """Return the name of the experiment that a claim rests on at a scale."""
    return claim.experiment if scale == CPU else f"{scale}/{claim.experiment}"


def _is_measured(claim: Claim) -> bool:
    """Whether a claim rests on something else than runs: a benchmark, or a computation."""
    return module_name(claim.experiment) is not None and hasattr(module(claim.experiment), "judge")


def _with_detectable(outcome: Outcome, records: Records, family: int) -> Outcome:
    """Add what the planned seeds can detect, from the spread of paired differences in the pilot of the same scale."""
    sd = None if outcome.scale not in PILOTS else _pilot_sd(outcome.claim, PILOTS[outcome.scale], records)
    if sd is None or outcome.seeds < 2:
        return outcome
    if outcome.claim.no_effect:
        return replace(outcome, detectable=detectable_margin(sd, outcome.seeds))
    return replace(outcome, detectable=detectable(sd, outcome.seeds, LEVEL / family))


def _pilot_sd(claim: Claim, pilot: str, records: Records) -> float | None:
    """Return the standard deviation of a claim's metric over the pilot's paired differences; None where it has none."""
    if pilot not in experiment_names():
        return None
    arms = list(arm_runs(load_experiment(pilot), records).values())
    # A pilot has two arms and no split "test": interpolation stands for it.
    split = claim.split if claim.split != "test" else "interpolate"
    baseline, treatment = (runs.values(split, claim.metric) for runs in arms)
    _, ours, theirs = common(treatment, baseline)
    return summarise(ours - theirs).sd


def write(records: Records, results: Path, folder: Path) -> list[Path]:
    """Write `claims.csv` and `claims.md` into a folder. Returns the paths.

    Args:
        results: where the measured costs of the losses lie, on which one claim rests.
    """
    outcomes = judge(records, results)
    source = "published" if all(record.published for record in records) else "published and those in outputs"
    return write_texts(Path(folder) / "claims", {"csv": to_csv(outcomes), "md": to_markdown(outcomes, source)})


def to_csv(outcomes: Sequence[Outcome]) -> str:
    """The outcomes with the columns `COLUMNS`, numbers to six digits, empty where there is none."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for o in outcomes:
        numbers = [o.effect.difference, o.effect.low, o.effect.high, o.p]
        shown = ["" if x is None else f"{x:.6g}" for x in numbers]
        published = "" if o.claim.paper_effect is None else f"{o.claim.paper_effect:.6g}"
        writer.writerow([o.claim.id, o.claim.claim, o.verdict, *shown, o.effect.n, o.scale, published, o.command])
    return file.getvalue()


def to_markdown(outcomes: Sequence[Outcome], source: str = "published") -> str:
    """The outcomes for readers; `source` says which records they rest on."""
    headers = ["", "scale", "claim", "metric", "verdict", "paper's effect", "effect [95 %]", "detectable"]
    headers += ["p", "t-test p", "sign-flip p", "n", "best constant"]
    rows = [
        [
            o.claim.id,
            o.scale,
            o.claim.claim,
            " ".join(filter(None, (o.claim.split, describe(o.claim.metric).title))),
            f"**{o.verdict}**" + (f": {o.remark}" if o.remark else ""),
            number(o.claim.paper_effect, sign=True),
            interval(o.effect),
            number(o.detectable),
            probability(o.p),
            probability(o.raw_p),
            probability(o.effect.sign_flip_p),
            f"{o.effect.n} of {o.seeds}" if o.seeds else "–",
            o.constant or "–",
        ]
        for o in outcomes
    ]
    commands = [f"* {o.claim.id} ({o.scale}): `{o.command}`" for o in outcomes if o.command]
    return (
        "# What the records say of the paper's claims\n\n"
        + tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)
        + "\n\n## Notes\n\n"
        f"* Made by `python -m experiments claims` from the records: {source}.\n"
        "* Effects are mean paired differences over seeds, signed so that positive is what the paper claims (better, "
        "for a claim of no effect).\n"
        "* p is what the verdict rests on: the paired t-test's, Holm-corrected over all claims of a difference that "
        "have one; for a claim of no effect, the larger of two one-sided tests against the margin. The exact sign-flip "
        "p is not corrected.\n"
        "* Detectable: the smallest true effect that the planned seeds detect with 80 % power at the level that Holm's "
        "correction guarantees; for a claim of no effect, the smallest margin at which they would show equivalence. "
        "The spread of paired differences is that of the pilot of the same scale.\n"
        "* Verdicts, in this order: *floor* (no arm beats the best constant by 0.02, or an error by 2 %; for C08 and "
        "C09, no arm's Spearman correlation is above 0: the claim cannot be decided at this scale), *ceiling* (all "
        "arms above 0.98); for no effect *equivalent*, *differs*, *undecided*; for a difference *reproduced*, "
        "*opposite*, *no clear effect*.\n"
        f"* {', '.join(JUDGED_BY)}: the method writes floats, so that accuracy with the paper's tolerance decides, not "
        "exact equality (docs/numbers.md).\n\n"
        "## Commands\n\n" + "\n".join(commands) + "\n"
    )


def _examine(claim: Claim, scale: str, records: Records, results: Path) -> Outcome | _Evidence:
    names = list(dict.fromkeys((*claim.baselines, *claim.treatments)))
    name = experiment_of(claim, scale)
    if name not in experiment_names() or module_name(name) is None:
        return Outcome(claim, scale=scale, remark=f"there is no experiment '{name}' yet")
    if _is_measured(claim):
        return module(name).judge(claim, results)
    experiment = load_experiment(name)
    if absent := [arm for arm in names if arm not in experiment.arms]:
        return Outcome(claim, scale=scale, remark=f"'{name}' has no arm {', '.join(absent)}")
    arms = {arm: runs for arm, runs in arm_runs(experiment, records).items() if arm in names}
    same_data(arms.values())
    values = {arm: runs.values(claim.split, claim.metric) for arm, runs in arms.items()}
    pairs = [(values[t], values[b]) for t in claim.treatments for b in claim.baselines]
    if not all(set(treatment) & set(baseline) for treatment, baseline in pairs):
        finished = sum(len(runs.finished) for runs in arms.values())
        declared = sum(len(runs.seeds) for runs in arms.values())
        return Outcome(
            claim,
            seeds=min(len(runs.seeds) for runs in arms.values()),
            scale=scale,
            command=_command(claim, scale),
            remark=f"{finished} of {declared} runs finished",
        )
    comparisons, equivalence = [], []
    for treatment, baseline in pairs:
        _, ours, theirs = common(treatment, baseline)
        comparisons.append(paired(ours, theirs).signed(claim.sign))
        if claim.no_effect:
            low, high = margin(claim.metric, one_sided=claim.paper_verdict == "match")
            equivalence.append(equivalence_p(claim.sign * ours, claim.sign * theirs, low, high))
    means = {arm: summarise(list(v.values())).mean for arm, v in values.items()}
    kind = describe(claim.metric).kind
    trivial = _trivial(claim, arms)
    if claim.id in _REGRESSION:
        orders = [list(runs.values(claim.split, "spearman").values()) for runs in arms.values()]
        floor = all(map(not_above_zero, orders))
    else:
        floor = at_floor(list(means.values()), trivial, kind)
    return _Evidence(
        claim,
        scale,
        tuple(comparisons),
        tuple(equivalence),
        floor=floor,
        ceiling=at_ceiling(list(means.values()), kind),
        seeds=min(len(runs.seeds) for runs in arms.values()),
        constant=_beside_constant(claim, means, trivial),
    )


def _beside_constant(claim: Claim, means: Mapping[str, float], trivial: Sequence[float]) -> str:
    """The best trivial predictor's value, and which arms are better."""
    if not trivial:
        return "–"
    sign = direction(claim.metric)
    best = sign * max(sign * value for value in trivial)
    better = [arm for arm, mean in means.items() if sign * mean > sign * best]
    return f"{number(best)}; {', '.join(better) + ' better' if better else 'no arm is better'}"


def _trivial(claim: Claim, arms: Mapping[str, ArmRuns]) -> list[float]:
    records = [record for runs in arms.values() for record in runs.finished.values()]
    values = [trivial_value(records, state, claim.split, claim.metric, "all") for state in TRIVIAL]
    return [value for value in values if value is not None]


def _conclude(evidence: _Evidence, corrected: float | None) -> Outcome:
    """The verdict on a claim, and of its comparisons the one that it hangs on."""
    claim, comparisons = evidence.claim, evidence.comparisons
    state = {"floor": evidence.floor, "ceiling": evidence.ceiling}
    enough = claim.paper_verdict in ANY
    if claim.no_effect:
        limits = margin(claim.metric, one_sided=claim.paper_verdict == "match")
        verdicts = [
            verdict(comparison, equivalence=p, margin=limits, **state)
            for comparison, p in zip(comparisons, evidence.equivalence, strict=True)
        ]
        ps = [1.0 if p is None else p for p in evidence.equivalence]
        shown = (min if enough else max)(range(len(ps)), key=ps.__getitem__)
        p, split = evidence.equivalence[shown], "undecided"
    else:
        verdicts = [verdict(comparison, corrected_p=corrected, **state) for comparison in comparisons]
        shown = min(range(len(comparisons)), key=lambda i: comparisons[i].difference)
        p, split = corrected, "no clear effect"
    final = verdicts[0] if len(set(verdicts)) == 1 else split
    if enough and "equivalent" in verdicts:
        final = "equivalent"
    effect = comparisons[shown]
    return Outcome(
        claim,
        final,
        effect,
        p,
        raw_p=effect.p,
        seeds=evidence.seeds,
        scale=evidence.scale,
        command=_command(claim, evidence.scale),
        constant=evidence.constant,
        remark="" if effect.n == evidence.seeds else f"on {effect.n} of {evidence.seeds} seeds so far",
    )


def _command(claim: Claim, scale: str) -> str:
    return command(experiment_of(claim, scale), dict.fromkeys((*claim.baselines, *claim.treatments)))
