"""Texts by the names that options take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.heads.attention import Text
from hf_tlm.analysis.sampling import sample_corpus

# Texts that a model has neither learned from nor been chosen by come first.
SPLITS = ("test", "validation", "train")
COLUMNS = ("text", "text_pair", "question", "context")


def read_texts(args: AnalyzeArguments, task: AnalyzedTask) -> tuple[str, Sequence[Text]]:
    """Read texts: those of `--texts`, else of the task's test, validation or training split.

    Returns (what they are, the texts); no more than `max_texts`, drawn with the seed and in their order.

    Raises:
        AnalysisError: neither was given, or the file has no text. CorpusError, TaskError: they cannot be read.
    """
    if args.texts is not None:
        column = task.text_column or "text"
        return args.texts, sample_corpus(args.texts, args.max_texts, seed=args.seed, text_column=column)
    if task.task is None:
        raise AnalysisError("--what heads needs texts: give --texts, a file, or --task, whose texts are read.")
    loaded = task.load()
    split = next(name for name in SPLITS if name in loaded.splits)
    rows, source = loaded.splits[split], f"{loaded.name}, {split}"
    if len(rows) > args.max_texts:
        drawn = np.random.default_rng(args.seed).choice(len(rows), args.max_texts, replace=False)
        rows = rows.select(np.sort(drawn))
    if "tokens" in rows.column_names:
        return source, [" ".join(words) for words in rows["tokens"][:]]
    columns = [rows[name][:] for name in COLUMNS if name in rows.column_names]
    return source, columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
