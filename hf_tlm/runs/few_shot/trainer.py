"""The Trainer of prompts."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, TrainingArguments

from hf_tlm.data.interleave import TASK
from hf_tlm.runs.few_shot.model import label_word_logits
from hf_tlm.training.resumable import ResumableTrainer


class PromptTrainer(ResumableTrainer):
    """`ResumableTrainer` on a stock masked LM.

    The only change is the loss, the cross entropy of the classes over the logits of their label words at the mask (LM-BFF,
    equation 1), and that these logits are what evaluation sees.

    Args:
        model: a stock masked LM (`load_masked_lm`); it is what checkpoints hold.
        word_ids: int [C], a class's label word.
        datasets: of `PromptEncoder.fill` and `label`; collated by `PromptCollator`.
    """

    # compute_loss gives the mean over a micro-batch; those of a step are equally large.
    loss_is_scaled_for_ga = False

    def __init__(self, model: PreTrainedModel, args: TrainingArguments, *, word_ids: Sequence[int], **kwargs):
        super().__init__(model, args, **kwargs)
        self.word_ids = list(word_ids)
        # One tensor under several names: checkpoints hold it once, and loading does not miss the others.
        model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.watch.begin(TASK, batches)
        return batches, count

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        columns = (inputs[name] for name in ("input_ids", "attention_mask", "mask_positions"))
        logits = label_word_logits(model, self.word_ids, *columns, stock=self.accelerator.unwrap_model(model))
        loss = cross_entropy(logits.float(), inputs["labels"], label_smoothing=self.args.label_smoothing_factor)
        if model.training:
            self.watched(loss, {})
        return (loss, {"logits": logits}) if return_outputs else loss

    def create_model_card(self, *args, **kwargs) -> None:
        """Nothing: a stock model's card would say nothing of its prompt."""
