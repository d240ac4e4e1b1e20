"""What a fine-tuned model predicts on, and where that goes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hf_tlm.hub.repo_id import find_repo
from hf_tlm.training.errors import ArgumentsError


@dataclass
class PredictArguments:
    """Predictions for unlabelled data."""

    predict: str | None = field(
        default=None,
        metadata={
            "help": "File, or Hub dataset, to predict on with the finished model; it has the columns of the task, and "
            "needs no labels."
        },
    )
    predict_output: str | None = field(
        default=None, metadata={"help": "Where predictions go. Default: a file of that name in output_dir/predictions."}
    )
    predict_format: str = field(
        default="jsonl",
        metadata={
            "help": "jsonl: a line a row, with probabilities. glue: a file for GLUE's leaderboard; predict_output is its "
            "folder. squad: a JSON object, id -> answer.",
            "choices": ["jsonl", "glue", "squad"],
        },
    )

    def __post_init__(self):
        if self.predict is not None and not os.path.isfile(self.predict):
            # Before a training, at whose end it would come out.
            if os.path.exists(self.predict):
                raise ArgumentsError(f"predict: expected a file, or a dataset of the Hub; {self.predict} is no file.")
            if find_repo(self.predict, "dataset") is None:
                raise ArgumentsError(f"predict: expected a file, or a dataset of the Hub; there is no {self.predict}.")
        if self.predict_output and self.predict and os.path.realpath(self.predict_output) == os.path.realpath(self.predict):
            raise ArgumentsError(f"predict_output {self.predict_output} is the file to predict on. Give another.")
        for name in ("predict_output", "predict_format"):
            if self.predict is None and getattr(self, name) != getattr(PredictArguments, name):
                raise ArgumentsError(f"{name} {getattr(self, name)} has no effect without predict. Give --predict a file.")
