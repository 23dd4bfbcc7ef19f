"""Questions of the official generator (`mathematics-dataset` 1.0.1 on PyPI), on any number of cores.

The generator was written for the NumPy and SymPy of 2019. `install_import_hook` has three names that have gone since
rewritten while its modules are imported, and two choices whose outcome did not depend on the seed alone; the installed
files stay as they are.

Question number `i` of a module depends on the seed, the stream (train, validation, …), the regime, the module and `i`
alone: both random generators that the package draws from are seeded for each question. So the rows are the same
whatever the number of workers, and a larger size only adds questions. The workers are processes started as `python -m
data_prep.generator`: unlike multiprocessing's they import nothing of the program that prepares, and their string hashes
are fixed, as SymPy's inner order may hang on them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType
from typing import Any

from data_prep.base import DataError

PACKAGE = "mathematics_dataset"
CHUNK = 250  # questions that a worker makes at a time
SECONDS_PER_QUESTION = 30.0  # a question takes milliseconds; SymPy can hang on a rare one
ATTEMPTS = 100  # seeds tried for one question before the module is given up


class RewritingLoader(SourceFileLoader):
    """Loads a module of the generator with a few places of its source replaced."""

    RENAMES = (
        (r"\bnp\.object\b", "object"),
        (r"\.itemset\((\w+), (\w+)\)", r"[\1] = \2"),
        (r"from sympy\.solvers\.diophantine import base_solution_linear\b",
         "from sympy.solvers.diophantine.diophantine import base_solution_linear"),
    )  # fmt: skip
    # Draws from sets whose order differs from process to process (of strings; of objects, hashed by their address).
    # Each choice stays as likely as it was, but now depends on the seed alone.
    ORDERED = (
        (r"random\.choice\(list\(allowed\)\)", "random.choice(sorted(allowed))"),
        (r"entities = set\(context\.child_entities\)", "entities = dict.fromkeys(context.child_entities)"),
        (r"entities\.add\(maybe_entity\)", "entities[maybe_entity] = None"),
    )

    def get_code(self, fullname: str) -> CodeType:
        """Compile the rewritten source, past the byte code that may lie beside the file."""
        source = self.get_data(self.path).decode("utf-8")
        for pattern, replacement in self.RENAMES + self.ORDERED:
            source = re.sub(pattern, replacement, source)
        return compile(source, self.path, "exec", dont_inherit=True)


class RewritingFinder:
    """Finds the generator's modules where they are installed, and has `RewritingLoader` load them."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = RewritingLoader(fullname, spec.loader.path)
        return spec


def install_import_hook() -> None:
    """Make `import mathematics_dataset` work on today's NumPy and SymPy (any number of calls)."""
    if RewritingFinder not in sys.meta_path:
        sys.meta_path.insert(0, RewritingFinder)


def versions() -> dict[str, str]:
    """Return the versions that the questions depend on; DataError if the generator is not installed."""
    try:
        return {name: version(name) for name in ("mathematics-dataset", "numpy", "sympy")}
    except PackageNotFoundError as error:
        raise DataError(
            f"source=generator: the package {error.name} is not installed. Install it (pip install 'ntl[suite]'), "
            "or use source=download or source=local folder=<path>."
        ) from None


@functools.cache
def official_modules() -> dict[str, dict[str, Any]]:
    """Return regime → module → function, set up by the generator's own code with its split of train by difficulty."""
    install_import_hook()
    from absl import flags
    from mathematics_dataset import generate

    flags.FLAGS([PACKAGE])  # the generator reads its options from absl's flags: all at their defaults
    generate.init_modules(train_split=True)
    return {regime: dict(modules) for regime, modules in generate.filtered_modules.items()}


@dataclass(frozen=True)
class Draw:
    """`count` questions of a module, from number `start` on. Streams differ in their seeds."""

    stream: str
    regime: str
    module: str
    count: int
    start: int = 0

    def chunks(self) -> Iterator[Draw]:
        for start in range(self.start, self.start + self.count, CHUNK):
            count = min(CHUNK, self.start + self.count - start)
            yield Draw(self.stream, self.regime, self.module, count, start)


