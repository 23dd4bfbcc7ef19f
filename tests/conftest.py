"""Settings of all tests; the processes that tests start inherit them."""

import os
import signal
from collections import Counter

# One thread each: results are then the same to the bit, and processes side by side do not get in each other's way.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A shell has what it starts in the background ignore Ctrl-C, and so would every process that a test sends it to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """Say how much was done by tests that count it: `record_property` of a number."""
    counts = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":  # the last report of a test has all that it counted
                counts.update(dict(report.user_properties))
    for what, count in counts.items():
        terminalreporter.write_line(f"{what}: {count}")
