"""The official generator on today's NumPy and SymPy: all modules, its semantics, reproducibility, failures."""

import contextlib
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

from data_prep import generator
from data_prep.base import DataError
from data_prep.generator import Draw, Worker, generate, questions
from data_prep.mathematics import DIFFICULTIES, EXTRAPOLATION, TRAINING

ROOT = Path(__file__).resolve().parents[2]
PARTS = [
    *[(f"train-{difficulty}", module) for module, difficulty in itertools.product(TRAINING, DIFFICULTIES)],
    *[("interpolate", module) for module in TRAINING],
    *[("extrapolate", module) for module in EXTRAPOLATION],
]
NUMBER = re.compile(r"-?\d+(\.\d+)?")


@pytest.mark.parametrize(("regime", "module"), PARTS)
def test_every_module_of_the_paper_makes_questions_with_numbers_for_answers(regime, module):
    made = questions(Draw("test", regime, module, 8), seed=1)["rows"]
    assert len(made) == 8 and len({question for question, _ in made}) > 4
    for question, answer in made:
        assert NUMBER.fullmatch(answer), (question, answer)
        assert 0 < len(question) <= 160 and len(answer) <= 30


@pytest.mark.parametrize("regime", ["train-easy", "train-medium", "train-hard", "interpolate"])
def test_answers_are_right(regime):
    """Recompute every sum, difference and product that is written as a formula."""
    checked = 0
    for module, symbols in {"arithmetic__add_or_sub": "+-", "arithmetic__mul": "*"}.items():
        for question, answer in questions(Draw("test", regime, module, 60), seed=2)["rows"]:
            match = re.search(rf"(-?[\d.]+) ?([{symbols}]) ?(-?[\d.]*\d)", question)
            if match:
                left, symbol, right = Decimal(match[1]), match[2], Decimal(match[3])
                value = left + right if symbol == "+" else left - right if symbol == "-" else left * right
                assert Decimal(answer) == value, (question, answer)
                checked += 1
    assert checked > 20


def entropy(regime: str, module: str) -> tuple[float, float]:
    function = generator.official_modules()[regime][module]
    (arguments,) = [argument for argument in function.args if hasattr(argument, "min_entropy")]
    return arguments.min_entropy, arguments.max_entropy


def test_difficulties_and_tests_have_the_official_entropies():
    """Difficulties are thirds of the training range; interpolation is one value in it, extrapolation lies above."""
    for module, (low, high), inside in [
        ("arithmetic__add_or_sub", (4, 16), 12),
        ("arithmetic__add_sub_multiple", (3, 10), 8),
        ("numbers__place_value", (3, 10), 8),
        ("algebra__linear_2d_composed", (3, 10), 8),
    ]:
        third = (high - low) / 3
        for level, difficulty in enumerate(DIFFICULTIES):
            expected = (low + level * third, low + (level + 1) * third)
            assert entropy(f"train-{difficulty}", module) == pytest.approx(expected), (module, difficulty)
        assert entropy("interpolate", module) == (inside, inside)
    assert entropy("extrapolate", "arithmetic__add_or_sub_big") == (16, 20)
    assert entropy("extrapolate", "arithmetic__mul_big") == (10, 12)
    assert entropy("extrapolate", "numbers__place_value_big") == (12, 12)


def test_extrapolated_expressions_are_longer_than_any_in_training():
    def terms(regime: str, module: str) -> list[int]:
        rows = questions(Draw("test", regime, module, 100), seed=0)["rows"]
        return [len(re.findall(r"\d+", question)) for question, _ in rows]

    longest = max(max(terms(f"train-{d}", "arithmetic__add_sub_multiple")) for d in DIFFICULTIES)
    assert min(terms("extrapolate", "arithmetic__add_sub_multiple_longer")) > longest
    assert max(terms("interpolate", "arithmetic__add_sub_multiple")) <= longest


DRAWS = [
    Draw("train", "train-medium", "numbers__div_remainder_composed", 60),
    Draw("train", "train-hard", "algebra__linear_2d_composed", 60),
    Draw("train", "train-easy", "algebra__sequence_next_term", 20),
]


def rows(draws: list[Draw], **options) -> list[list[tuple[str, str]]]:
    return [[tuple(pair) for pair in made["rows"]] for _, made in generate(draws, **options)]


def test_rows_do_not_depend_on_the_workers_the_chunks_or_the_shuffling_of_strings(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "4711")
    one = rows(DRAWS, seed=3, workers=1)
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    monkeypatch.setattr(generator, "CHUNK", 7)
    two = rows(DRAWS, seed=3, workers=2)
    assert len(two) > len(one) == 3
    assert list(itertools.chain(*one)) == list(itertools.chain(*two))
    assert list(itertools.chain(*rows(DRAWS, seed=4, workers=2))) != list(itertools.chain(*two))


