"""Retrieve the passages of a general corpus that resemble a labelled task: task + corpus -> subset.

    python recipes/retrieve.py --task path/to/scierc --corpus 'path/to/corpus/*.parquet' --top_k 50 \
        --output_dir runs/scierc-bm25
    python recipes/retrieve.py --task path/to/scierc --corpus 'path/to/corpus/*.parquet' --retriever random \
        --like runs/scierc-bm25 --output_dir runs/scierc-random

The folder loads with `hf_tlm.Subset.load` and with `datasets.load_dataset`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hf_tlm.corpora import CorpusArguments
from hf_tlm.parser import parse, run
from hf_tlm.retrieval import QUERY_MODES, RETRIEVERS, Bm25Settings, RetrievalError, Subset, retrieve
from hf_tlm.tasks import TaskArguments


@dataclass
class RetrieveArguments:
    """How passages are chosen."""

    output_dir: str = field(metadata={"help": "Folder of the subset; one that holds a subset is replaced."})
    retriever: str = field(default="bm25s", metadata={"help": "Engine, or random.", "choices": list(RETRIEVERS)})
    top_k: int | None = field(
        default=None,
        metadata={
            "help": "Passages per training text. Default, the paper's: 5000 under 5K training texts, 50 over 100K, else 500."
        },
    )
    query_mode: str = field(
        default="text", metadata={"help": "The whole text, or its RAKE key phrases.", "choices": list(QUERY_MODES)}
    )
    bm25_variant: str = field(default="lucene", metadata={"help": "lucene, robertson, atire, bm25l, bm25+, okapi."})
    k1: float = field(default=1.2, metadata={"help": "BM25's term frequency saturation."})
    b: float = field(default=0.75, metadata={"help": "BM25's length normalisation."})
    delta: float | None = field(default=None, metadata={"help": "Lower bound of bm25l (default 0.5) and bm25+ (default 1)."})
    keep_stopwords: bool = field(default=False, metadata={"help": "Keep English stop words."})
    num_passages: int | None = field(default=None, metadata={"help": "Size of a random subset."})
    like: str | None = field(default=None, metadata={"help": "Take the size of a random subset from this subset."})
    seed: int = field(default=0, metadata={"help": "Seed of a random subset."})
    num_examples: int = field(default=5, metadata={"help": "Retrieved passages to print."})


def main() -> None:
    # 1. Arguments.
    task_args, corpus_args, args = parse(
        TaskArguments, CorpusArguments, RetrieveArguments, recipe="retrieve", description=__doc__
    )
    if args.like is not None and args.retriever != "random":
        raise RetrievalError("--like gives the size of a random subset: add --retriever random.")

    if int(os.environ.get("RANK", "0")) > 0:
        return  # Retrieval uses all cores of one process; others that `accelerate launch` started have nothing to do.

    # 2. The task, whose training texts are the queries, and the corpus.
    task, corpus = task_args.load(), corpus_args.load()

    # 3. Retrieve.
    subset = retrieve(
        task,
        corpus,
        retriever=args.retriever,
        top_k=args.top_k,
        query_mode=args.query_mode,
        settings=Bm25Settings(
            variant=args.bm25_variant,
            k1=args.k1,
            b=args.b,
            delta=args.delta,
            stopwords=None if args.keep_stopwords else "en",
        ),
        num_passages=len(Subset.load(args.like).dataset) if args.like else args.num_passages,
        seed=args.seed,
    )

    # 4. Save, and say what was found.
    subset.save(args.output_dir)
    print("\n" + subset.summary())
    for query, passage, score in subset.examples(task, args.num_examples):
        print(f"\n  task text: {query:.200}\n  retrieved: {passage:.200}  (BM25 {score:.1f})")
    print(f"\nSaved to {args.output_dir}")


if __name__ == "__main__":
    run(main)
