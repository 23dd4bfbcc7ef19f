"""What every option means, from where it is declared: `python -m experiments options [GROUP …]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omegaconf import OmegaConf

from experiments.config.compose import CONF, DECLARED, ConfigurationError, choices
from ntl.options import declared_by, described_options, options_of
from ntl.settings import LoraSettings
from ntl.text import did_you_mean


def options(groups: Sequence[str] = ()) -> str:
    """Return the options of configuration groups (default: all) with default, meaning and valid values.

    Raises:
        ConfigurationError: an unknown group.
    """
    for group in groups:
        if group not in DECLARED:
            raise ConfigurationError(did_you_mean("group", group, DECLARED))
    return "\n".join(line for group in groups or DECLARED for line in _options(group))


def _options(group: str) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}  # (prefix of the keys, class) -> the choices that have it
    for choice in choices(group):
        for prefix, target in _targets(group, choice).items():
            found.setdefault((prefix, target), []).append(choice)
    for (prefix, target), having in found.items():
        if declared := declared_by(target):
            yield f"{group}={','.join(having)}"
            yield from described_options({key: one for key, one in declared.items() if key != "lora"}, prefix)
            if "lora" in declared:
                yield from described_options(options_of(LoraSettings), f"{prefix}lora.")


def _targets(group: str, choice: str) -> dict[str, str]:
    """Return the classes that a choice and its bases name, by the prefix of their options' keys."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{choice}.yaml"))
    found: dict[str, str] = {}
    for base in node.get("defaults", ()):
        if base != "_self_":
            found |= _targets(group, base)
    for prefix, part in ((f"{group}.", node), (f"{group}.encoding_options.", node.get("encoding_options", {}))):
        if "_target_" in part:
            found[prefix] = part["_target_"]
    return found
