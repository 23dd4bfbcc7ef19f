"""Models: T5 and GPT-2 from the hub, from a local folder, or from scratch."""

from ntl.models.build import build, check, describe, fingerprint, tokenizer_source
from ntl.models.initialisation import initialise

__all__ = ["build", "check", "describe", "fingerprint", "initialise", "tokenizer_source"]
