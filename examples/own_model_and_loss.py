# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-tlm"]
#
# [tool.uv.sources]
# hf-tlm = { path = "..", editable = true }  # The clone. If this file is elsewhere, give the path.
# ///
"""Train your own network with your own loss on interleaved task and corpus batches.

    uv run examples/own_model_and_loss.py --task path/to/scierc --corpus 'path/to/corpus/*.parquet'

The network is a convolution over word pieces. The task loss is the focal loss (Lin et al., ICCV 2017). `TlmTrainer` needs a
model whose `forward` accepts the batches of `TlmCollator` and returns class logits, and the summed masked-LM loss if the
batch has `mlm_labels`.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig, set_seed

from hf_tlm import Mlm, TaskLoss, TlmArguments, TlmTrainer, WeightedSum, load_corpus, load_task, retrieve
from hf_tlm.data import tokenize, train_wordpiece
from hf_tlm.data.interleave import CORPUS, TASK
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.models import TlmOutput, TrainedModel


class ConvolutionModel(TrainedModel):
    """A network that predicts the class from the mean of the tokens' states, and masked tokens from their own states."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.convolution = nn.Conv1d(config.hidden_size, config.hidden_size, kernel_size=5, padding=2)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        nn.init.normal_(self.embeddings.weight, std=0.02)

    def forward(self, input_ids, attention_mask, mlm_labels=None, labels=None, **others) -> TlmOutput:
        """Return logits float [B, C] and the summed masked-LM loss. input_ids, attention_mask, mlm_labels: int64 [B, S]."""
        real = attention_mask[..., None]
        embedded = self.embeddings(input_ids) * real
        states = self.norm(embedded + F.gelu(self.convolution(embedded.mT).mT)) * real  # [B, S, H]
        logits = self.classifier(states.sum(1) / real.sum(1))
        if mlm_labels is None:
            return TlmOutput(logits=logits)
        masked = mlm_labels != -100
        scores = states[masked] @ self.embeddings.weight.T  # [M, V]
        return TlmOutput(logits=logits, mlm_loss=F.cross_entropy(scores, mlm_labels[masked], reduction="sum"))


class FocalLoss(TaskLoss):
    r"""The sum over texts of $-(1 - p)^\gamma \log p$, where p is the probability of the text's class."""

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self.gamma = gamma

    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss, summed over the texts. logits: float [B, C]; labels: int64 [B], -100 for no label."""
        losses = F.cross_entropy(logits, labels, reduction="none")
        return ((1 - torch.exp(-losses)) ** self.gamma * losses).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True, help="Folder of a labelled task, or its name.")
    parser.add_argument("--corpus", required=True, help="Files of a corpus.")
    parser.add_argument("--output_dir", default="own_model")
    parser.add_argument("--max_steps", type=int, default=2000)
    options = parser.parse_args()

    # 1. Data: a task, the passages that resemble it, and a vocabulary of both.
    task = load_task(options.task)
    subset = retrieve(task, load_corpus(options.corpus), top_k=50)
    tokenizer = train_wordpiece([*task.train["text"], *subset.dataset["text"]], vocab_size=8000)
    splits = {name: tokenize(split, tokenizer, max_length=128) for name, split in task.splits.items()}

    # 2. The model. Its config holds its sizes and is saved in checkpoints.
    set_seed(0)
    names = dict(enumerate(task.label_names))
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 128, "pad_token_id": tokenizer.pad_token_id}
    model = ConvolutionModel(PreTrainedConfig(**sizes, id2label=names, label2id={v: k for k, v in names.items()}))

    # 3. One stage: three corpus batches for every task batch. The loss of a task batch is 20 L_mlm + L_focal.
    args = TlmArguments(
        output_dir=options.output_dir,
        rho1=3,
        max_steps=options.max_steps,
        learning_rate=2e-3,
        per_device_train_batch_size=32,
        packing="none",  # One text per row: this forward does not support rows with several texts.
        save_strategy="no",
        report_to="none",
    )
    trainer = TlmTrainer(
        model,
        args,
        train_dataset=splits["train"],
        corpus_dataset=tokenize(subset.dataset, tokenizer, max_length=128),
        eval_dataset=splits["validation"],
        processing_class=tokenizer,
        objectives={CORPUS: Mlm(), TASK: WeightedSum((20.0, Mlm()), (1.0, FocalLoss()))},
        compute_metrics=compute_metrics_for(task.metric),
    )
    trainer.train()

    # 4. Scores, and the weights.
    for name in ("validation", "test"):
        print(name, trainer.evaluate(splits[name], metric_key_prefix=name)[f"{name}_{task.metric}"])
    trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
