"""Models: T5 and GPT-2 from the hub, from a local folder, or from scratch."""

from ntl.models.build import build, describe
from ntl.models.initialisation import initialise

__all__ = ["build", "describe", "initialise"]
