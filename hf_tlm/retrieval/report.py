"""The markdown report of a retrieval: counts, size of the union against K, hits, sources, lengths, examples.

Examples show a query and a passage with their shared words marked (TLM, Table 8).
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hf_tlm.retrieval.settings import SELECTIONS
from hf_tlm.retrieval.subset_files import SubsetLike
from hf_tlm.retrieval.texts import Analyzer, RetrievalError, load_bm25s, word_pattern
from hf_tlm.tasks.spec import Task, check_task
from hf_tlm.utils.options import RANGES, check_number
from hf_tlm.utils.shown import Markdown, counted, describe_received, escape, for_markdown, markdown_table, one_line
from hf_tlm.utils.texts import UNSPACED_SET, count_words

SETTINGS = (
    "retriever variant k1 b delta stopwords stemmer script query_mode max_query_terms top_k top_k_requested seed".split()
)
SELECTION_SETTINGS = (
    "fraction top_k num_passages layer parameters corpus_batch_size task_batch_size task_split mask_task_texts group_loss "
    "task_batches balance teacher trust projection_dim score_model mlm_probability max_length num_buckets seed"
).split()
NAMED_IDS = 5
NAMED_SOURCES = 20
NAMED_PARAMETERS = 3
BARS = ("passages", "share", " ")
BAR_WIDTH = 24

# A text is shown as at most WINDOWS windows of WINDOW_WORDS words, each starting CONTEXT_WORDS before a marked word.
WINDOWS, WINDOW_WORDS, CONTEXT_WORDS = 2, 30, 4
LONGEST_PIECE = 60  # Maximum number of characters shown of a word, or of the text between two words.

# Words of a script without spaces: single letters, and runs of other scripts.
_LETTER = re.compile(rf"[^\W{UNSPACED_SET}]+|\w")

# The shown parts of a text, on one line and not escaped: (piece, whether its words are marked).
Spans = list[tuple[str, bool]]


def retrieval_report(subset: SubsetLike, task: Task | None = None, num_examples: int = 10) -> str:
    """Write the report of a subset in GitHub's markdown. The same subset gives the same text.

    Args:
        task: the subset's task; its training texts are quoted as the queries of the examples. None: only passages are
            quoted.
        num_examples: number of examples, as in Table 8 of the TLM paper, spread over ranks and queries.

    Raises:
        RetrievalError: `subset` is not a Subset, num_examples is below 0, or the subset was retrieved for another task.
    """
    if task is not None:
        check_task(task)
    if not all(hasattr(subset, name) for name in ("manifest", "dataset", "examples")):
        raise RetrievalError(f"subset: expected a Subset; {describe_received(subset, 'Subset.open', data=False)}")
    check_number(RetrievalError, "num_examples", num_examples, RANGES["num_examples"])
    manifest, random = subset.manifest, subset.manifest["retriever"] == "random"
    released = subset.manifest["retriever"] == "released"
    sections = [
        f"# Retrieval for {for_markdown(manifest['task']['name'])} from {for_markdown(manifest['corpus']['name'])}",
        _counts_section(manifest, len(subset)),
    ]
    if len(subset) == 0:
        return "\n\n".join([*sections, "The subset is empty.\n"])
    if random:
        sections.append("The passages were drawn at random: there are no queries, hits and scores to report.")
    elif released:
        sections.append("TLM's authors retrieved and released the passages, without the queries, hits and scores.")
        sections += [] if manifest.get("rank_column") is False else [_union_section(subset)]
    else:
        sections += [_union_section(subset), _hits_section(subset)]
    if "influence" in subset.dataset.column_names:
        sections.append(_influence_section(subset))
    sections += [_sources_section(subset), _lengths_section(subset)]
    if num_examples:
        sections.append(
            _passages_section(subset, num_examples) if random or released else _examples_section(subset, task, num_examples)
        )
    return "\n\n".join(section.rstrip("\n") for section in sections) + "\n"


def describe_selection(selection: dict[str, Any]) -> str:
    """Describe in words the manifest's `selection`: how passages of a subset were selected (`hf_tlm.influence.select`)."""
    names = {name: name.replace("_", " ") for name in SELECTION_SETTINGS}
    names |= {"top_k": "top k of each task batch", "num_passages": "passages requested"}
    details = []
    for name, words in names.items():
        value = selection.get(name)
        if isinstance(value, list):
            value = ", ".join(map(str, value[:NAMED_PARAMETERS])) + (", …" if len(value) > NAMED_PARAMETERS else "")
        if isinstance(value, dict):
            value = value["model"] if name == "teacher" else _describe_score_model(value)
        if value is not None:
            details.append(f"{words} {_format_setting(value)}")
    method = selection["method"]
    num_unscored, num_not_finite = selection.get("passages_without_score"), selection.get("passages_not_finite")
    return (
        f"{selection['size']:,} of {selection['of']:,} passages by "
        f"{SELECTIONS[method].format(split=selection.get('task_split', 'validation'))} ({', '.join(details)})"
        + (
            f"; {num_unscored:,} had no {'token to mask' if method == 'iss' else 'answer'}, and so no score"
            if num_unscored
            else ""
        )
        + (f"; the scores of {num_not_finite:,} were not finite" if num_not_finite else "")
    )


