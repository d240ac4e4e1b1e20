"""Read tasks of tagging: the words of a sentence, and a tag for each word (parts of speech, entities, chunks)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from datasets import ClassLabel, Dataset, Features, List, Value

from hf_tlm.tasks.rows import NO_WORDS, SENTENCES, Bad, check_plain, class_names, column_of, columns_of
from hf_tlm.tasks.spec import TaskError, TaskSpec

logger = logging.getLogger(__name__)


def is_iob2(tag: str) -> bool:
    """Return whether a tag is O, B-type or I-type."""
    return tag == "O" or tag[:2] in ("B-", "I-") and len(tag) > 2


def label_names(spec: TaskSpec, train: Dataset) -> tuple[str, ...]:
    """Return the tags in the order of their indices, from the training split.

    Raises:
        TaskError: the tags are no lists, there are less than two, integers have gaps, or span_f1 lacks IOB2 tags.
    """
    named = _class_names(spec, train)
    (column,) = columns_of(spec, "train", train, "tags")
    tag_lists = [tags for tags in column if isinstance(tags, list)]
    if not tag_lists and (others := [tags for tags in column if tags is not None]):
        raise TaskError(
            f"Task {spec.name}: expected lists of tags, one tag per word; received {others[0]!r:.40}, of type "
            f"{type(others[0]).__name__}. " + SENTENCES
        )
    tag_set = {tag for tags in tag_lists for tag in tags if not isinstance(tag, (list, dict))} - {None}
    if len(named or tag_set) < 2:
        raise TaskError(
            f"Task {spec.name}: a tagging task needs at least two tags; the training split has {sorted(map(str, tag_set))}. "
            "Choose another column with --columns tags=name; in a CoNLL file columns have numbers, in a CoNLL-U file also "
            "names such as upos."
        )
    names = tuple(named) if named else _order_tags(spec, tag_set)
    others = [name for name in names if not is_iob2(name)]
    if others and "span_f1" in (spec.metric, *spec.further_metrics):
        raise TaskError(
            f"Task {spec.name}: the metric span_f1 needs IOB2 tags (O, B-type, I-type); received {others[0]!r}. Use "
            "tag_accuracy."
        )
    return names


def _order_tags(spec: TaskSpec, tag_set: set[Any]) -> tuple[str, ...]:
    """Return the names of tags, which are numbers or texts in the data, in the order of their indices."""
    if not all(isinstance(tag, int) for tag in tag_set):
        return spec.classes if tag_set == set(spec.classes) else tuple(sorted(map(str, tag_set)))
    if sorted(tag_set) != list(range(len(tag_set))):
        raise TaskError(
            f"Task {spec.name}: integer tags must be 0 .. n-1 without gaps in train; found {sorted(tag_set)[:20]}."
        )
    return tuple(map(str, range(len(tag_set))))


def _class_names(spec: TaskSpec, rows: Dataset) -> list[str] | None:
    feature = rows.features.get(column_of(spec, "tags", rows))
    tag_feature = getattr(feature, "feature", None)
    return tag_feature.names if isinstance(tag_feature, ClassLabel) else None


def features(spec: TaskSpec, labelled: bool) -> Features:
    words = {"id": Value("string"), "tokens": List(Value("string"))}
    return Features(words | ({"tags": List(Value("int64"))} if labelled else {}))


def unlabelled(spec: TaskSpec, rows: Dataset) -> bool:
    """Return whether no word has a tag."""
    column = column_of(spec, "tags", rows)
    return column in rows.column_names and not any(
        tags is not None and (not isinstance(tags, list) or any(tag not in (None, -1) for tag in tags))
        for tags in rows[column][:]
    )


def read(spec: TaskSpec, split: str, rows: Dataset, names: tuple[str, ...], labelled: bool) -> Iterator[tuple | Bad]:
    """Yield the words of each sentence, and their tags if `labelled`; or a `Bad` that says what is wrong with it."""
    (sentences,) = columns_of(spec, split, rows, "tokens")
    tags: list[Any] = [()] * len(rows)
    if labelled:
        (tags,) = columns_of(spec, split, rows, "tags")
        if tag_names := _class_names(spec, rows):
            tags = [None if row_tags is None else class_names(row_tags, tag_names) for row_tags in tags]
    name_to_index = {name: index for index, name in enumerate(names)}
    for words, row_tags in zip(sentences, tags, strict=True):
        if not words:
            yield Bad("an empty sentence")
        elif not isinstance(words, list):
            yield Bad(NO_WORDS, f"tokens {words!r:.40}")
        elif None in words:
            yield Bad("a null word")
        elif problem := check_plain("word", *words):
            yield problem
        elif not labelled:
            yield (list(map(str, words)),)
        elif row_tags is not None and not isinstance(row_tags, (list, tuple)):
            yield Bad("tags that are no list", f"tags {row_tags!r:.40}")
        elif row_tags is None or None in row_tags:
            yield Bad("a null tag")
        elif problem := check_plain("tag", *row_tags):
            yield problem
        elif len(row_tags) != len(words):
            yield Bad("different numbers of tokens and tags", f"{len(words)} tokens, {len(row_tags)} tags")
        else:
            yield (list(map(str, words)), [name_to_index.get(str(tag), -1) for tag in row_tags])


def report(spec: TaskSpec, rows: Dataset, names: tuple[str, ...]) -> dict[str, Any]:
    tags = [tag for row_tags in rows["tags"][:] for tag in row_tags]
    counts = Counter(names[tag] for tag in tags if tag >= 0)
    unknown = len(tags) - counts.total()
    if unknown:
        logger.warning(
            "Task %s: %d of %d words have a tag that is not in train; they count as errors.", spec.name, unknown, len(tags)
        )
    return {"words": len(tags), "words_with_unknown_tags": unknown, "tags": dict(sorted(counts.items()))}


def content(rows: Dataset) -> list[tuple[str, ...]]:
    """Return the words of each row, by which rows are compared."""
    return [tuple(words) for words in rows["tokens"][:]]
