"""Keeping the libraries from reporting what is as it should be."""

from __future__ import annotations

import logging
import warnings


def quiet_libraries() -> None:
    """Turn off the libraries' notes and their progress bars of reading weights."""
    import transformers

    logging.getLogger("accelerate").setLevel(logging.WARNING)  # each file of each checkpoint of a sharded model
    # No model here changes what a block has returned in place; the tests compare gradients with those of a whole model.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
