"""Models: T5 and GPT-2 from the hub, from a local folder, or from scratch."""

from ntl.models.build import NotAvailable, aligned, build, check, describe, find, fingerprint, tokenizer_source
from ntl.models.initialisation import initialise

__all__ = [
    "NotAvailable",
    "aligned",
    "build",
    "check",
    "describe",
    "find",
    "fingerprint",
    "initialise",
    "tokenizer_source",
]
