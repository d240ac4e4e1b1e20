"""What is counted in subsets: sources, size against K, passages in common, rank against influence, case studies."""

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
    """A column of all rows, as Arrow has it: no object a row."""
    return subset.dataset.select_columns(name).with_format("arrow")[:][name]


def numbers(subset: Subset, name: str) -> np.ndarray:
    """float64 [rows]; NaN for null."""
    return column(subset, name).cast("float64").to_numpy()


def ranks(subset: Subset) -> np.ndarray:
    """int64 [rows]: best rank over the queries, from 1; an AnalysisError where passages have none, or there are none."""
    if len(subset) == 0:
        raise AnalysisError("The subset is empty.")
    if subset.manifest["retriever"] == "random":
        raise AnalysisError("The passages were drawn at random: they have no rank and no score.")
    if subset.manifest.get("rank_column") is False:
        raise AnalysisError("The released file has no ranks: the passages are numbered in its order.")
    return numbers(subset, "rank").astype(np.int64)


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
    check_subsets(subsets)
    if not subsets:
        raise AnalysisError("There is no subset to show.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: it has no sources.")
    found = {name: _count(subset) for name, subset in subsets.items()}
    corpora = {name: subset.manifest["counts"].get("sources") or {} for name, subset in subsets.items()}
    weight: dict[str, float] = defaultdict(float)
    for name, counts in found.items():
        for source, count in counts.items():
            weight[source] += count / len(subsets[name])
    order = sorted({*weight}.union(*corpora.values()), key=lambda source: (-weight[source], source))
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


@dataclass(frozen=True)
class SizeAgainstK:
    """How many passages a smaller K would have retrieved, and how they score.

    Attributes:
        k: int64 [K], 1 .. K.
        passages: int64 [K], in the union of all queries' top k.
        score, deviation: float64 [K], mean and standard deviation of the BM25 score of the passages whose best rank is k,
            NaN where there is none.
    """

    k: np.ndarray
    passages: np.ndarray
    score: np.ndarray
    deviation: np.ndarray


def size_against_k(subset: Subset) -> SizeAgainstK:
    """Compute the size of the union of the queries' hits for every K up to the subset's, exactly.

    A passage is in the union of the top k if its best rank is k or better. Passages that were left out (with held-out texts,
    or near-duplicates) are not counted.

    A passage's score is its best over all queries, not always the one of the query that ranked it best.

    Raises:
        AnalysisError: the subset is a part of what was retrieved; or it has no ranks.
    """
    check_subset(subset)
    if selection := subset.manifest.get("selection"):
        raise AnalysisError(
            f"The subset is a part ({selection['size']:,} of {selection['of']:,} passages by {selection['method']}); what a "
            "smaller K gives is to be seen in the whole."
        )
    rank = ranks(subset)
    counts = np.bincount(rank, minlength=(subset.manifest.get("top_k") or 0) + 1)[1:]
    score = numbers(subset, "score")
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.bincount(rank, score, len(counts) + 1)[1:]
        mean = total / counts
        square = np.bincount(rank, (score - mean[rank - 1]) ** 2, len(counts) + 1)[1:]
        return SizeAgainstK(np.arange(1, len(counts) + 1), counts.cumsum(), mean, np.sqrt(square / counts))


@dataclass(frozen=True)
class Overlap:
    """Of N subsets, A a row and B a column.

    passages: int64 [N, N], how many both have, on the diagonal how many A has; jaccard: float64 [N, N], those that both have
    of those that one of them has; containment: float64 [N, N], the share of A's passages that B has; per_query: float64
    [N, N], the mean over queries of the Jaccard index of their passages, NaN for subsets without queries or of different
    tasks. A query's passages are those that it ranked better than any other query did: nothing else is stored of a
    retrieval. Queries with a passage in one of the two are counted.
    """

    names: Sequence[str]
    passages: np.ndarray
    jaccard: np.ndarray
    containment: np.ndarray
    per_query: np.ndarray


