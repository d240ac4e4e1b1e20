r"""Retrieve the passages of a general corpus that resemble a labelled task, as a subset.

    hf-tlm retrieve --config tlm/coffee --task path/to/scierc --corpus 'path/to/corpus/*.parquet' \
        --output_dir runs/scierc-bm25
    hf-tlm retrieve --config tlm/coffee --task path/to/scierc --corpus 'path/to/corpus/*.parquet' \
        --retriever random --like runs/scierc-bm25 --output_dir runs/scierc-random

Documents are split into passages of the length used in training (--passage_words); a preset of tlm sets how many are
retrieved. The folder loads with `hf_tlm.Subset.load` and with `datasets.load_dataset`; its `report.md` says what was found.
--push_to_hub --hub_dataset_id owner/name publishes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_tlm import retrieval
from hf_tlm.analysis import ReportArguments
from hf_tlm.config import parse, run
from hf_tlm.corpora import PassageArguments
from hf_tlm.hub import SubsetHubArguments
from hf_tlm.retrieval import RetrievalArguments
from hf_tlm.tasks import TaskArguments
from hf_tlm.utils.locks import owned
from hf_tlm.utils.options import option
from hf_tlm.utils.process import is_first_process
from hf_tlm.utils.shown import one_line
from hf_tlm.utils.texts import count_words, share_beyond

# About how many words of a passage fit into 128 tokens, the default length of training.
WORDS = 100
SAMPLE = 2000  # Number of passages from which their length is estimated.


@dataclass
class RetrieveArguments:
    """Settings of the output."""

    output_dir: str = option(help="Folder of the subset; an existing subset there is replaced.")
    num_examples: int = option(3, "Number of retrieved passages to print; the report has ten.")
    quote_task_texts: bool = option(
        False, "Quote texts of the task in report.md and the card, beside the passages that they retrieved."
    )


def main() -> None:
    # 1. Arguments.
    classes = (TaskArguments, PassageArguments, RetrievalArguments, RetrieveArguments, ReportArguments, SubsetHubArguments)
    task_args, corpus_args, retrieval_args, args, report_args, hub_args = parse(
        *classes, recipe="retrieve", description=__doc__
    )
    if not is_first_process():
        return  # One process uses all cores for retrieval; others that `accelerate launch` started have nothing to do.
    hub_args.check()
    retrieval_args.check(args.output_dir)

    with owned(args.output_dir):
        # 2. The task, whose training texts are the queries, and the corpus.
        task = task_args.load("Retrieval", "classification", "regression")
        corpus = corpus_args.load(optional=retrieval_args.retriever == "elasticsearch")

        # 3. Retrieve.
        subset = retrieval_args.retrieve(task, corpus)

        # 4. Save the subset, and print what was found.
        subset.save(args.output_dir, report=retrieval.retrieval_report(subset, task if args.quote_task_texts else None))
        print("\n" + subset.summary())
        for query, passage, score in subset.examples(task, args.num_examples):
            print(f"\n  task text: {one_line(query, 200)}\n  retrieved: {one_line(passage, 200)}  (BM25 {score:.1f})")
        sample = subset.dataset.select(range(0, len(subset.dataset), 1 + len(subset.dataset) // SAMPLE))["text"][:]
        whole = corpus is not None and corpus.max_words is None  # Passages of an Elasticsearch index cannot be split.
        if whole and corpus_args.passage_words != 0 and (unseen := share_beyond(sample, WORDS)) > 0.1:
            print(
                f"\n{unseen:.0%} of the passages' words are beyond the first {WORDS} of a passage, which training on 128 "
                f"tokens sees. Pass --passage_words {WORDS} to retrieve passages of that length."
            )
        of_lines = corpus_args.corpus_sample_by == "line" and corpus and any(".txt" in part.name for part in corpus.parts)
        words = sum(map(count_words, sample)) / len(sample)
        if of_lines and words < 20:
            print(
                f"\nThe passages have {words:.0f} words on average, because every line of a .txt file is one. If lines are "
                f"not separate texts, pass --corpus_sample_by paragraph or document, with --passage_words {WORDS}, for "
                "longer passages."
            )
        print(f"\nSaved to {args.output_dir}; its report.md has counts, sources and examples.")
        if page := report_args.write(args.output_dir, task, subset):
            print(f"Report: {page}.")

        # 5. Publish it, with --push_to_hub.
        if push := hub_args.publish(args.output_dir):
            print(push.to_text())


if __name__ == "__main__":
    run(main)