class TookTooLong(BaseException):  # no Exception: SymPy catches those in places
    pass


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in the block after `seconds`: in the main thread where SIGALRM exists, nowhere else."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TookTooLong(f"no question after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def set_seeds(*key: Any) -> None:
    """Seed every random generator that a question may draw from, from a hash over `key`."""
    import random

    import numpy as np
    from sympy.core.random import seed as seed_sympy

    number = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    seed_sympy(number)


def questions(draw: Draw, seed: int) -> dict[str, Any]:
    """Make the questions of `draw` in this process.

    Returns `rows`: pairs of question and answer, and `skipped`: how many draws were left out and why. As in the
    official files, questions over 160 and answers over 30 characters are drawn again. A seed at which the generator
    fails or hangs is skipped for the next one.
    """
    modules = official_modules()
    from mathematics_dataset import generate

    function = modules[draw.regime][draw.module]
    rows, skipped = [], Counter()
    for index in range(draw.start, draw.start + draw.count):
        for attempt in range(ATTEMPTS):
            set_seeds(seed, draw.stream, draw.regime, draw.module, index, attempt)
            try:
                with time_limit(SECONDS_PER_QUESTION):
                    problem, too_long = generate.sample_from_module(function)
                    rows.append((str(problem.question), str(problem.answer)))
                skipped["too long"] += too_long
                break
            except (Exception, TookTooLong) as error:
                skipped[type(error).__name__] += 1
                last = error
        else:
            raise DataError(
                f"{draw.regime}/{draw.module}: question {index} failed with {ATTEMPTS} seeds, the last time with "
                f"{type(last).__name__}: {last}. Versions: {versions()}; expected those of requirements.lock."
            )
    return {"rows": rows, "skipped": {reason: count for reason, count in skipped.items() if count}}


class Worker:
    """A process that makes one chunk after another."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "data_prep.generator"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, encoding="utf-8",
        )  # fmt: skip

    def __call__(self, draw: Draw, seed: int) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps({"draw": asdict(draw), "seed": seed}) + "\n")
            self.process.stdin.flush()
            reply = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            raise DataError(
                f"a worker of the generator ended while making {draw.regime}/{draw.module} (exit status "
                f"{self.process.wait()}). Run again; with workers=1 if memory is short."
            ) from None
        if "error" in reply:
            raise DataError(reply["error"])
        return reply

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):  # what was not read by a worker that died
            self.process.stdin.close()
        self.process.stdout.close()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def generate(draws: Iterable[Draw], seed: int, workers: int | None = None) -> Iterator[tuple[Draw, dict[str, Any]]]:
    """Yield each chunk of `draws` with what `questions` returns for it, in order, made by `workers` processes.

    `workers` is at most one per chunk, and as many as there are cores if None.
    """
    versions()
    chunks = [chunk for draw in draws for chunk in draw.chunks()]
    count = max(1, min(workers or cores(), len(chunks)))
    local, started = threading.local(), []

    def start() -> None:
        local.worker = Worker()
        started.append(local.worker)

    pool = ThreadPoolExecutor(count, initializer=start)  # a thread waits for each process
    try:
        yield from zip(chunks, pool.map(lambda chunk: local.worker(chunk, seed), chunks), strict=True)
    finally:  # also when interrupted: the processes first, so that no thread waits for one
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in started:
            worker.close()
        pool.shutdown()


def main() -> None:
    """Answer each line of the standard input (a draw) with a line on the standard output (its questions)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    replies, sys.stdout = sys.stdout, sys.stderr  # nothing else may be printed between the replies
    for line in sys.stdin:
        task = json.loads(line)
        try:
            reply = questions(Draw(**task["draw"]), task["seed"])
        except Exception as error:
            reply = {"error": str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
