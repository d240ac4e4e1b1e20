"""Measure what the corpus holds for each task: how much of the test texts that training lacks is in the retrieved passages.

    python benchmarks/coverage.py

For each low-resource task, compares BM25's subset (K = 50), as many random passages, and the complete corpus:
the share of passages from the task's own field; and, of the words and pairs of neighbouring words in test texts that no
training text has, the share that occurs in the passages. Uses no labels and trains nothing. Writes
benchmarks/results/coverage.json and .md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from corpus_sample import data_dir
from results_file import run_sections

from hf_tlm import load_corpus, load_task, retrieve

# The part of the corpus from a task's field: papers on language processing, biomedicine, news.
FIELDS = {"chemprot": "biomedical", "acl_arc": "cs_nlp", "scierc": "cs_nlp", "hyperpartisan": "news_reviews"}
TITLES = {name: f"The corpus and {name}" for name in FIELDS}
NOTE = (
    "*Own field*: passages of `{field}`. *New words*, *new pairs*: of those in test texts that no training text has, each "
    "counted once, the share that is in the passages; lowercased, letters and digits."
)
NOTES = {name: NOTE.format(field=field) for name, field in FIELDS.items()}
_WORD = re.compile(r"[^\W_]+")


def words_and_pairs(texts: Iterable[str]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the words and the pairs of neighbouring words that occur in the texts."""
    words: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for text in texts:
        found = _WORD.findall(text.lower())
        words.update(found)
        pairs.update(zip(found, found[1:], strict=False))
    return words, pairs


class Coverage:
    """The benchmark; one section per task."""

    def __init__(self, options: argparse.Namespace):
        self.corpus = load_corpus(f"{data_dir()}/corpus/*.parquet")
        self.all = self.corpus.to_dataset()["text"][:]
        self.there = words_and_pairs(self.all)
        self.fields = {}
        for field in sorted(set(FIELDS.values())):
            part = load_corpus(f"{data_dir()}/corpus/{field}.parquet").to_dataset()
            self.fields[field] = set(part["text"])
        for name in FIELDS:
            setattr(self, name, lambda name=name: self.rows(name))

    def rows(self, name: str) -> list[dict]:
        task = load_task(str(Path(data_dir()) / "tasks" / name))
        seen, test = words_and_pairs(task.train["text"]), words_and_pairs(task.test["text"])
        new = [found - known for found, known in zip(test, seen, strict=True)]
        bm25 = retrieve(task, self.corpus, top_k=50).dataset["text"][:]
        random = retrieve(task, self.corpus, retriever="random", num_passages=len(bm25)).dataset["text"][:]
        rows = []
        for label, texts in (("BM25", bm25), ("random", random), ("all", self.all)):
            there = self.there if texts is self.all else words_and_pairs(texts)
            row = {"passages": label, "number": len(texts), "words": sum(len(_WORD.findall(text)) for text in texts)}
            row["own field %"] = 100 * sum(text in self.fields[FIELDS[name]] for text in texts) / len(texts)
            for kind, wanted, found in zip(("words", "pairs"), new, there, strict=True):
                row[f"new {kind}"] = len(wanted)
                row[f"new {kind} here %"] = 100 * len(wanted & found) / len(wanted)
            rows.append(row)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run_sections(parser, Coverage, "coverage", TITLES, NOTES)


if __name__ == "__main__":
    main()
