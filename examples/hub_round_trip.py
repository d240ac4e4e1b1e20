# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-tlm"]
#
# [tool.uv.sources]
# hf-tlm = { path = "..", editable = true }  # The clone. If this file is elsewhere, give the path.
# ///
"""Publish a subset and the model that was trained on it, and load both as any user would.

    hf auth login
    uv run examples/hub_round_trip.py --subset runs/scierc-bm25 --model runs/scierc-tlm --user your-name

The folders are those that `hf-tlm retrieve` and `hf-tlm train` write. Repositories are created as private ones. Each push
is one commit.
"""

import argparse

from datasets import load_dataset
from transformers import AutoModelForMaskedLM, pipeline

from hf_tlm import Subset, hub


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subset", required=True, help="Folder of a subset.")
    parser.add_argument("--model", required=True, help="Folder of a finished run.")
    parser.add_argument("--user", required=True, help="Your name on the Hub, or your organisation's.")
    options = parser.parse_args()
    dataset_id, model_id = f"{options.user}/tlm-example-subset", f"{options.user}/tlm-example"

    # 1. Publish. The model's card names the subset at the commit of the subset's push.
    pushed = hub.publish_subset(options.subset, dataset_id)
    print(pushed.to_text())
    print(hub.publish_model(options.model, model_id, dataset=f"{dataset_id}@{pushed.commit}").to_text())

    # 2. Load without hf_tlm: a stock data set, a stock classifier, and a stock masked LM with the same encoder.
    rows = load_dataset(dataset_id, split="train", revision=pushed.commit)
    print(f"{len(rows):,} passages, the best: {rows[0]['text']:.80}")
    print(pipeline("text-classification", model_id)(rows[0]["text"]))
    print(type(AutoModelForMaskedLM.from_pretrained(model_id, subfolder="mlm")).__name__)

    # 3. Load with hf_tlm: the subset records how it was made, and can train the next model.
    subset = Subset.open(f"{dataset_id}@{pushed.commit}")
    print(subset.summary())


if __name__ == "__main__":
    main()
