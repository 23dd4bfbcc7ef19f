"""run.py in float64, where what several processes compute can be told from rounding: `double.py ARGUMENT …`."""

import runpy
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

torch.set_default_dtype(torch.float64)
runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
