# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-tlm"]
#
# [tool.uv.sources]
# hf-tlm = { path = "..", editable = true }  # The clone. If this file is elsewhere, give the path.
# ///
"""Find the texts that your own classifier would learn most from, by influence (ISS).

    uv run examples/influence_on_own_classifier.py --model path/to/classifier --task path/to/scierc \
        --texts 'path/to/unlabelled/*.jsonl'

The classifier is any sequence classifier with an encoder that hf_tlm knows (BERT, RoBERTa, ELECTRA, ModernBERT, ...). It
also needs a trained masked-LM head: in the same checkpoint, or in a folder mlm/ next to it. The influence of a text is the
inner product of two gradients: that of its masked-LM loss, and that of the task's loss on validation examples. It says how
much a training step on the text lowers the task's loss.
"""

import argparse
import json
from pathlib import Path

from transformers import AutoTokenizer

from hf_tlm import InfluenceScorer, TlmModel, load_corpus, load_task
from hf_tlm.data import tokenize
from hf_tlm.influence.selection import select_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Folder or Hub id of the classifier.")
    parser.add_argument("--task", required=True, help="Folder of the labelled task; its validation split decides.")
    parser.add_argument("--texts", required=True, help="Files of unlabelled texts.")
    parser.add_argument("--keep", type=float, default=0.2, help="Share of the texts to keep.")
    parser.add_argument("--output", type=Path, default=Path("influential.jsonl"))
    options = parser.parse_args()

    # 1. The task, the texts, and the classifier with its masked-LM head.
    task, passages = load_task(options.task), load_corpus(options.texts).to_dataset()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = TlmModel.from_checkpoint(options.model, id2label=dict(enumerate(task.label_names)))
    if model.classifier_is_new or model.mlm_head_is_new:
        raise SystemExit(
            f"{options.model} lacks a masked-LM head, or a classifier of the task's {len(task.label_names)} classes: "
            "gradients of random weights say nothing. Train it first."
        )

    # 2. Gradients of the last layer: for the task once, then for every text.
    scorer = InfluenceScorer([model], tokenizer, layer=-1)
    length = scorer.max_length()
    scorer.fit(tokenize(task.validation, tokenizer, length), task_batch_size=4)
    rows = tokenize(passages, tokenizer, length).add_column("id", passages["id"])
    scores = scorer.score(rows)  # float [N texts, T task batches]; NaN if nothing can be masked

    # 3. The texts that rank best on any task batch, as in the paper, so a batch with large gradients does not dominate.
    kept = select_rows(scores, corpus_batch_size=1, num_passages=max(1, round(options.keep * len(passages))))
    with options.output.open("w", encoding="utf-8") as file:
        for row, influence in zip(kept.rows.tolist(), kept.influence.tolist(), strict=True):
            file.write(json.dumps({"text": passages[row]["text"], "influence": influence}, ensure_ascii=False) + "\n")
    print(f"{len(kept.rows):,} of {len(passages):,} texts: {options.output}")


if __name__ == "__main__":
    main()
