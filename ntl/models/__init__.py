"""Models: T5 and GPT-2 from the hub, from a local folder, or from scratch."""

from ntl.models.build import (
    NotAvailable,
    build,
    check,
    describe,
    find,
    fingerprint,
    model_type,
    tokenizer_source,
)
from ntl.models.initialisation import initialise

__all__ = [
    "NotAvailable",
    "build",
    "check",
    "describe",
    "find",
    "fingerprint",
    "initialise",
    "model_type",
    "tokenizer_source",
]