def _describe_score_model(settings: dict[str, Any]) -> str:
    """Describe in words a score model that was trained for the selection (`hf_tlm.runs.score_models`)."""
    scores = settings.get("validation", {})
    left_out = {"model", "validation", "digest", "num_train_epochs" if settings.get("max_steps", -1) > 0 else "max_steps"}
    details = [
        f"{name.replace('_', ' ')} {_format_setting(value)}" for name, value in settings.items() if name not in left_out
    ]
    details += [f"{name.replace('_', ' ')} on validation {100 * score:.1f}" for name, score in scores.items()]
    model = settings["model"] if isinstance(settings["model"], str) else settings["model"]["model_type"]
    return f"{model} trained on the task ({', '.join(details)})"


def _number_table(head: Sequence[str], numbers: Iterable[float], style: str) -> str:
    """Return a table of one row of numbers, in the format `style`."""
    return markdown_table(head, [[format(number, style) for number in numbers]], texts=0)


def _counts_section(manifest: dict[str, Any], rows: int) -> str:
    """Return the section of counts and settings."""
    counts = manifest["counts"]
    source_name = "released file" if manifest["retriever"] == "released" else "corpus"
    table = [
        (f"passages of the {source_name}", f"{counts['passages']:,}"),
        ("passages of the subset", f"{rows:,} ({_percent(rows, counts['passages'])})"),
    ]
    if counts.get("blank_texts"):
        table.append(("rows without a text", f"{counts['blank_texts']:,} left out"))
    if bad := counts.get("bad_files"):
        table.append(("files that could not be read", f"{len(bad):,} left out{_list_ids(bad[:NAMED_IDS], len(bad))}"))
    if selection := manifest.get("selection"):
        table.append(("passages before the selection", f"{selection['of']:,}"))
    if counts.get("queries"):
        table.append(("queries", f"{counts['queries']:,}"))
        for label, key in (("empty queries", "empty_queries"), ("other queries without hits", "queries_without_hits")):
            number = counts.get(key, 0)
            table.append((label, Markdown(f"{number:,}{_list_ids(counts.get(f'first_{key}'), number)}")))
    for label, key in (("passages with held-out texts", "decontamination"), ("near-duplicates", "deduplication")):
        left_out = manifest.get(key)
        number = f"{left_out['passages']:,} left out" if left_out else "not checked"
        table.append((label, Markdown(number + (_list_ids(left_out.get("ids"), left_out["passages"]) if left_out else ""))))
    settings = {**manifest, **(manifest.get("analyzer") or {})}
    if settings.get("top_k_requested") == settings.get("top_k"):
        settings.pop("top_k_requested", None)
    names = [name for name in SETTINGS if settings.get(name) is not None]
    descriptions = [f"{name.replace('_', ' ')} {for_markdown(_format_setting(settings[name]))}" for name in names]
    lines = ["## Counts", "", markdown_table((" ", " "), table, texts=2), f"Settings: {', '.join(descriptions)}."]
    if selection:
        lines += ["", f"Selection: {for_markdown(describe_selection(selection), 1000)}."]
    return "\n".join(lines)


def _union_section(subset: SubsetLike) -> str:
    """Return the section with the size of the union for each K.

    The passages of rank k or better are the union of the queries' top k, so no new search is needed.
    """
    ranks = np.sort(_column(subset, "rank"))
    top_k = max(subset.manifest.get("top_k") or 0, int(ranks[-1]))
    shown = steps(top_k)
    sizes = zip(shown, np.searchsorted(ranks, shown, side="right").tolist(), strict=True)
    rows = [(f"{k:,}", f"{size:,}", _percent(size, len(ranks)), _bar(size, len(ranks))) for k, size in sizes]
    table = markdown_table(("K", *BARS), rows, texts=[3])
    return "\n\n".join(["## Size against K", "The number of these passages that a smaller K gives.", table])


