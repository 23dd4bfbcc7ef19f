"""Keeps user names, host names, secrets and absolute paths out of what leaves the machine."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_URL_LOGIN = re.compile(r"((?<!\w)\w+://)[^/\s:@]+(?::[^/\s@]*)?@")
_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|wandb_v1_)[\w-]{16,}")
# A path of at least one folder; in quotes it may hold spaces. Not the rest of a URL, of a relative path, or "km/h".
_QUOTED_PATH = re.compile(r"""(?P<quote>['"])(?:/|[A-Za-z]:\\)[^'"\n]*[/\\](?P<name>[^'"/\\\n]*)(?P=quote)""")
_PATH = re.compile(r"(?<![\w.~:/…>-])(?:/|[A-Za-z]:\\)(?:[^\s'\"/\\:;,|]+[/\\])+(?P<name>[^\s'\"/\\:;,|)\]}]*)")
_PUBLIC_NAMES = {"", "root", "user", "localhost"}  # say nothing about anyone


def without_paths(text: str) -> str:
    """Return `text` with absolute paths cut to `./…` (below the working folder), `~/…`, or `…/<last part>`."""
    text = text.replace("file://", "")
    for folder, short in ((str(Path.cwd()), "."), (str(Path.home()), "~")):
        if len(folder) > 1:
            text = re.sub(re.escape(folder) + r"(?=$|[/\\\s'\":;,)\]}])", lambda _, short=short: short, text)
    text = _QUOTED_PATH.sub(lambda found: f"{found['quote']}…/{found['name']}{found['quote']}", text)
    return _PATH.sub(lambda found: f"…/{found['name']}", text)


def without_names(text: str) -> str:
    """Return free text without secrets of the environment, absolute paths, user name and host name."""
    secrets = [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value.strip()) >= 8]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "<secret>")
    text = without_paths(_TOKEN.sub("<secret>", _URL_LOGIN.sub(r"\1", text)))
    host = socket.gethostname()
    for name, stand_in in ((host, "<host>"), (host.partition(".")[0], "<host>"), (_user(), "<user>")):
        if name.lower() not in _PUBLIC_NAMES:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stand_in, text)
    return text


def scrub(value: Any, clean=without_paths) -> Any:
    """Apply `clean` to every string below `value` (nested mappings and lists; keys stay as they are)."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: scrub(item, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(item, clean) for item in value]
    return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return ""
