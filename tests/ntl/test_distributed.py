"""A process that is alone; tests/test_distributed.py has several."""

import subprocess
import sys

PROGRAM = """
import sys
from ntl import distributed

distributed.join()
assert (distributed.started(), distributed.size(), distributed.rank(), distributed.is_first()) == (1, 1, 0, True)
assert distributed.decided(lambda: 5) == distributed.in_turn(lambda: 5) == distributed.highest(5) == 5
assert distributed.gathered(5) == [5] and distributed.share([1, 2, 3]) == [1, 2, 3]
distributed.barrier()
distributed.tell({"message": "it fails"})
assert distributed.told() is None and not distributed.lost(ConnectionError("gloo"))
distributed.leave()
assert not {"torch", "accelerate"} & set(sys.modules)
"""


def test_a_process_that_is_alone_waits_for_nobody_and_loads_no_torch(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
