r"""Pretrain a text model on a general corpus, without a task: masked language modelling, ELECTRA, ALE or COCO-LM.

    hf-tlm pretrain --config pretrain/tiny --corpus 'path/to/corpus/*.parquet' --output_dir runs/bert-tiny
    hf-tlm pretrain --corpus 'path/to/corpus/*.parquet' --objective electra --model_config models/electra_small \
        --max_flops 1e17 --output_dir runs/electra-small
    hf-tlm pretrain --subset runs/scierc-iss --model_name_or_path path/or/repo-id --max_steps 50000 \
        --output_dir runs/minilm-scierc

The result loads with the Auto classes of transformers, and as --model_name_or_path of `hf-tlm train`. On several devices:
`accelerate launch recipes/pretrain.py ...`, or --num_processes. Run the same command again to continue an interrupted run.
"""

from __future__ import annotations

from hf_tlm import runs
from hf_tlm.analysis import ReportArguments
from hf_tlm.config import parse, run
from hf_tlm.corpora import CorpusArguments
from hf_tlm.data import BlockArguments
from hf_tlm.retrieval import SubsetArguments
from hf_tlm.training import ArgumentsError, ModelArguments


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    corpus_args, subset_args, block_args, model_args, report_args, args = parse(
        *(CorpusArguments, SubsetArguments, BlockArguments, ModelArguments, ReportArguments),
        "hf_tlm.training.PretrainArguments",
        recipe="pretrain",
        description=__doc__,
    )
    if corpus_args.corpus and subset_args.subset:
        raise ArgumentsError(f"Pass --corpus or --subset, not both; received {corpus_args.corpus} and {subset_args.subset}.")

    # 2. The corpus, not read yet, or a subset.
    subset = subset_args.open()
    corpus = corpus_args.load() if subset is None else subset.as_corpus()

    # 3. Vocabulary, blocks, training, loss on held-out blocks, export.
    result = runs.run_pretraining(corpus, args, model_args, block_args)

    # 4. The summary, and with --report the page.
    if args.process_index == 0:
        print("\n" + result.to_text())
        if page := report_args.write(args.output_dir):
            print(f"report       {page}")


if __name__ == "__main__":
    run(main)
