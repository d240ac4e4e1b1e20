"""ISS's Figure 4 and COCO-LM's Figures 1, 5 and 6, with numbers, for some models and a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hf_tlm.analysis.arguments import AnalyzeArguments, AnalyzedTask, EmbeddingsArguments
from hf_tlm.analysis.embeddings.figures import draw_classes, draw_cosines, draw_pairs
from hf_tlm.analysis.embeddings.measures import alignment, cosine_similarities, silhouette, uniformity
from hf_tlm.analysis.embeddings.projection import project
from hf_tlm.analysis.embeddings.texts import DrawnTexts, draw_texts
from hf_tlm.analysis.embeddings.vectors import embed_texts
from hf_tlm.analysis.encoders import load_encoder
from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.analysis.figures import check_installed, to_csv
from hf_tlm.analysis.findings import Findings
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.markdown import markdown_table

HEADINGS = {
    "model": "model",
    "mean_cosine_random": "mean cosine, random",
    "mean_cosine_similar": "mean cosine, similar",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "silhouette": "silhouette",
}


def analyze(args: AnalyzeArguments, task: AnalyzedTask, options: EmbeddingsArguments) -> Findings:
    """embeddings_tsne and embeddings_cosine as .png, .svg and .csv, and the table: embeddings.md and embeddings.csv.

    Raises:
        AnalysisError: there is no model, or see `draw_texts`, `load_encoder`, `embed_texts`, `project`.
    """
    if not args.encoders:
        raise AnalysisError("--what embeddings needs --models, or --run with trained models.")
    check_installed("matplotlib", "sklearn")
    loaded = task.load("--what embeddings")
    drawn = draw_texts(loaded, options, max_texts=args.max_texts, random_from=args.texts, seed=args.seed)
    rows, projections, cosines = [], {}, {}
    for name, place in args.encoders.items():
        vectors, random_vectors = _embed(name, place, drawn, args, options)
        similar, random = cosine_similarities(vectors, drawn.similar), cosine_similarities(random_vectors, drawn.random)
        cosines[name] = {"random": random, "similar": similar}
        rows.append({"model": name} | measure(random, similar, vectors, drawn.labels, args.seed))
        seen = vectors if drawn.labels is not None else vectors[np.unique(drawn.similar)]
        projections[name] = project(seen, perplexity=options.perplexity, seed=args.seed)
    if drawn.labels is not None:
        files = draw_classes(projections, drawn.labels, drawn.label_names, args.folder)
    else:
        own = np.searchsorted(np.unique(drawn.similar), drawn.similar)
        files = draw_pairs(projections, own, args.folder, seed=args.seed)
    files += draw_cosines(cosines, "[CLS]" if options.pooling == "cls" else "mean vectors", args.folder)
    text = f"{to_markdown(rows)}\n{_explained(drawn, options)}\n"
    for name, content in (("embeddings.md", text), ("embeddings.csv", to_csv(rows))):
        atomic_write(args.folder / name, content)
        files.append(args.folder / name)
    return Findings(f"Embeddings of {loaded.name}", text, files)


def measure(
    random: np.ndarray, similar: np.ndarray, vectors: np.ndarray, labels: np.ndarray | None = None, seed: int = 0
) -> dict[str, float]:
    """The numbers of one model, by the names of `HEADINGS`; a silhouette where texts have classes.

    Args:
        random, similar: cosines of random and of similar pairs, [P].
        vectors: [N, H]; labels: int64 [N].
    """
    found = {
        "mean_cosine_random": float(random.mean()),
        "mean_cosine_similar": float(similar.mean()),
        "alignment": alignment(similar),
        "uniformity": uniformity(random),
    }
    return found if labels is None else found | {"silhouette": silhouette(vectors, labels, seed=seed)}


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each model."""
    keys = list(rows[0])
    cells = [[row["model"], *(f"{row[key]:.3f}" for key in keys[1:])] for row in rows]
    return markdown_table([HEADINGS[key] for key in keys], cells)


def _embed(
    name: str, place: str, drawn: DrawnTexts, args: AnalyzeArguments, options: EmbeddingsArguments
) -> tuple[np.ndarray, np.ndarray]:
    """A model's vectors of the texts, and of those that random pairs are of."""
    length = args.max_length
    model, tokenizer = load_encoder(place, max_length=length, trust_remote_code=args.trust_remote_code)
    embed = partial(
        embed_texts,
        model,
        tokenizer,
        pooling=options.pooling,
        layer=options.layer,
        max_length=length,
        batch_size=args.batch_size,
        description=f"Embedding with {name}",
    )
    vectors = embed(drawn.texts, drawn.text_pairs)
    return vectors, vectors if drawn.random_texts is None else embed(drawn.random_texts)


def _explained(drawn: DrawnTexts, options: EmbeddingsArguments) -> str:
    vector = "The vector of [CLS]" if options.pooling == "cls" else "The mean over tokens"
    layer = "last layer" if options.layer == -1 else f"layer {options.layer}"
    return (
        f"{vector}, {layer}. Random pairs: {len(drawn.random):,} {drawn.random_are}. Similar pairs: {len(drawn.similar):,} "
        f"{drawn.similar_are}. Alignment (similar pairs) and uniformity (random pairs) are Wang and Isola's: smaller is "
        f"better." + (" Silhouette (classes, by cosine): larger is better." if drawn.labels is not None else "")
    )