def subset_overlap(subsets: Mapping[str, Subset]) -> Overlap:
    """Overlap of each two subsets by the ids of their passages.

    Raises:
        AnalysisError: fewer than two subsets; an empty one; their corpora are different ones or not known, so that the same
            id would be another passage.
    """
    check_subsets(subsets)
    if len(subsets) < 2:
        raise AnalysisError(f"Overlap is between two or more subsets; received {len(subsets)}.")
    if empty := [name for name, subset in subsets.items() if not len(subset)]:
        raise AnalysisError(f"The subset {empty[0]!r} is empty: nothing can overlap with it.")
    if len(corpora := by_corpus(subsets)) > 1:
        raise AnalysisError(f"Ids of different corpora cannot be compared: {describe_corpora(corpora, subsets)}.")
    ids = _codes([column(subset, "id") for subset in subsets.values()])
    queries = _codes([column(subset, "best_query") for subset in subsets.values()])
    tasks = [subset.manifest["task"]["fingerprint"] for subset in subsets.values()]
    size = 1 + max(int(own.max()) for own in ids)
    sets = [np.unique(own) for own in ids]
    # Of each passage and its query one number, sorted; none where there are no queries.
    hits = [np.unique(query[query >= 0] * size + own[query >= 0]) for own, query in zip(ids, queries, strict=True)]
    both = np.diag([len(own) for own in sets])
    per_query = np.diag([1.0 if len(own) else np.nan for own in hits])
    for a, b in combinations(range(len(sets)), 2):
        both[a, b] = both[b, a] = len(np.intersect1d(sets[a], sets[b], assume_unique=True))
        same_task = tasks[a] == tasks[b] and tasks[a] is not None
        per_query[a, b] = per_query[b, a] = _per_query(hits[a], hits[b], size) if same_task else np.nan
    sizes = both.diagonal()
    return Overlap(list(subsets), both, both / (sizes[:, None] + sizes - both), both / sizes[:, None], per_query)


def by_corpus(subsets: Mapping[str, Subset]) -> list[list[str]]:
    """Names of subsets whose corpora have the same fingerprint; each of an unknown one is alone."""
    found: dict[str, list[str]] = {}
    for name, subset in subsets.items():
        fingerprint = subset.manifest["corpus"]["fingerprint"]
        found.setdefault(f"unknown to {name}" if fingerprint is None else f"={fingerprint}", []).append(name)
    return list(found.values())


def describe_corpora(groups: Sequence[Sequence[str]], subsets: Mapping[str, Subset]) -> str:
    """Whose corpus is which."""
    said = []
    for names in groups:
        corpus = subsets[names[0]].manifest["corpus"]
        said.append(f"{', '.join(names)} of {corpus['name']} (fingerprint {corpus['fingerprint'] or 'unknown'})")
    return "; ".join(said)


def _codes(columns: Sequence[pa.ChunkedArray]) -> list[np.ndarray]:
    """int64 [rows] each: equal numbers for equal strings, -1 for null."""
    whole = pa.chunked_array([chunk.cast("large_string") for own in columns for chunk in own.chunks], "large_string")
    codes = whole.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    return np.split(codes, np.cumsum([len(own) for own in columns])[:-1])


