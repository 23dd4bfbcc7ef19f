"""Real tokenizers and data sets, where the checkout has them: tests that use them skip elsewhere."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared(path: str) -> Path:
    """Return `path` below the folder of real data, or skip the calling test where it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"{path} is not beside this checkout: real tokenizers and data sets are no part of the repository")
    return found