def steps(largest: int) -> list[int]:
    """Return the values of K to report: 1, 2, 5, 10, 20, 50, ... and the largest."""
    candidates = [factor * 10**power for power in range(len(str(largest))) for factor in (1, 2, 5)]
    return [step for step in candidates if step < largest] + [largest]


def _hits_section(subset: SubsetLike) -> str:
    """Return the section with the histogram of the number of queries that hit a passage, in powers of two."""
    hits = hit_counts(subset)
    numbers = np.bincount(np.log2(hits).astype(int)).tolist()
    rows = []
    for power, count in enumerate(numbers):
        low, high = 2**power, 2 ** (power + 1) - 1
        label = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        rows.append((label, f"{count:,}", _percent(count, len(hits)), _bar(count, max(numbers))))
    facts = f"Mean {hits.mean():,.1f}, median {np.median(hits):,.1f}, maximum {hits.max():,}; {hits.sum():,} hits in total."
    return "\n\n".join(["## Queries that hit a passage", facts, markdown_table(("queries", *BARS), rows, texts=[3])])


def hit_counts(subset: SubsetLike) -> np.ndarray:
    """Return the number of queries that hit each passage, int64; passages that no query hit are left out.

    A subset of several that were put together may have such passages, drawn at random.
    """
    return np.array([queries for queries in subset.dataset["n_queries"][:] if queries], np.int64)


def _influence_section(subset: SubsetLike) -> str:
    """Return the section with the quantiles of influence, for a subset that was selected by it."""
    values = _column(subset, "influence").astype(np.float64)
    numbers = [*np.quantile(values, (0, 0.25, 0.5, 0.75, 1)), values.mean()]
    head = ["lowest", "25%", "median", "75%", "highest", "mean"]
    split = (subset.manifest.get("selection") or {}).get("task_split", "validation")
    note = f"The first-order decrease of the {split} loss by a training step on the passage, divided by the learning rate."
    return "\n\n".join(["## Influence", note, _number_table(head, numbers, ",.3g")])


def _sources_section(subset: SubsetLike) -> str:
    """Return the section with the most frequent sources, compared with their share of the corpus if the manifest has it."""
    subset_counts = Counter(source or "" for source in subset.dataset["source"][:])
    corpus = subset.manifest["counts"].get("sources") or {}
    names = sorted({*subset_counts, *corpus}, key=lambda name: (-subset_counts[name], name))
    groups = [(name or "(none)", [name]) for name in names[:NAMED_SOURCES]]
    if len(names) > NAMED_SOURCES:
        groups.append((counted(len(names) - NAMED_SOURCES, "other"), names[NAMED_SOURCES:]))
    rows = []
    for label, members in groups:
        in_subset, in_corpus = (sum(counts.get(name, 0) for name in members) for counts in (subset_counts, corpus))
        row = [label, f"{in_subset:,}", _percent(in_subset, len(subset))]
        if corpus:
            share = in_corpus / sum(corpus.values())
            row += [f"{in_corpus:,}", f"{share:.1%}", f"{in_subset / len(subset) / share:,.2f}" if in_corpus else ""]
        rows.append(row)
    head = ["source", "passages", "share", *(["in the corpus", "share", "ratio of shares"] if corpus else [])]
    return "\n\n".join(["## Sources", markdown_table(head, rows)])


def _lengths_section(subset: SubsetLike) -> str:
    """Return the section with the quantiles of the passages' lengths in words."""
    texts = (text for batch in subset.dataset.select_columns("text").iter(1000) for text in batch["text"])
    words = np.array([count_words(text) for text in texts])
    numbers = [*np.quantile(words, (0, 0.25, 0.5, 0.75, 1)), words.mean(), words.sum()]
    head = ["shortest", "25%", "median", "75%", "longest", "mean", "total"]
    return "\n\n".join(["## Words of a passage", _number_table(head, numbers, ",.0f")])


def _passages_section(subset: SubsetLike, num_examples: int) -> str:
    """Return the section of examples for a subset without queries: its first passages."""
    rows = subset.dataset.select(range(min(num_examples, len(subset))))
    shown = [f"> {_plain_excerpt(row)}\n>\n> {origin(row)}" for row in rows]
    return "\n\n".join(["## Examples", *_number_examples(shown)])


