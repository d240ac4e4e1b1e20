"""What of stage 2 depends on the task's texts: how long they are, and how many steps its epochs make."""

from __future__ import annotations

import copy
import math

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_tlm.data import tokenize
from hf_tlm.data.tokenization import text_lengths
from hf_tlm.training.arguments import TlmArguments

# A text of which more is cut off than this share of all others' ends is rare enough.
SHARE_OF_TEXTS = 0.99
MULTIPLE = 32
# Tokens of the longest text where the model's positions set no limit: self-attention is quadratic.
LONGEST = 512


def with_task_defaults(
    args: TlmArguments, train: Dataset, tokenizer: PreTrainedTokenizerBase, positions: int | None
) -> TlmArguments:
    """A copy of `args` whose stage 2 has a length and a number of steps of its own, where they were left to the task.

    `stage2_max_length` 0 becomes the length that 99% of the training texts keep to, rounded up to a multiple of 32, at most
    512 and what the model has positions for. With `stage2_min_steps`, epochs that are fewer steps become so many steps.

    Args:
        train: the task's training split, as it is loaded.
        positions: tokens that the model has positions for; None for no limit.
    """
    args = copy.copy(args)
    if args.stage == "1":
        return args
    if args.stage2_max_length == 0:
        most = min(LONGEST, positions or LONGEST)
        lengths = text_lengths(tokenize(train, tokenizer, most, description="Measuring the task's texts"))
        own = math.ceil(float(np.quantile(lengths, SHARE_OF_TEXTS)) / MULTIPLE) * MULTIPLE
        args.stage2_max_length = min(own, most)
    if args.stage2_min_steps:
        epoch = math.ceil(len(train) / args.stage2_total_batch_size)
        if args.stage2_num_train_epochs * epoch < args.stage2_min_steps:
            args.stage2_max_steps = args.stage2_min_steps
        args.stage2_min_steps = 0
    return args
