"""Where the passages of subsets come from, against their corpora."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.subsets.columns import check_positive, column

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset


@dataclass(frozen=True)
class SourceShare:
    """Of one subset and one source.

    source: None for all others together, "" for passages without one; others: how many sources are together; share,
    corpus_share: of the subset's and of its corpus's passages, from 0 to 1; ratio: of the two. The last two are None where
    the corpus's sources are not known; ratio also where the corpus has none of them.
    """

    subset: str
    source: str | None
    others: int
    passages: int
    share: float
    corpus_share: float | None
    ratio: float | None


def source_shares(subsets: Mapping[str, Subset], top: int = 10) -> list[SourceShare]:
    """By source, the largest shares (summed over the subsets) first, and then by subset.

    Args:
        top: sources; the others, those without a passage in any subset too, are one more.

    Raises:
        AnalysisError: top below 1, no subset, or an empty one.
    """
    check_positive(top=top)
    if not subsets:
        raise AnalysisError("There is no subset to show.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: it has no sources.")
    found = {name: _count(subset) for name, subset in subsets.items()}
    corpora = {name: subset.manifest["counts"].get("sources") or {} for name, subset in subsets.items()}
    weight: dict[str, float] = {}
    for name, counts in found.items():
        for source, count in counts.items():
            weight[source] = weight.get(source, 0.0) + count / len(subsets[name])
    order = sorted(
        {*weight, *(source for counts in corpora.values() for source in counts)}, key=lambda s: (-weight.get(s, 0.0), s)
    )
    groups: list[tuple[str | None, list[str]]] = [(source, [source]) for source in order[:top]]
    if order[top:]:
        groups.append((None, order[top:]))
    return [_share(name, source, members, found[name], corpora[name]) for source, members in groups for name in subsets]


def _share(
    subset: str, source: str | None, members: list[str], here: Mapping[str, int], there: Mapping[str, int]
) -> SourceShare:
    passages = sum(here.get(member, 0) for member in members)
    share = passages / sum(here.values())
    of_corpus = sum(there.get(member, 0) for member in members) / sum(there.values()) if there else None
    others = len(members) if source is None else 0
    return SourceShare(subset, source, others, passages, share, of_corpus, share / of_corpus if of_corpus else None)


def _count(subset: Subset) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for pair in pc.value_counts(column(subset, "source")).to_pylist():
        counts[pair["values"] or ""] += pair["counts"]
    return dict(counts)
