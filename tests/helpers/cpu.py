"""CPU time of what a test starts: unlike wall-clock time it does not depend on what else the machine does."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if this process and the child processes that end in the block use more CPU time than `seconds`."""
    before = _used()
    yield
    used = _used() - before
    assert used < seconds, f"{used:.1f} CPU-seconds, expected less than {seconds:g}"


def _used() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)
