"""Reading from the model hub: from the hub where it answers, from the local cache where it does not."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

PATIENCE = 10  # seconds until a hub that does not answer counts as out of reach, if HF_HUB_ETAG_TIMEOUT is not longer


def options(identity: str, revision: str | None) -> dict[str, Any]:
    """Return the arguments of the library's `from_pretrained` for the repository `identity` at `revision` (None: the
    newest): its commit, so that all that a process reads is from one.

    Where the hub cannot be reached only the local cache is read: the library would repeat its attempts for most of a
    minute with every file. Code that a repository brings along is never run.
    """
    return {
        "revision": commit(identity, revision) or revision or "main",
        "local_files_only": out_of_reach() is not None,
        "trust_remote_code": False,
    }


def out_of_reach() -> str | None:
    """Return why the hub cannot be asked, or None if it answers, whatever it answers. Asked once a minute at most."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return _ask(constants.ENDPOINT, max(PATIENCE, constants.HF_HUB_ETAG_TIMEOUT), int(time.monotonic() // 60))


@functools.lru_cache(maxsize=1)
def _ask(endpoint: str, patience: float, minute: int) -> str | None:
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=patience, follow_redirects=False)
    except Exception as error:  # of whichever client the library uses: refused, no route, no name, no answer in time
        return f"{type(error).__name__}: {str(error) or f'no answer within {patience:g} s'}"
    return None


def commit(identity: str, revision: str | None) -> str | None:
    """Return the commit of the repository `identity` that `revision` is: on the hub, or where that is out of reach, in
    the local cache; None where neither has it. It stays the same as long as the process lives."""
    try:
        return _commit(identity, revision)
    except (OSError, ValueError):  # asked again the next time
        return None


@functools.cache
def _commit(identity: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_download

    # A snapshot's folder is named after its commit; by its revision's name, so that the cache notes what that was.
    path = hf_hub_download(identity, "config.json", revision=revision, local_files_only=out_of_reach() is not None)
    return Path(path).parent.name


def reason(error: Exception) -> str:
    """Return in one line why something could not be read from the hub."""
    from huggingface_hub import constants

    away = out_of_reach()
    if away is not None:
        return f"the hub {constants.ENDPOINT} is out of reach ({away}), and its local cache has no whole copy"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
