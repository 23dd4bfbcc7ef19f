"""Data sets of the Hugging Face hub, through the `datasets` package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from data_prep.base import DataError, Dataset, Work
from ntl.hub import out_of_reach
from ntl.options import option, redeclared


@dataclass
class HubDataset(Dataset):
    """Base of data sets that a hub has: source=hub reads the repository `hub` at `revision` (null: the newest)."""

    config: ClassVar[str]  # of the repository

    source: str = redeclared(Dataset, "source", "hub")
    hub: str = option("", "repository", identity=False)
    revision: str | None = option(None, "of the repository; null: the newest, which is recorded", identity=False)

    def check(self) -> None:
        super().check()
        if not self.hub or not isinstance(self.hub, str):
            raise ValueError(f"hub: got {self.hub!r}, expected the id of a data set repository.")

    def stamp(self) -> Any:
        return [self.hub, self.revision] if self.source == "hub" else super().stamp()

    def hub_splits(self, work: Work, names: Iterable[str]) -> list[Iterable[Mapping[str, Any]]]:
        """Return the rows of splits of the repository, in the order of `names`; DataError if they cannot be had."""
        import datasets
        from huggingface_hub.constants import ENDPOINT

        if not work.progress:
            datasets.disable_progress_bars()
        try:
            away = None if datasets.config.HF_HUB_OFFLINE else out_of_reach()
            if away is not None:  # the package itself would repeat its attempts for half a minute
                raise OSError(away)
            builder = datasets.load_dataset_builder(self.hub, self.config, revision=self.revision)
            builder.download_and_prepare()
            splits = [builder.as_dataset(split=name) for name in names]
        except Exception as error:  # whatever the package and the libraries below it raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"{self.name}: cannot load {self.hub} ({self.config}) from the hub {ENDPOINT}: {reason}. Check the "
                "connection and the repository's name (HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 takes what was "
                "downloaded before), or use a copy on this machine: source=local folder=PATH."
            ) from error
        work.source.update(repository=self.hub, config=self.config, revision=builder.hash)
        return splits
