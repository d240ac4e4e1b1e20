"""Task texts and what was retrieved for them (TLM, section 4.4.2 and Table 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.subsets.columns import check_positive, column, ranks
from hf_tlm.retrieval.highlight import Spans, mark_shared, marked_terms, spans_to_markdown, stemmer_of
from hf_tlm.utils.shown import for_markdown

if TYPE_CHECKING:
    from hf_tlm.retrieval import Subset
    from hf_tlm.tasks import Task


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
            queries = f"{passage.n_queries:,} {'query' if passage.n_queries == 1 else 'queries'}"
            found = f"rank {passage.rank:,}, score {passage.score:,.1f}, hit by {queries}"
            origin = for_markdown(passage.id) + (f", from {for_markdown(passage.source)}" if passage.source else "")
            lines.append(f"> **Passage**, {found} ({origin}): {spans_to_markdown(passage.text)}")
        blocks.append("\n\n".join([lines[0], "\n>\n".join(lines[1:])]))
    return "\n\n".join(blocks) + "\n"


def _show(subset: Subset, task: Task, rows: Sequence[np.ndarray]) -> list[CaseStudy]:
    """rows: of the passages of each text."""
    chosen = replace(subset, dataset=subset.dataset.select(np.concatenate(rows)))
    examples = chosen.examples(task, len(chosen))
    terms_of = marked_terms(stemmer_of(subset.manifest))
    found, end = [], 0
    for own in rows:
        start, end = end, end + len(own)
        shown = chosen.dataset[start:end]
        query, texts = mark_shared(examples[start][0], shown["text"], terms_of)
        passages = [
            RetrievedPassage(*values)
            for values in zip(
                shown["id"], shown["source"], shown["rank"], shown["score"], shown["n_queries"], texts, strict=True
            )
        ]
        found.append(CaseStudy(shown["best_query"][0], query, passages))
    return found