def _examples_section(subset: SubsetLike, task: Task | None, num_examples: int) -> str:
    """Return the section of examples: query and passage with their shared words in bold (TLM, Table 8).

    Without a task only the passages are shown.
    """
    dataset = subset.dataset.select(np.flatnonzero([query is not None for query in subset.dataset["best_query"][:]]))
    rows = dataset.select(_spread_rows(np.asarray(dataset["rank"][:]), dataset["best_query"][:], num_examples))
    if task is None:
        shown = [f"> {how_found(row, row['score'])}: {_plain_excerpt(row)}\n>\n> {origin(row)}" for row in rows]
        return "\n\n".join(
            [
                "## Examples",
                "The examples are spread over the ranks. The task's texts are not quoted.",
                *_number_examples(shown),
            ]
        )
    terms_of = MarkedTerms.of(subset.manifest)
    shown = []
    examples = dataclasses.replace(subset, dataset=rows).examples(task, len(rows))
    for row, (query, passage, score) in zip(rows, examples, strict=True):
        query_spans, (passage_spans,) = mark_shared(query, [passage], terms_of)
        query_line = f"> **Query** {for_markdown(row['best_query'])}: {spans_to_markdown(query_spans)}"
        shown.append(
            f"{query_line}\n>\n> **Passage**, {how_found(row, score)}: {spans_to_markdown(passage_spans)}\n>\n> "
            f"{origin(row)}"
        )
    intro = "Shared words are bold, except stop words. The examples are spread over the ranks and over the queries."
    return "\n\n".join(["## Examples", intro, *_number_examples(shown)])


def how_found(row: dict[str, Any], score: float) -> str:
    """Describe how a passage was found: its rank, score and number of queries."""
    queries = counted(row["n_queries"], "query", "queries")
    return f"rank {row['rank']:,}, score {score:,.1f}, found by {queries}"


def origin(row: dict[str, Any]) -> str:
    """Return a passage's id and source."""
    return for_markdown(row["id"]) + (f", from {for_markdown(row['source'])}" if row["source"] else "")


def _number_examples(blocks: Iterable[str]) -> list[str]:
    """Put a numbered heading above each example."""
    return [f"### {number}\n\n{block}" for number, block in enumerate(blocks, 1)]


def _column(subset: SubsetLike, name: str) -> np.ndarray:
    return np.asarray(subset.dataset[name][:])


def _list_ids(ids: Sequence[str] | None, total: int) -> str:
    """Return the first ids in brackets, with an ellipsis if there are more; an empty string if there are none."""
    if not ids:
        return ""
    ellipsis = ", …" if total > len(ids[:NAMED_IDS]) else ""
    return f" ({', '.join(for_markdown(name) for name in ids[:NAMED_IDS])}{ellipsis})"


def _format_setting(value: Any) -> str:
    """Format a setting's value."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _percent(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else ""


def _bar(value: int, most: int) -> str:
    """Return a bar of at most BAR_WIDTH characters, in steps of an eighth; never empty for a value above 0."""
    eighths = max(round(8 * BAR_WIDTH * value / most), min(1, value))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


class MarkedTerms:
    """A function from a text to the terms that are worth marking; it drops more stop words than a search does.

    stemmer, script: see `Analyzer`.
    """

    def __init__(self, stemmer: str | None = None, script: str | None = None):
        self.script = script
        self._analyzer, self._plain = Analyzer(stemmer=stemmer, script=script), Analyzer(script=script)

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> MarkedTerms:
        """Create it with the stemmer and script of the retrieval that a manifest describes."""
        settings = {**manifest, **(manifest.get("analyzer") or {})}
        return cls(settings.get("stemmer"), settings.get("script"))

    @cached_property
    def _stopwords(self) -> frozenset[str]:
        return frozenset(load_bm25s().stopwords.STOPWORDS_EN_PLUS)

    def __call__(self, text: str) -> set[str]:
        """Return the distinct terms of a text that may be marked."""
        return {term for word in set(self._plain(text)) - self._stopwords for term in self._analyzer(word)}

    def words(self, text: str) -> list[tuple[int, int, str]]:
        """Find the words of a text: (start, end, text whose terms decide whether the word is marked) of each.

        For a letter of a script without spaces that text includes its two neighbours, since terms there are bigrams.
        """
        pattern = _LETTER if self.script == "unspaced" else word_pattern(marks=True, least=1)
        matches = []
        for word in pattern.finditer(text):
            first, last = word.span()
            is_single_letter = self.script == "unspaced" and last == first + 1
            matches.append((first, last, text[max(0, first - 1) : last + 1] if is_single_letter else word.group()))
        return matches


def mark_shared(query: str, passages: Sequence[str], terms_of: MarkedTerms) -> tuple[Spans, list[Spans]]:
    """Mark the shared words of a query and passages: in each passage the query's, in the query those of any passage."""
    query_terms, passage_terms = terms_of(query), [terms_of(passage) for passage in passages]
    shared = query_terms.intersection(set().union(*passage_terms))
    return marked_spans(query, shared, terms_of), [
        marked_spans(passage, query_terms & terms, terms_of) for passage, terms in zip(passages, passage_terms, strict=True)
    ]


