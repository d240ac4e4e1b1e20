"""What the views read of a subset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.analysis.errors import AnalysisError

if TYPE_CHECKING:
    import pyarrow as pa

    from hf_tlm.retrieval import Subset


def column(subset: Subset, name: str) -> pa.ChunkedArray:
    """A column of all rows, as Arrow has it: no object a row."""
    return subset.dataset.select_columns(name).with_format("arrow")[:][name]


def numbers(subset: Subset, name: str) -> np.ndarray:
    """float64 [rows]; NaN for null."""
    return column(subset, name).cast("float64").to_numpy()


def ranks(subset: Subset) -> np.ndarray:
    """int64 [rows]: best rank over the queries, from 1.

    Raises:
        AnalysisError: the passages have no rank: they were drawn at random, released without, or there are none.
    """
    if len(subset) == 0:
        raise AnalysisError("The subset is empty.")
    if subset.manifest["retriever"] == "random":
        raise AnalysisError("The passages were drawn at random: they have no rank and no score.")
    if subset.manifest.get("rank_column") is False:
        raise AnalysisError("The released file has no ranks: the passages are numbered in its order.")
    return numbers(subset, "rank").astype(np.int64)


def check_positive(**values: int) -> None:
    """Check that values are positive.

    Raises:
        AnalysisError: a value is below 1.
    """
    for name, value in values.items():
        if value < 1:
            raise AnalysisError(f"{name} must be at least 1; received {value}.")
