# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-tlm"]
#
# [tool.uv.sources]
# hf-tlm = { path = "..", editable = true }  # The clone. If this file is elsewhere, give the path.
# ///
"""Search a corpus by exact BM25, with an index on disk. It needs no task and no training.

    uv run examples/retrieval_as_a_library.py --corpus 'path/to/corpus/*.parquet' "hidden Markov models" "protein folding"

The first run builds the index in the folder --index, and later runs open it. If the files of the corpus change, choose
another folder.
"""

import argparse

from hf_tlm import Bm25Settings, Index, load_corpus, tokenize_texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queries", nargs="+")
    parser.add_argument("--corpus", required=True, help="Files of a corpus.")
    parser.add_argument("--index", default="bm25_index", help="Folder of the index of this corpus.")
    parser.add_argument("--top_k", type=int, default=3)
    options = parser.parse_args()

    # 1. Passages of at most 100 words, cut at sentence ends.
    corpus = load_corpus(options.corpus, max_words=100)
    passages = corpus.to_dataset()  # Columns id, text, source; on disk, memory-mapped.

    # 2. The index: it is built, extended, or only opened.
    index = Index.open_or_build(options.index, passages, corpus_name=corpus.name, fingerprint=corpus.fingerprint)

    # 3. Queries are split into words like the passages. Results are in the order of the queries.
    queries = tokenize_texts(options.queries, index.analyzer)
    found = index.search(queries, top_k=options.top_k, settings=Bm25Settings(variant="lucene", k1=1.2, b=0.75))
    for query, (rows, scores) in zip(options.queries, found, strict=True):
        print(f"\n{query}")
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            print(f"  {score:6.2f}  {passages[row]['text']:.100}")


if __name__ == "__main__":
    main()