def marked_spans(text: str, terms: set[str], terms_of: MarkedTerms) -> Spans:
    """Excerpt the windows of a text with the most distinct terms, and mark these terms; "…" replaces what is left out.

    Args:
        terms: the terms to mark; empty: excerpt the beginning.
        terms_of: splits the text into words and gives their terms.
    """
    text = one_line(text, len(text))
    words = terms_of.words(text)
    if not words:
        return [(one_line(text, LONGEST_PIECE), False)]
    word_terms = [terms & terms_of(context) if terms else terms for _, _, context in words]
    last = max(0, len(words) - WINDOW_WORDS)
    shown, missing = np.zeros(len(words), bool), set(terms)
    for window in range(WINDOWS):
        starts = [min(max(0, index - CONTEXT_WORDS), last) for index, shared in enumerate(word_terms) if shared & missing]
        if not starts and window:
            break
        coverage = {
            start: missing.intersection(set().union(*word_terms[start : start + WINDOW_WORDS])) for start in starts or [0]
        }
        best = max(coverage, key=lambda start: len(coverage[start]))
        shown[best : best + WINDOW_WORDS] = True
        missing -= coverage[best]

    pieces: Spans = [("" if shown[0] else "… ", False)]
    for index, (first, last, _) in enumerate(words):
        if shown[index]:
            gap = text[words[index - 1][1] if index else 0 : first]
            pieces += [
                (_truncate(gap if not index or shown[index - 1] else ""), False),
                (_truncate(text[first:last]), bool(word_terms[index])),
            ]
        elif index and shown[index - 1]:
            pieces.append((" … ", False))
    pieces.append((_truncate(text[words[-1][1] :]) if shown[-1] else "", False))
    return _merge_spans(pieces)


def spans_to_markdown(spans: Spans) -> str:
    """Convert spans to markdown: marked pieces in bold, everything else escaped but unchanged."""
    text = "".join(f"**{escape(piece)}**" if marked else escape(piece) for piece, marked in spans)
    return text.strip() or "(empty)"


def _merge_spans(pieces: Sequence[tuple[str, bool]]) -> Spans:
    """Join adjacent pieces that are both marked or both unmarked; marked words separated by one space are joined too."""
    spans: Spans = []
    for piece, marked in pieces:
        if marked and len(spans) > 1 and spans[-1] == (" ", False):
            spans.pop()
            piece = f"{spans.pop()[0]} {piece}"
        elif spans and piece and spans[-1][1] == marked:
            piece = spans.pop()[0] + piece
        if piece:
            spans.append((piece, marked))
    return spans


def _truncate(text: str) -> str:
    """Cut a piece to LONGEST_PIECE characters."""
    return text if len(text) <= LONGEST_PIECE else f"{text[:LONGEST_PIECE]}…"


def _spread_rows(ranks: np.ndarray, queries: Sequence[str | None], num_rows: int) -> list[int]:
    """Choose rows whose ranks grow geometrically, of different queries as far as there are enough; sorted by rank."""
    order = np.argsort(ranks, kind="stable")
    ranks, num_rows = ranks[order], min(num_rows, len(ranks))
    chosen: list[int] = []
    used_queries: set[str | None] = set()
    for index, target in enumerate(np.geomspace(1, ranks[-1], num_rows).round()):
        start = np.searchsorted(ranks, target)
        end = np.searchsorted(ranks, ranks[start], side="right")
        # Within a rank the best score comes first; start lower in later turns, so that examples vary.
        first = start + int((index + 0.5) / num_rows * (end - start))
        positions = itertools.chain(range(first, end), range(start, first), range(end, len(ranks)), range(start))
        unused = (
            position for position in positions if position not in chosen and queries[order[position]] not in used_queries
        )
        remaining = (position for position in range(len(ranks)) if position not in chosen)
        chosen.append(next(itertools.chain(unused, remaining)))
        used_queries.add(queries[order[chosen[-1]]])
    return [int(order[position]) for position in sorted(chosen)]


def _plain_excerpt(row: dict[str, Any]) -> str:
    """Return the excerpt of a passage without marks, in markdown."""
    return spans_to_markdown(marked_spans(row["text"], set(), MarkedTerms()))