def _per_query(first: np.ndarray, second: np.ndarray, size: int) -> float:
    """Mean Jaccard index; first, second: sorted query * size + passage."""
    if not len(first) or not len(second):
        return float("nan")
    queries = 1 + max(first[-1], second[-1]) // size
    both = np.bincount(np.intersect1d(first, second, assume_unique=True) // size, minlength=queries)
    either = np.bincount(first // size, minlength=queries) + np.bincount(second // size, minlength=queries) - both
    return float((both[either > 0] / either[either > 0]).mean())


@dataclass(frozen=True)
class RankBin:
    """Influence of the passages whose best rank is first .. last; quantiles: of QUANTILES."""

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
        spearman: correlation of rank (1 is the best) and influence, below 0 where better ranks have more influence, NaN
            where one of the two does not vary.
        passages: those with influence.
        of: those that they were selected from.
    """

    bins: Sequence[RankBin]
    spearman: float
    passages: int
    of: int


def rank_against_influence(subset: Subset, bins: int = 10) -> RankInfluence:
    """Distribution of influence by groups of ranks.

    Only the passages that were selected have influence: what is seen is how it goes with rank among them. Ties share their
    mean rank in the correlation.

    Args:
        bins: groups of about as many passages each; passages of the same rank are in one, so that there may be fewer groups.

    Raises:
        AnalysisError: bins below 1; the passages have no influence, or no rank.
    """
    from scipy.stats import spearmanr

    check_positive(bins=bins)
    check_subset(subset)
    if "influence" not in subset.dataset.column_names:
        raise AnalysisError("The passages have no influence: the subset was not selected by ISS.")
    rank = ranks(subset)
    influence = numbers(subset, "influence")
    values, place, counts = np.unique(rank, return_inverse=True, return_counts=True)
    # A rank is where the middle of its passages is.
    group = ((counts.cumsum() - counts / 2) * bins // len(rank)).astype(np.int64)
    found = []
    for own in np.unique(group):
        members, inside = values[group == own], influence[group[place] == own]
        quantiles = np.quantile(inside, QUANTILES).tolist()
        span = int(members[0]), int(members[-1])
        found.append(RankBin(*span, len(inside), float(inside.mean()), float(inside.std()), quantiles))
    varies = len(values) > 1 and np.ptp(influence) > 0
    spearman = float(spearmanr(rank, influence).statistic) if varies else float("nan")
    return RankInfluence(found, spearman, len(rank), (subset.manifest.get("selection") or {}).get("of", len(rank)))


@dataclass(frozen=True)
class RetrievedPassage:
    """text: pieces (text, whether its words are the task text's too), not escaped; score: the best over all queries."""

    id: str
    source: str | None
    rank: int
    score: float
    n_queries: int
    text: Spans


@dataclass(frozen=True)
class CaseStudy:
    """A task text as it was searched with, in pieces (text, whether one of the passages has its words), not escaped."""

    query_id: str
    query: Spans
    passages: Sequence[RetrievedPassage]


def case_studies(subset: Subset, task: Task, number: int = 10, *, passages: int = 2, seed: int = 0) -> list[CaseStudy]:
    """Task texts drawn at random with passages of theirs, words that both have marked.

    A text's passages are those that it ranked better than any other text did: nothing else is stored of a retrieval. Texts
    with so many passages are drawn before others. Long texts are shown by their parts with the most shared words. Words
    are compared as the retrieval did it, stemmed if it stemmed; stop words are never marked.

    Args:
        number: texts, or as many as there are with a passage; of one seed, fewer are the first of more.
        passages: of a text at most, the best ranks first.

    Raises:
        AnalysisError: a number below 1; the passages have no queries (random, released); the subset is of another task.
        RetrievalError: the task lacks a query's example.
    """
    check_subset(subset)
    check_task(task)
    check_positive(number=number, passages=passages)
    rank = ranks(subset)
    made_for = subset.manifest["task"]
    if made_for["fingerprint"] not in (None, task.fingerprint):
        raise AnalysisError(
            f"The subset was retrieved for {made_for['name']} (fingerprint {made_for['fingerprint']}), not for {task.name} "
            f"(fingerprint {task.fingerprint})."
        )
    queries = column(subset, "best_query").combine_chunks().dictionary_encode()
    if queries.null_count == len(queries):
        raise AnalysisError("It is not known which task texts the passages were retrieved for.")
    of = queries.indices.fill_null(-1).to_numpy()
    # The subset's order is by score where ranks are equal.
    order = np.lexsort((rank, of))
    order = order[np.searchsorted(of[order], 0) :]
    counts = np.bincount(of[order])
    starts = np.cumsum(counts) - counts
    drawn = np.random.default_rng(seed).permutation(len(counts))
    drawn = drawn[np.argsort(counts[drawn] < passages, kind="stable")][:number]
    rows = [order[starts[query] : starts[query] + min(counts[query], passages)] for query in drawn]
    return _show(subset, task, rows)


def case_studies_to_markdown(studies: Sequence[CaseStudy]) -> str:
    """Shared words in bold; what stands in the texts is escaped."""
    blocks = []
    for number, study in enumerate(studies, 1):
        lines = [f"### {number}", f"> **Task text** {for_markdown(study.query_id)}: {spans_to_markdown(study.query)}"]
        for passage in study.passages:
            found, place = how_found(vars(passage), passage.score), origin(vars(passage))
            lines.append(f"> **Passage**, {found} ({place}): {spans_to_markdown(passage.text)}")
        blocks.append("\n\n".join([lines[0], "\n>\n".join(lines[1:])]))
    return "\n\n".join(blocks) + "\n"


def _show(subset: Subset, task: Task, rows: Sequence[np.ndarray]) -> list[CaseStudy]:
    """rows: of the passages of each text."""
    chosen = replace(subset, dataset=subset.dataset.select(np.concatenate(rows)))
    examples = chosen.examples(task, len(chosen))
    terms_of = MarkedTerms.of(subset.manifest)
    found, end = [], 0
    for own in rows:
        start, end = end, end + len(own)
        shown = chosen.dataset[start:end]
        query, texts = mark_shared(examples[start][0], shown["text"], terms_of)
        columns = (shown[name] for name in ("id", "source", "rank", "score", "n_queries"))
        passages = [RetrievedPassage(*values) for values in zip(*columns, texts, strict=True)]
        found.append(CaseStudy(shown["best_query"][0], query, passages))
    return found
