"""Settings of all tests; the processes that tests start inherit them."""

import os

# One thread each: results are then the same to the bit, and processes side by side do not get in each other's way.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