def test_rows_do_not_depend_on_what_the_worker_made_before():
    """Neither SymPy's caches nor the random state may leak from one question into another."""
    forwards, backwards = Worker(), Worker()
    try:
        first = [forwards(draw, 0)["rows"] for draw in DRAWS]
        second = [backwards(draw, 0)["rows"] for draw in reversed(DRAWS)]
    finally:
        forwards.close()
        backwards.close()
    assert first == second[::-1]


def test_a_larger_size_only_adds_questions_and_streams_differ():
    draw = Draw("train", "train-easy", "arithmetic__mul", 10)
    ten, thirty = questions(draw, 0)["rows"], questions(Draw(draw.stream, draw.regime, draw.module, 30), 0)["rows"]
    assert thirty[:10] == ten
    later = questions(Draw(draw.stream, draw.regime, draw.module, 20, start=10), 0)["rows"]
    assert thirty[10:] == later
    other = questions(Draw("validation", draw.regime, draw.module, 10), 0)["rows"]
    assert not set(other) & set(ten)


def test_the_generator_can_be_imported_in_spawned_processes():
    draw = Draw("train", "train-easy", "numbers__place_value", 3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        made = pool.apply(questions, (draw, 0))
    assert made == questions(draw, 0)


def test_the_import_hook_changes_no_installed_file_and_no_other_module():
    code = (
        "import sys, pathlib; sys.dont_write_bytecode = False\n"
        "from data_prep.generator import install_import_hook\n"
        "install_import_hook(); install_import_hook()\n"
        "from mathematics_dataset.sample import polynomials\n"
        "import json, sympy\n"
        "assert sum(getattr(f, '__name__', '') == 'RewritingFinder' for f in sys.meta_path) == 1\n"
        "assert type(polynomials.__loader__).__name__ == 'RewritingLoader'\n"
        "assert type(json.__loader__).__name__ == type(sympy.__loader__).__name__ == 'SourceFileLoader'\n"
        "assert 'np.object' in pathlib.Path(polynomials.__file__).read_text()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# Rare seeds at which the generator fails or hangs


def stand_in(monkeypatch, function) -> Draw:
    """Let `function` take the place of a module."""
    monkeypatch.setattr(generator, "official_modules", lambda: {"train-easy": {"m": function}})
    return Draw("train", "train-easy", "m", 4)


class Problem:
    def __init__(self, question: str) -> None:
        self.question, self.answer = question, "1"


def test_a_seed_that_fails_or_hangs_is_skipped_and_counted(monkeypatch):
    import random

    generator.official_modules.cache_clear()
    generator.official_modules()  # has the package imported before it is replaced
    monkeypatch.setattr(generator, "SECONDS_PER_QUESTION", 0.05)

    def module() -> Problem:
        value = random.random()
        if value < 0.3:
            raise ValueError("Ran out of symbols")
        while value < 0.5:
            with contextlib.suppress(Exception):
                time.sleep(0.001)
        return Problem(f"What is {value}?")

    draw = stand_in(monkeypatch, module)
    draw = Draw(draw.stream, draw.regime, draw.module, 20)
    made = questions(draw, seed=0)
    assert len(made["rows"]) == 20
    assert made["skipped"]["ValueError"] > 0 and made["skipped"]["TookTooLong"] > 0
    assert questions(draw, seed=0) == made


def test_questions_over_the_official_lengths_are_drawn_again(monkeypatch):
    generator.official_modules()
    lengths = itertools.cycle([161, 160])
    draw = stand_in(monkeypatch, lambda: Problem("x" * next(lengths)))
    made = questions(draw, seed=0)
    assert [len(question) for question, _ in made["rows"]] == [160] * 4
    assert made["skipped"] == {"too long": 4}


def test_a_module_that_always_fails_is_named_with_its_reason(monkeypatch):
    generator.official_modules()

    def module() -> None:
        raise AttributeError("module 'numpy' has no attribute 'object'")

    with pytest.raises(DataError, match=r"train-easy/m: question 0 failed with 100 seeds.*no attribute 'object'"):
        questions(stand_in(monkeypatch, module), seed=0)


def test_an_error_in_a_worker_reaches_the_caller():
    with pytest.raises(DataError, match="KeyError: 'no_module'"):
        list(generate([Draw("train", "train-easy", "no_module", 3)], seed=0, workers=1))


def test_a_worker_that_dies_is_reported(monkeypatch):
    original = Worker.__call__

    def dying(self, draw: Draw, seed: int):
        os.kill(self.process.pid, 9)
        return original(self, draw, seed)

    monkeypatch.setattr(Worker, "__call__", dying)
    with pytest.raises(DataError, match=r"worker of the generator ended while making .*exit status -9"):
        list(generate(DRAWS[:1], seed=0, workers=1))


def test_a_missing_generator_says_how_to_get_it(monkeypatch):
    def missing(name: str) -> str:
        raise generator.PackageNotFoundError(name)

    monkeypatch.setattr(generator, "version", missing)
    with pytest.raises(DataError, match=r"mathematics-dataset is not installed.*pip install"):
        list(generate(DRAWS, seed=0))
