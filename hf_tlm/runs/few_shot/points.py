"""Training and scoring of one point of the grid on the examples of one split, with a prompt or a classification head."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments, set_seed

from hf_tlm.data import load_tokenizer
from hf_tlm.data.interleave import TASK
from hf_tlm.metrics import compute_metrics_for
from hf_tlm.runs.few_shot.arguments import FewShotArguments, defaults_of
from hf_tlm.runs.few_shot.classifier import PromptClassifier, average_over_sets, label_word_logits, load_masked_lm
from hf_tlm.runs.few_shot.prompts import Prompt
from hf_tlm.runs.finetuning import CheckpointArguments, FinetuneArguments, finetune
from hf_tlm.runs.finetuning.kinds import EvaluationSet, kind_module
from hf_tlm.runs.finetuning.models import FinetuneTrainer, load_finetuned
from hf_tlm.runs.records import SAVED_FILE, saved_settings
from hf_tlm.tasks import Task, TaskError
from hf_tlm.training.base_trainer import ResumableTrainer
from hf_tlm.training.stages import final_scores
from hf_tlm.utils.run_files import split_folder

CHECKPOINTS = "training"


@dataclass(frozen=True)
class Episode:
    """The examples of one split.

    train, validation: k rows of each class, in the order of the classes, with the task's columns.
    """

    seed: int
    train: Dataset
    validation: Dataset


def draw_episode(task: Task, k: int, seed: int) -> Episode:
    """Draw k training and k other validation examples of every class, both from the task's training split.

    The same task, k and seed give the same examples.

    Raises:
        TaskError: k is not positive, or a class has fewer than 2 k training examples.
    """
    if k < 1:
        raise TaskError(f"k is the number of examples of a class and must be at least 1; received {k}.")
    labels = np.asarray(task.train["label"][:])
    generator = np.random.default_rng(seed)
    train, validation = [], []
    for label, name in task.id2label.items():
        rows = generator.permutation(np.flatnonzero(labels == label))
        if len(rows) < 2 * k:
            max_k = len(rows) // 2
            raise TaskError(
                f"Task {task.name} has {len(rows)} training example{'s' * (len(rows) != 1)} of class {name!r}; k = {k} for "
                f"training and {k} for validation need {2 * k}. "
                + (
                    f"Pass a smaller --k, at most {max_k}."
                    if max_k
                    else "At least two are needed: label more, or remove the class."
                )
            )
        train += rows[:k].tolist()
        validation += rows[k : 2 * k].tolist()
    return Episode(seed, task.train.select(train), task.train.select(validation))


def scored_split(task: Task) -> str:
    """Return the split to score: test, or validation if test has no labels (GLUE's; as LM-BFF and COCO-LM do)."""
    return "validation" if task.test is None else "test"


class PromptTrainer(ResumableTrainer):
    """A `ResumableTrainer` that fine-tunes a stock masked LM to fill prompts.

    The loss is the cross entropy over the classes, computed from the logits of their label words at the mask (LM-BFF,
    equation 1); evaluation gets the same logits.

    Args:
        model: a stock masked LM (`load_masked_lm`); checkpoints contain this model.
        word_ids: int [C], token id of each class's label word.
        kwargs: of `ResumableTrainer`. Rows of its datasets are results of `PromptEncoder.fill` with a `label`, collated by
            `PromptClassifier.collator`.
    """

    # compute_loss returns the mean over a micro-batch, and all micro-batches of a step have the same size.
    loss_is_scaled_for_ga = False

    def __init__(self, model: PreTrainedModel, args: TrainingArguments, *, word_ids: Sequence[int], **kwargs):
        super().__init__(model, args, **kwargs)
        self.word_ids = list(word_ids)
        # Tied weights are one tensor with several names: save it once, and do not report the other names as missing.
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
            self.watch.add(loss, {})
        return (loss, {"logits": logits}) if return_outputs else loss


@dataclass(frozen=True)
class Point:
    """A point of the grid of one split.

    split: its seed.
    """

    split: int
    learning_rate: float
    batch_size: int

    def folder(self, output_dir: Path) -> Path:
        return split_folder(output_dir, self.split) / f"lr{self.learning_rate:g}-batch{self.batch_size}"


@dataclass
class Prompted:
    """The methods `prompt` and `zero_shot`: a masked LM fills the task's prompt.

    tokenizer, prompt: shared by all points.
    """

    task: Task
    checkpoint: CheckpointArguments
    args: FewShotArguments
    tokenizer: PreTrainedTokenizerBase
    prompt: Prompt

    def classifier(self, episode: Episode | None, folder: Path | None = None) -> PromptClassifier:
        """Load the checkpoint's masked LM, or the one in `folder`, as a classifier with the split's demonstrations.

        Args:
            episode: may be None only without demonstrations.
        """
        args, checkpoint = self.args, self.checkpoint
        model = load_masked_lm(
            checkpoint.model_name_or_path if folder is None else str(folder),
            revision=checkpoint.model_revision if folder is None else None,
            trust_remote_code=checkpoint.trust_remote_code,
            attn_implementation=checkpoint.attn_implementation,
        )
        return PromptClassifier(
            model.to(args.device),  # type: ignore[arg-type]  # transformers' wrapper loses its `self`.
            self.tokenizer,
            self.prompt,
            args.max_length,
            seed=0 if episode is None else episode.seed,
            examples=episode.train if args.demonstrations and episode is not None else None,
            sets=args.demonstration_sets if args.demonstrations else 1,
            similarity_model=args.similarity_model,
            first_text_limit=args.first_text_limit,
            other_text_limit=args.other_text_limit,
            tail=args.truncation == "tail",
        )

    def train(self, point: Point, episode: Episode, folder: Path) -> dict[str, Any]:
        """Train one point, and save its best model to `folder/model`.

        Returns:
            The step of the best checkpoint on the validation examples, and its scores on them.
        """
        args = self.args.for_point(
            point.learning_rate, point.batch_size, folder / CHECKPOINTS, point.split, self.task.metric
        )
        set_seed(args.seed)
        classifier = self.classifier(episode)
        sets = classifier.draws

        def metrics(prediction: EvalPrediction) -> dict[str, float]:
            assert isinstance(prediction.predictions, np.ndarray) and isinstance(prediction.label_ids, np.ndarray)
            return compute_scores(self.task, average_over_sets(prediction.predictions, sets), prediction.label_ids[::sets])

        trainer = PromptTrainer(
            classifier.model,
            args,
            word_ids=classifier.encoder.word_ids,
            train_dataset=classifier.training_inputs(episode.train, args.max_steps * point.batch_size),
            eval_dataset=classifier.inputs(episode.validation),
            data_collator=classifier.collator,
            processing_class=self.tokenizer,
            compute_metrics=metrics,
        )
        trainer.train(resume_from_checkpoint=True)
        scores = final_scores(trainer)
        if trainer.is_world_process_zero():
            classifier.save(folder / "model", {SAVED_FILE: saved_settings(self.task, {"max_length": self.args.max_length})})
            shutil.rmtree(folder / CHECKPOINTS)
        trainer.accelerator.wait_for_everyone()
        names = (self.task.metric, *self.task.spec.further_metrics, "accuracy")
        return {
            "best_step": trainer.state.best_global_step,
            "validation": {name: scores[f"eval_{name}"] for name in dict.fromkeys(names)},
        }

    def logits(self, episode: Episode | None, folder: Path | None, rows: Dataset) -> np.ndarray:
        """Return the logits, float [N, C], of the model in `folder`, or of the checkpoint if that is None."""
        classifier = self.classifier(episode, folder)
        trainer = PromptTrainer(
            classifier.model,
            self.args.for_trainer(self.args.folder if folder is None else folder, classifier.seed),
            word_ids=classifier.encoder.word_ids,
            data_collator=classifier.collator,
            processing_class=self.tokenizer,
        )
        predictions = trainer.predict(classifier.inputs(rows)).predictions
        assert isinstance(predictions, np.ndarray)
        return average_over_sets(predictions, classifier.draws)


@dataclass
class WithHead:
    """The method `finetune`: standard fine-tuning of a model with a new classification head, on the same examples."""

    task: Task
    checkpoint: CheckpointArguments
    args: FewShotArguments

    def train(self, point: Point, episode: Episode, folder: Path) -> dict[str, Any]:
        """Train one point, see `Prompted.train`; the record has no step.

        Returns:
            The scores on the validation examples.
        """
        args = self._create_arguments(
            output_dir=str(folder / "model"),
            seeds=[point.split],
            learning_rate=point.learning_rate,
            total_batch_size=point.batch_size,
            eval_strategy="steps",
            train_sampling_strategy="random",
        )
        splits = {"train": episode.train, "validation": episode.validation}
        run = finetune(replace(self.task, splits=splits), self.checkpoint, args)
        return {"validation": run.seeds[0]["validation"]}

    def logits(self, episode: Episode | None, folder: Path | None, rows: Dataset) -> np.ndarray:
        """Return the logits of the model in `folder`, see `Prompted.logits`."""
        assert folder is not None  # This method always trains a head first.
        args = self._create_arguments(output_dir=str(folder), select_by="last", eval_strategy="no")
        kind, trust = kind_module("classification"), self.checkpoint.trust_remote_code
        tokenizer = load_tokenizer(str(folder), trust_remote_code=trust, masking=False)
        held_out = EvaluationSet(kind, rows, tokenizer, args)
        trainer = FinetuneTrainer(
            load_finetuned(folder, "classification", args, trust),
            args,
            data_collator=partial(kind.collate, tokenizer),
            processing_class=tokenizer,
        )
        return held_out.outputs(trainer)

    def _create_arguments(self, **values: Any) -> FinetuneArguments:
        """Return arguments of fine-tuning with the changed options that both classes share, and `values`."""
        defaults = defaults_of(FinetuneArguments)
        common = {name for name in defaults_of(FewShotArguments) if name in defaults}
        changed = {name: value for name in common if (value := getattr(self.args, name)) != defaults[name]}
        args = FinetuneArguments(**changed | values)
        self.args.track_as_part(args, args.folder)
        return args


def compute_scores(task: Task, logits: np.ndarray, labels: Sequence[int] | np.ndarray) -> dict[str, float]:
    metrics = compute_metrics_for(task.metric, *task.spec.further_metrics)
    return metrics(EvalPrediction(logits, np.asarray(labels)))
