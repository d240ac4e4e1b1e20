"""Models and texts by the names that options take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from transformers import AutoModel, PreTrainedModel
from transformers.utils import logging

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.heads.attention import Text
from hf_tlm.corpora import load_corpus
from hf_tlm.hub.checkpoint import checkpoint_folder
from hf_tlm.models import ModelError
from hf_tlm.models.adapters import POOLER
from hf_tlm.models.loading import hub_options, reading

# Texts that a model has neither learned from nor been chosen by come first.
SPLITS = ("test", "validation", "train")
COLUMNS = ("text", "text_pair", "question", "context")


def load_body(name_or_path: str, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """The body of a checkpoint (folder, or Hub id with `@revision` if wanted) with eager attention, in float32, on a GPU if
    there is one.

    Raises:
        ModelError: it cannot be loaded, or lacks weights. HubError: see `checkpoint_folder`.
    """
    folder = checkpoint_folder(name_or_path, trust_remote_code=trust_remote_code)
    options = hub_options(None, trust_remote_code, "eager") | {"dtype": torch.float32, "output_loading_info": True}
    with reading(f"a model from {name_or_path!r}"), _without_report():
        model, info = AutoModel.from_pretrained(folder, **options)
    # What only a pooler needs plays no part in attention.
    if lacking := sorted(key for key in info["missing_keys"] if POOLER not in key.split(".")):
        raise ModelError(
            f"{name_or_path} lacks weights of its body ({', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}): "
            "they would be random. Give a checkpoint of this architecture."
        )
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def read_texts(args: AnalyzeArguments, task: AnalyzedTask) -> tuple[str, list[Text]]:
    """(what they are, the texts): those of `--texts`, else of the task's test, validation or training split; no more than
    `max_texts`, drawn with the seed and in their order.

    Raises:
        AnalysisError: neither was given. CorpusError, TaskError: they cannot be read.
    """
    if args.texts is not None:
        rows, source = load_corpus(args.texts, text_column=task.text_column or "text").to_dataset(), args.texts
    elif task.task is None:
        raise AnalysisError("--what heads needs texts: give --texts, a file, or --task, whose texts are read.")
    else:
        loaded = task.load()
        split = next(name for name in SPLITS if name in loaded.splits)
        rows, source = loaded.splits[split], f"{loaded.name}, {split}"
    if len(rows) > args.max_texts:
        drawn = np.random.default_rng(args.analysis_seed).choice(len(rows), args.max_texts, replace=False)
        rows = rows.select(np.sort(drawn))
    if "tokens" in rows.column_names:
        return source, [" ".join(words) for words in rows["tokens"][:]]
    columns = [rows[name][:] for name in COLUMNS if name in rows.column_names]
    return source, columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


@contextmanager
def _without_report() -> Iterator[None]:
    """transformers would list the weights of heads on the body, which are left out on purpose."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
