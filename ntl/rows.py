"""What travels between data, encodings and layouts: examples as text, and as lists of token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]  # {"question": str, "answer": str, …} as data_prep writes it
Encoded = dict[str, list]  # {"input_ids": [int, …], …}: a text in an encoding; all lists are of the same length
