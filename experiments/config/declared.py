"""Hydra reads the yaml files below conf/ through here: a node with a `_target_` gets its declared options' defaults.

So a yaml file states only what differs, and `--cfg job` shows every option.
"""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from ntl import options

FIRST = ("name", "_target_", "encoding")  # of a node's keys, for who reads it


def complete(node: DictConfig) -> DictConfig:
    """Return a node, and the nodes in it, with the defaults that the class of its `_target_` declares below its own.

    Raises:
        ValueError: there is no class called `_target_`.
    """
    nested: dict[str, Any] = {}
    for key in node:
        value = None if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key) else node[key]
        if isinstance(value, DictConfig):
            nested[key] = complete(value)
    declared = options.declaration(node["_target_"]) if "_target_" in node else None
    if not nested and declared is None:
        return node
    first = {key: node[key] for key in FIRST if key in node and declared}
    return OmegaConf.merge(first, options.defaults(declared) if declared else {}, node, nested)


class DeclaredConfigSource(FileConfigSource):
    """A folder of yaml files, each completed by what its `_target_` declares."""

    @staticmethod
    def scheme() -> str:
        return "declared"

    def load_config(self, config_path: str) -> ConfigResult:
        result = super().load_config(config_path)
        result.config = complete(result.config)
        return result


class DeclaredSearchPath(SearchPathPlugin):
    """Has the suite's own folder of yaml files read by `DeclaredConfigSource`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for entry in search_path.get_path():
            if entry.provider == "main":
                entry.path = f"{DeclaredConfigSource.scheme()}://{entry.path.removeprefix('file://')}"


def register() -> None:
    """Make Hydra read yaml files this way. Calling it twice is harmless."""
    Plugins.instance().register(DeclaredConfigSource)
    Plugins.instance().register(DeclaredSearchPath)
