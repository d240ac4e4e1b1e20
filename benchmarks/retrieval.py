"""Compare retrieval with other engines: speed of search, time and memory of the index, sharding, and growth with size.

    python benchmarks/retrieval.py --sections search build memory sharded scale terms --work_dir runs/retrieval_benchmark

Queries are the ChemProt training texts; passages are the corpus of HF_TLM_DATA (default ../shared/data), extended beyond its
size with perturbed copies (see perturbed_corpus.py). Both sides alternate in one process, or, for memory, each run in a new
one; every figure is the median of `--repeats`. Sections that are not requested keep their earlier figures. Writes
benchmarks/results/retrieval.json and .md. Indexes and corpora stay in `--work_dir`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median

import retrieval_measures as measures
from corpus_sample import data_dir
from measuring import fresh
from perturbed_corpus import make_corpus
from results_file import run_sections

TITLES = {
    "search": "Searching, end to end from query texts to the top K (ids, scores); one thread unless it says otherwise",
    "build": "Text to searchable index, each in a fresh process reading the same Arrow file",
    "memory": "Memory of searching a loaded index, each in a fresh process, one thread",
    "sharded": "Sharded over two local processes against one index on all cores, from the Arrow file to the union's texts",
    "scale": "Cost against size, all cores",
    "terms": "Keeping only the terms of highest idf of every query",
}
NOTES = {
    "search": "bm25s with numba, its fastest call on one thread (all queries in one batch, sorted, float32). `ratio` is "
    "queries per second over bm25s's; `2 threads` over our own with one. Before any timing the results of both sides are "
    "compared, up to ties.",
    "build": "`peak` is the process's largest resident set, which counts the pages of the mapped Arrow file too; "
    "`anonymous` is memory that no file backs.",
    "memory": "As above. The mapped index counts as resident as far as it is in the page cache; `anonymous` is what the "
    "search itself takes, and what a smaller machine would need.",
    "sharded": "The sharded side includes the start of its processes and the writing of its intermediate files.",
    "scale": "Growth compares the cost of a passage with that of the line above: 1 is linear.",
    "terms": "`kept` is the share of the full queries' union that the shorter queries' union has too.",
}


class Benchmark:
    """The benchmark; one method per section, which returns its rows."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.data = str(data_dir())
        self.work_dir = Path(options.work_dir).absolute()
        # The cache of `datasets`, for child processes too.
        os.environ["HF_DATASETS_CACHE"] = str(self.work_dir / "datasets")
        self.stop_words = [{"kept": None, "removed": "en"}[name] for name in options.stop_words]
        self.common = {"data": self.data, "num_queries": options.num_queries}

    def corpus(self, size: int) -> str:
        path, real = make_corpus(Path(self.data), self.work_dir, size)
        self.real = real
        return str(path)

    def search(self) -> list[dict]:
        rows, o = [], self.options
        for size in o.sizes:
            for stopwords in self.stop_words:
                corpus = self.corpus(size)
                arguments = {"size": size, "stopwords": stopwords, "top_ks": o.top_k, "repeats": o.repeats}
                arguments |= {"corpus": corpus, "work_dir": str(self.work_dir), "tantivy_queries": o.tantivy_queries}
                rows += fresh(measures.measure_search, **self.common, **arguments)
        return rows

    def build(self) -> list[dict]:
        corpus, folder, measured = self.corpus(self.options.build_size), str(self.work_dir / "build"), {}
        rows = []
        for stopwords in self.stop_words:
            for _ in range(self.options.build_repeats):
                for engine in ("ours", "bm25s"):
                    one = fresh(measures.measure_build, engine=engine, corpus=corpus, folder=folder, stopwords=stopwords)
                    measured.setdefault((stopwords, engine), []).append(one)
            middle = {
                engine: {
                    name: median(m[name] for m in measured[stopwords, engine]) for name in ("seconds", "peak", "anonymous")
                }
                for engine in ("ours", "bm25s")
            }
            rows += [
                {
                    "passages": self.options.build_size,
                    "stop words": "removed" if stopwords else "kept",
                    "engine": engine,
                    "seconds": middle[engine]["seconds"],
                    "bm25s's over ours": middle["bm25s"]["seconds"] / middle["ours"]["seconds"],
                    "peak, MB": middle[engine]["peak"],
                    "anonymous, MB": middle[engine]["anonymous"],
                    "ours over bm25s's peak": middle["ours"]["peak"] / middle["bm25s"]["peak"],
                }
                for engine in ("ours", "bm25s")
            ]
        return rows

    def memory(self) -> list[dict]:
        rows = []
        for size in self.options.memory_sizes:
            where = {"corpus": self.corpus(size), "folder": str(self.work_dir / f"index-{size}-all"), "stopwords": None}
            fresh(measures.make_index, **where)
            for batch in self.options.query_batch_sizes:
                one = fresh(measures.measure_memory, **where, **self.common, top_k=self.options.memory_top_k, batch=batch)
                rows.append(
                    {
                        "passages": size,
                        "query_batch_size": batch,
                        "K": self.options.memory_top_k,
                        "index, MB": one["index"],
                        "peak, MB": one["peak"],
                        "anonymous, MB": one["anonymous"],
                        "of it before the search, MB": one["before"],
                        "seconds": one["seconds"],
                    }
                )
        return rows

    def _whole(self, size: int, shards: int | None) -> dict:
        where = {"corpus": self.corpus(size), "folder": str(self.work_dir / "whole"), "stopwords": None}
        return fresh(measures.measure_whole, **where, **self.common, top_k=self.options.whole_top_k, shards=shards)

    def sharded(self) -> list[dict]:
        rows: list[dict] = []
        for size in self.options.sharded_sizes:
            pairs = [(self._whole(size, None), self._whole(size, 2)) for _ in range(self.options.build_repeats)]
            if any(a["digest"] != b["digest"] for a, b in pairs):
                raise RuntimeError(f"Sharded and single retrieval disagree at {size} passages.")
            single, two = (median(pair[side]["seconds"] for pair in pairs) for side in (0, 1))
            rows.append(
                {
                    "passages": size,
                    "of them perturbed copies": size - self.real,
                    "single, s": single,
                    "2 shards, s": two,
                    "ratio": median(b["seconds"] / a["seconds"] for a, b in pairs),
                    "2 shards, microseconds a passage": two / size * 1e6,
                    "union": pairs[0][0]["union"],
                }
            )
        return rows

    def scale(self) -> list[dict]:
        rows: list[dict] = []
        for size in self.options.scale_sizes:
            runs = [self._whole(size, None) for _ in range(self.options.build_repeats)]
            whole, build = (median(run[name] for run in runs) for name in ("seconds", "build"))
            cost = whole / size * 1e6
            rows.append(
                {
                    "passages": size,
                    "of them perturbed copies": size - self.real,
                    "building, s": build,
                    "searching and gathering, s": whole - build,
                    "microseconds a passage": cost,
                    "growth": cost / rows[-1]["microseconds a passage"] if rows else None,
                }
            )
        return rows

    def terms(self) -> list[dict]:
        size = self.options.terms_size
        where = {"corpus": self.corpus(size), "folder": str(self.work_dir / f"index-{size}-all"), "stopwords": None}
        arguments = {"top_ks": self.options.top_k, "limits": self.options.max_query_terms, "repeats": self.options.repeats}
        return fresh(measures.measure_terms, **where, **self.common, **arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sizes", nargs="+", type=int, default=[50_000, 200_000, 500_000], help="Numbers of passages in `search`.")
    add(
        "--stop_words",
        nargs="+",
        choices=("kept", "removed"),
        default=["kept", "removed"],
        help="Stop words in `search` and `build`.",
    )
    add("--top_k", nargs="+", type=int, default=[50, 500, 5000])
    add("--num_queries", type=int, help="Number of queries. Default: all 4,169.")
    add("--tantivy_queries", type=int, default=300, help="Queries for Tantivy, fewer as it is slow; 0 leaves it out.")
    add("--repeats", type=int, default=5)
    add("--build_repeats", type=int, default=3, help="Repeats of `build`, `sharded` and `scale`.")
    add("--build_size", type=int, default=500_000)
    add("--memory_sizes", nargs="+", type=int, default=[200_000, 500_000, 1_000_000])
    add("--memory_top_k", type=int, default=500)
    add("--query_batch_sizes", nargs="+", type=int, default=[64, 512])
    add("--sharded_sizes", nargs="+", type=int, default=[100_000, 200_000, 1_000_000])
    add("--scale_sizes", nargs="+", type=int, default=[100_000, 200_000, 500_000, 1_000_000])
    add("--whole_top_k", type=int, default=500, help="K of `sharded` and `scale`.")
    add("--terms_size", type=int, default=200_000)
    add("--max_query_terms", nargs="+", type=int, default=[4, 8, 16, 32])
    add("--work_dir", default="runs/retrieval_benchmark")
    run_sections(parser, Benchmark, "retrieval", TITLES, NOTES, hidden=("seconds a query",))


if __name__ == "__main__":
    main()
