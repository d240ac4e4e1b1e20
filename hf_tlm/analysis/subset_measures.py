"""Measures of subsets: sources, size against K, overlap, rank against influence, case studies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hf_tlm.analysis.arguments import check_positive
from hf_tlm.errors import AnalysisError
from hf_tlm.retrieval.report import MarkedTerms, Spans, how_found, mark_shared, origin, spans_to_markdown
from hf_tlm.retrieval.subset import check_subset, check_subsets
from hf_tlm.tasks.spec import check_task
from hf_tlm.utils.shown import for_markdown

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def column(subset: Subset, name: str) -> pa.ChunkedArray:
    """Return a column of all rows as an Arrow array, without a Python object per row."""
    return subset.dataset.select_columns(name).with_format("arrow")[:][name]


def numbers(subset: Subset, name: str) -> np.ndarray:
    """Return a column as float64 [rows], NaN for null."""
    return column(subset, name).cast("float64").to_numpy()


def ranked(subset: Subset) -> tuple[Subset, np.ndarray]:
    """Return the passages that have a rank, and their best ranks over the queries, int64 [rows], from 1.

    A subset of several that were put together may have passages without a rank, drawn at random.

    Raises:
        AnalysisError: the subset is empty, or its passages have no ranks.
    """
    if len(subset) == 0:
        raise AnalysisError("The subset is empty.")
    if subset.manifest["retriever"] == "random":
        raise AnalysisError("The passages were drawn at random: they have no rank and no score.")
    if subset.manifest.get("rank_column") is False:
        raise AnalysisError("The released file has no ranks: the passages are numbered in the order of the file.")
    rank = numbers(subset, "rank")
    rows = np.flatnonzero(~np.isnan(rank))
    if not len(rows):
        raise AnalysisError("None of the passages has a rank.")
    if len(rows) < len(rank):
        subset = replace(subset, dataset=subset.dataset.select(rows))
    return subset, rank[rows].astype(np.int64)


@dataclass(frozen=True)
class SourceShare:
    """The share of one source in one subset.

    Attributes:
        source: name; None for all other sources together, "" for passages without a source.
        others: number of sources that are grouped under None.
        share: share of the subset's passages, from 0 to 1.
        corpus_share: share of the corpus's passages; None if the corpus's sources are unknown.
        ratio: share / corpus_share; None if the corpus's sources are unknown or it has no passage of this source.
    """

    subset: str
    source: str | None
    others: int
    passages: int
    share: float
    corpus_share: float | None
    ratio: float | None


def source_shares(subsets: Mapping[str, Subset], top: int = 10) -> list[SourceShare]:
    """Return the share of each source in each subset, sorted by the sources' shares (summed over subsets), largest first.

    Args:
        top: number of sources; all others, also those without a passage in any subset, are grouped into one.

    Raises:
        AnalysisError: top is below 1, there is no subset, or one is empty.
    """
    check_positive(top=top)
    check_subsets(subsets)
    if not subsets:
        raise AnalysisError("subsets: expected at least one subset; received none.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: it has no sources.")
    source_counts = {name: _count_sources(subset) for name, subset in subsets.items()}
    corpora = {name: subset.manifest["counts"].get("sources") or {} for name, subset in subsets.items()}
    weight: dict[str, float] = defaultdict(float)
    for name, counts in source_counts.items():
        for source, count in counts.items():
            weight[source] += count / len(subsets[name])
    order = sorted({*weight}.union(*corpora.values()), key=lambda source: (-weight[source], source))
    groups: list[tuple[str | None, list[str]]] = [(source, [source]) for source in order[:top]]
    if order[top:]:
        groups.append((None, order[top:]))
    return [
        _source_share(name, source, members, source_counts[name], corpora[name])
        for source, members in groups
        for name in subsets
    ]


def _source_share(
    subset: str, source: str | None, members: list[str], subset_counts: Mapping[str, int], corpus_counts: Mapping[str, int]
) -> SourceShare:
    passages = sum(subset_counts.get(member, 0) for member in members)
    share = passages / sum(subset_counts.values())
    corpus_share = (
        sum(corpus_counts.get(member, 0) for member in members) / sum(corpus_counts.values()) if corpus_counts else None
    )
    others = len(members) if source is None else 0
    return SourceShare(subset, source, others, passages, share, corpus_share, share / corpus_share if corpus_share else None)


def _count_sources(subset: Subset) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for pair in pc.value_counts(column(subset, "source")).to_pylist():
        counts[pair["values"] or ""] += pair["counts"]
    return dict(counts)


@dataclass(frozen=True)
class SizeAgainstK:
    """How many passages a smaller K would have retrieved, and how they score.

    Attributes:
        k: int64 [K], 1 .. K.
        passages: int64 [K], size of the union of all queries' top k.
        score, deviation: float64 [K], mean and standard deviation of the BM25 score of the passages whose best rank is k,
            NaN if there are none.
    """

    k: np.ndarray
    passages: np.ndarray
    score: np.ndarray
    deviation: np.ndarray


def size_against_k(subset: Subset) -> SizeAgainstK:
    """Compute the exact size of the union of the queries' hits for every K up to the subset's.

    A passage is in the union of the top k if its best rank is k or better. Passages that were removed (overlaps with
    held-out texts, near-duplicates) are not counted.

    A passage's score is its best over all queries, not always that of the query that ranked it best.

    Raises:
        AnalysisError: the subset is a selection from what was retrieved, or it has no ranks.
    """
    check_subset(subset)
    if selection := subset.manifest.get("selection"):
        raise AnalysisError(
            f"The subset is a selection ({selection['size']:,} of {selection['of']:,} passages by {selection['method']}); "
            "the size at a smaller K is known only for the complete subset."
        )
    subset, rank = ranked(subset)
    counts = np.bincount(rank, minlength=(subset.manifest.get("top_k") or 0) + 1)[1:]
    score = numbers(subset, "score")
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.bincount(rank, score, len(counts) + 1)[1:]
        mean = total / counts
        square = np.bincount(rank, (score - mean[rank - 1]) ** 2, len(counts) + 1)[1:]
        return SizeAgainstK(np.arange(1, len(counts) + 1), counts.cumsum(), mean, np.sqrt(square / counts))


@dataclass(frozen=True)
class Overlap:
    """Overlap of N subsets; in the matrices, rows are subsets A and columns subsets B.

    Attributes:
        passages: int64 [N, N], number of passages in both; on the diagonal, in A.
        jaccard: float64 [N, N], passages in both, divided by passages in either.
        containment: float64 [N, N], share of A's passages that are in B.
        per_query: float64 [N, N], mean over queries of the Jaccard index of their passages; NaN for subsets without queries
            or of different tasks. A query's passages are those that it ranked better than any other query did, as a
            retrieval stores nothing else. Queries without a passage in A or B are not counted.
    """

    names: Sequence[str]
    passages: np.ndarray
    jaccard: np.ndarray
    containment: np.ndarray
    per_query: np.ndarray


def subset_overlap(subsets: Mapping[str, Subset]) -> Overlap:
    """Compute the overlap of all pairs of subsets by the ids of their passages.

    Raises:
        AnalysisError: there are fewer than two subsets; one is empty; their corpora differ or are unknown, so that an id may
            denote different passages.
    """
    check_subsets(subsets)
    if len(subsets) < 2:
        raise AnalysisError(f"Overlap needs at least two subsets; received {len(subsets)}.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: nothing can overlap with it.")
    if len(corpora := by_corpus(subsets)) > 1:
        raise AnalysisError(f"Ids of different corpora cannot be compared: {describe_corpora(corpora, subsets)}.")
    ids = _encode_strings([column(subset, "id") for subset in subsets.values()])
    queries = _encode_strings([column(subset, "best_query") for subset in subsets.values()])
    tasks = [subset.manifest["task"]["fingerprint"] for subset in subsets.values()]
    size = 1 + max(int(passages.max()) for passages in ids)
    sets = [np.unique(passages) for passages in ids]
    # One number for each (query, passage), sorted; empty for subsets without queries.
    hits = [np.unique(query[query >= 0] * size + passages[query >= 0]) for passages, query in zip(ids, queries, strict=True)]
    both = np.diag([len(passages) for passages in sets])
    per_query = np.diag([1.0 if len(passages) else np.nan for passages in hits])
    for a, b in combinations(range(len(sets)), 2):
        both[a, b] = both[b, a] = len(np.intersect1d(sets[a], sets[b], assume_unique=True))
        same_task = tasks[a] == tasks[b] and tasks[a] is not None
        per_query[a, b] = per_query[b, a] = _query_jaccard(hits[a], hits[b], size) if same_task else np.nan
    sizes = both.diagonal()
    return Overlap(list(subsets), both, both / (sizes[:, None] + sizes - both), both / sizes[:, None], per_query)


def by_corpus(subsets: Mapping[str, Subset]) -> list[list[str]]:
    """Group the names of subsets by the fingerprint of their corpus; a subset of an unknown corpus is a group of its own."""
    groups: dict[str, list[str]] = {}
    for name, subset in subsets.items():
        fingerprint = subset.manifest["corpus"]["fingerprint"]
        groups.setdefault(f"unknown to {name}" if fingerprint is None else f"={fingerprint}", []).append(name)
    return list(groups.values())


def describe_corpora(groups: Sequence[Sequence[str]], subsets: Mapping[str, Subset]) -> str:
    """Return a text that says which corpus each group of subsets is from."""
    descriptions = []
    for names in groups:
        corpus = subsets[names[0]].manifest["corpus"]
        descriptions.append(f"{', '.join(names)} of {corpus['name']} (fingerprint {corpus['fingerprint'] or 'unknown'})")
    return "; ".join(descriptions)


def _encode_strings(columns: Sequence[pa.ChunkedArray]) -> list[np.ndarray]:
    """Encode strings as int64 [rows] per column: equal numbers for equal strings, -1 for null."""
    combined = pa.chunked_array(
        [chunk.cast("large_string") for column in columns for chunk in column.chunks], "large_string"
    )
    codes = combined.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    return np.split(codes, np.cumsum([len(column) for column in columns])[:-1])


def _query_jaccard(first: np.ndarray, second: np.ndarray, size: int) -> float:
    """Return the mean Jaccard index per query.

    Args:
        first, second: int64, sorted values of query * size + passage.
    """
    if not len(first) or not len(second):
        return float("nan")
    queries = 1 + max(first[-1], second[-1]) // size
    both = np.bincount(np.intersect1d(first, second, assume_unique=True) // size, minlength=queries)
    either = np.bincount(first // size, minlength=queries) + np.bincount(second // size, minlength=queries) - both
    return float((both[either > 0] / either[either > 0]).mean())


@dataclass(frozen=True)
class RankBin:
    """Influence of the passages whose best rank is from first to last; quantiles: at `QUANTILES`."""

    first: int
    last: int
    passages: int
    mean: float
    deviation: float
    quantiles: Sequence[float]


@dataclass(frozen=True)
class RankInfluence:
    """How the influence of passages depends on their rank.

    Attributes:
        spearman: correlation of rank (1 is the best) and influence; below 0 if better ranks have more influence, NaN if one
            of the two does not vary.
        passages: number of selected passages, which have an influence.
        of: number of passages that they were selected from.
    """

    bins: Sequence[RankBin]
    spearman: float
    passages: int
    of: int


def rank_against_influence(subset: Subset, bins: int = 10) -> RankInfluence:
    """Compute the distribution of influence by groups of ranks.

    Only the selected passages have an influence, so the relation to rank is measured among them alone. Ties share their
    mean rank in the correlation.

    Args:
        bins: number of groups of about equal size. Passages of the same rank share a group, so there may be fewer groups.

    Raises:
        AnalysisError: bins is below 1; the passages have no influence, or no rank.
    """
    from scipy.stats import spearmanr

    check_positive(bins=bins)
    check_subset(subset)
    if "influence" not in subset.dataset.column_names:
        raise AnalysisError("The passages have no influence: the subset was not selected by ISS.")
    subset, rank = ranked(subset)
    influence = numbers(subset, "influence")
    values, value_index, counts = np.unique(rank, return_inverse=True, return_counts=True)
    # The middle of a rank's passages decides its group.
    group = ((counts.cumsum() - counts / 2) * bins // len(rank)).astype(np.int64)
    rank_bins = []
    for index in np.unique(group):
        members, group_influence = values[group == index], influence[group[value_index] == index]
        quantiles = np.quantile(group_influence, QUANTILES).tolist()
        span = int(members[0]), int(members[-1])
        rank_bins.append(
            RankBin(*span, len(group_influence), float(group_influence.mean()), float(group_influence.std()), quantiles)
        )
    varies = len(values) > 1 and np.ptp(influence) > 0
    spearman = float(spearmanr(rank, influence).statistic) if varies else float("nan")
    return RankInfluence(rank_bins, spearman, len(rank), (subset.manifest.get("selection") or {}).get("of", len(rank)))


@dataclass(frozen=True)
class RetrievedPassage:
    """A passage of a case study.

    Attributes:
        score: best BM25 score over all queries.
        text: pieces (text, whether its words are in the task text too), not escaped.
    """

    id: str
    source: str | None
    rank: int
    score: float
    n_queries: int
    text: Spans


@dataclass(frozen=True)
class CaseStudy:
    """A task text with its passages; query: pieces (text, whether its words are in a passage too), not escaped."""

    query_id: str
    query: Spans
    passages: Sequence[RetrievedPassage]


def case_studies(subset: Subset, task: Task, number: int = 10, *, passages: int = 2, seed: int = 0) -> list[CaseStudy]:
    """Draw task texts at random, and return them with their passages, with shared words marked.

    A text's passages are those that it ranked better than any other text did, as a retrieval stores nothing else. Texts
    with at least `passages` of them are drawn first. Long texts are cut to their parts with the most shared words. Words
    are compared as in the retrieval, stemmed if it stemmed; stop words are never marked.

    Args:
        number: number of texts; fewer if not enough have a passage. With one seed, a smaller draw is a prefix of a larger
            one.
        passages: most passages per text, best ranks first.

    Raises:
        AnalysisError: a number is below 1; the passages have no queries (random, released); the subset is of another task.
        RetrievalError: a query's example is not in the task.
    """
    check_subset(subset)
    check_task(task)
    check_positive(number=number, passages=passages)
    subset, rank = ranked(subset)
    made_for = subset.manifest["task"]
    if made_for["fingerprint"] not in (None, task.fingerprint):
        raise AnalysisError(
            f"The subset was retrieved for {made_for['name']} (fingerprint {made_for['fingerprint']}), not for {task.name} "
            f"(fingerprint {task.fingerprint})."
        )
    queries = column(subset, "best_query").combine_chunks().dictionary_encode()
    if queries.null_count == len(queries):
        raise AnalysisError("The subset does not record which task texts its passages were retrieved for.")
    query_index = queries.indices.fill_null(-1).to_numpy()
    # Rows of equal rank are sorted by score in the subset, and lexsort is stable.
    order = np.lexsort((rank, query_index))
    order = order[np.searchsorted(query_index[order], 0) :]
    counts = np.bincount(query_index[order])
    starts = np.cumsum(counts) - counts
    chosen = np.random.default_rng(seed).permutation(len(counts))
    chosen = chosen[np.argsort(counts[chosen] < passages, kind="stable")][:number]
    rows = [order[starts[query] : starts[query] + min(counts[query], passages)] for query in chosen]
    return _build_studies(subset, task, rows)


def case_studies_to_markdown(studies: Sequence[CaseStudy]) -> str:
    """Format case studies as Markdown, with shared words in bold and the texts escaped."""
    blocks = []
    for number, study in enumerate(studies, 1):
        lines = [f"### {number}", f"> **Task text** {for_markdown(study.query_id)}: {spans_to_markdown(study.query)}"]
        for passage in study.passages:
            retrieval, source = how_found(vars(passage), passage.score), origin(vars(passage))
            lines.append(f"> **Passage**, {retrieval} ({source}): {spans_to_markdown(passage.text)}")
        blocks.append("\n\n".join([lines[0], "\n>\n".join(lines[1:])]))
    return "\n\n".join(blocks) + "\n"


def _build_studies(subset: Subset, task: Task, rows: Sequence[np.ndarray]) -> list[CaseStudy]:
    """Build the case studies; rows: the passages' row numbers, one array per text."""
    chosen = replace(subset, dataset=subset.dataset.select(np.concatenate(rows)))
    examples = chosen.examples(task, len(chosen))
    terms_of = MarkedTerms.of(subset.manifest)
    studies, end = [], 0
    for text_rows in rows:
        start, end = end, end + len(text_rows)
        shown = chosen.dataset[start:end]
        query, texts = mark_shared(examples[start][0], shown["text"], terms_of)
        columns = (shown[name] for name in ("id", "source", "rank", "score", "n_queries"))
        passages = [RetrievedPassage(*values) for values in zip(*columns, texts, strict=True)]
        studies.append(CaseStudy(shown["best_query"][0], query, passages))
    return studies
