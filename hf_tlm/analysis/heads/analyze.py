"""Figures 3, C.1 and C.2 of the TLM paper for any models and texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, HeadsArguments
from hf_tlm.analysis.encoders import load_encoder
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.figures import check_installed, save_figure, to_csv
from hf_tlm.analysis.findings import Findings
from hf_tlm.analysis.heads.attention import Text, measure_heads, most_tokens, text_maps
from hf_tlm.analysis.heads.figures import Drawn, draw_attention_maps, draw_head_shares, map_rows
from hf_tlm.analysis.heads.head_types import AttentionHead, LayerShares, layer_shares
from hf_tlm.analysis.sampling import sample_corpus
from hf_tlm.data import load_tokenizer
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.markdown import markdown_table

# Texts that a model has neither learned from nor been chosen by come first.
SPLITS = ("test", "validation", "train")
COLUMNS = ("text", "text_pair", "question", "context")


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: HeadsArguments) -> Findings:
    """Classify the attention heads of models, and draw their maps of a text.

    Writes heads.md, heads_counts.csv, and the figures heads (shares by layer), heads_<model>_maps, and heads_maps of several
    models.
    """
    if not args.encoders:
        raise AnalysisError("--what heads needs models: give --models, or --run.")
    check_installed("matplotlib")  # Before the work of minutes.
    trust = args.trust_remote_code
    files = _file_names(args.encoders)
    source, texts = read_texts(args, task)
    tokenizers = {
        name: load_tokenizer(place, trust_remote_code=trust, masking=False) for name, place in args.encoders.items()
    }
    drawn, caption = _drawn(texts, list(tokenizers.values()), options)
    found, limits = {}, {"batch_size": args.batch_size, "max_length": args.max_length}
    for name, place in args.encoders.items():
        model, tokenizer = load_encoder(
            place, max_length=args.max_length, trust_remote_code=trust, attn_implementation="eager"
        )
        heads = measure_heads(model, tokenizer, texts, name=name, **limits)
        found[name] = (heads, text_maps(model, tokenizer, drawn, options.heads_tokens))
    shares = {name: layer_shares(heads) for name, (heads, _) in found.items()}
    table = shares_table(shares)
    atomic_write(args.folder / "heads.md", table)
    atomic_write(args.folder / "heads_counts.csv", to_csv(_count_rows({name: heads for name, (heads, _) in found.items()})))
    saved = [args.folder / "heads.md", args.folder / "heads_counts.csv"]
    saved += save_figure(draw_head_shares(shares), args.folder, "heads", _share_rows(shares))
    for name, own in found.items():
        saved += save_maps({name: own}, caption, args.folder, files[name])
    if len(found) > 1:
        saved += save_maps(found, caption, args.folder, "heads_maps")
    words = (
        f"{len(texts):,} texts ({source}). A head is positional if at least 90% of its rows have their largest weight on "
        "the previous or next token, vertical if at least 90% have it on [CLS], [SEP] or a full stop."
    )
    return Findings("Attention heads", f"{words}\n\n{table}", saved)


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


def save_maps(found: Mapping[str, Drawn], caption: str, folder: Path, name: str) -> list[Path]:
    """The figure of `draw_attention_maps` and its numbers."""
    return save_figure(draw_attention_maps(found, caption), folder, name, map_rows(found))


def shares_table(shares: Mapping[str, Sequence[LayerShares]]) -> str:
    """Markdown: of each model's layers, and of the whole model, the percent of heads of each kind."""
    rows = []
    for name, layers in shares.items():
        for own in layers:
            values = [f"{value:.1f}" for value in (own.positional, own.vertical, own.other)]
            rows.append([name, "all" if own.layer is None else str(own.layer), str(own.heads), *values])
    return markdown_table(["model", "layer", "heads", "positional /%", "vertical /%", "other /%"], rows)


def _share_rows(shares: Mapping[str, Sequence[LayerShares]]) -> list[dict[str, Any]]:
    return [{"model": name} | asdict(own) for name, layers in shares.items() for own in layers if own.layer is not None]


def _count_rows(found: Mapping[str, Sequence[AttentionHead]]) -> list[dict[str, Any]]:
    return [{"model": name, "kind": head.kind} | asdict(head) for name, heads in found.items() for head in heads]


def _file_names(names: Iterable[str]) -> dict[str, str]:
    """Names of models' figures without what file systems do not take.

    Raises:
        AnalysisError: two are the same.
    """
    files: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^\w.-]+", "_", name)
        file = f"heads_{plain}_maps"
        if file in files.values():
            raise AnalysisError(f"Models need names that differ in letters or digits; {name!r} is too much like another.")
        files[name] = file
    return files


def _drawn(
    texts: Sequence[Text], tokenizers: Sequence[PreTrainedTokenizerBase], options: HeadsArguments
) -> tuple[Text, str]:
    """Return the text whose maps are drawn, and how it is shown.

    It is the one that was given, or the first that no tokenizer truncates, or the first.
    """
    candidates = [options.heads_text] if options.heads_text is not None else texts
    lengths = most_tokens(candidates, tokenizers, options.heads_tokens + 1)  # One more tells which are longer.
    text = candidates[int(np.argmax(lengths <= options.heads_tokens))]
    words = " / ".join(text) if isinstance(text, tuple) else text
    return text, words if lengths.min() <= options.heads_tokens else f"First {options.heads_tokens} tokens of: {words}"
