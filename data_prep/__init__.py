"""Preparation of data sets: `python -m data_prep NAME`, or `data_prep.load(NAME).prepare("data")`."""

from data_prep.base import DataError, Dataset, PreparedData, load, names

__all__ = ["DataError", "Dataset", "PreparedData", "load", "names"]
