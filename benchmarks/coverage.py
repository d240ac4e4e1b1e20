"""What the corpus holds of each task: how much of the test texts that training has not shown is in what is retrieved.

    python benchmarks/coverage.py

Of each low-resource task BM25's subset (K = 50), random passages of the same number, and the whole corpus: the share of its
passages that are of the task's own field, and of the words and pairs of neighbouring words in test texts that no training
text has, the share that the passages have. No labels are used and nothing is trained. Writes
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

# The part of the corpus that is of a task's field: papers on language processing, biomedicine, news.
FIELDS = {"chemprot": "biomedical", "acl_arc": "cs_nlp", "scierc": "cs_nlp", "hyperpartisan": "news_reviews"}
TITLES = {name: f"The corpus and {name}" for name in FIELDS}
NOTE = (
    "*Own field*: passages of `{field}`. *New words*, *new pairs*: of those in test texts that no training text has, each "
    "counted once, the share that is in the passages; lowercased, letters and digits."
)
NOTES = {name: NOTE.format(field=field) for name, field in FIELDS.items()}
_WORD = re.compile(r"[^\W_]+")


def words_and_pairs(texts: Iterable[str]) -> tuple[set[str], set[tuple[str, str]]]:
    """What occurs at least once."""
    words: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for text in texts:
        found = _WORD.findall(text.lower())
        words.update(found)
        pairs.update(zip(found, found[1:], strict=False))
    return words, pairs


class Coverage:
    """The sections, one a task."""

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
