"""Number Token Loss: regression-like losses on the number tokens of language models."""

__version__ = "0.1.0"
