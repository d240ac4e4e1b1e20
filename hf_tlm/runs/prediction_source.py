"""Find out what the model in a folder predicts: its kind of task, columns, classes and maximal length of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.hub.repo import ADAPTER_FILE, FILES, checkpoint_folder, split_revision
from hf_tlm.models import ModelError
from hf_tlm.models.families import longest_input
from hf_tlm.models.loading import class_names, reading
from hf_tlm.runs.arguments import LINEAR, MAJORITY, check_models, has_network, linear_folder
from hf_tlm.runs.few_shot.classifier import PROMPT_FILE
from hf_tlm.runs.finetuning.arguments import FinetuneArguments
from hf_tlm.runs.records import SAVED_FILE, read_saved
from hf_tlm.tasks import TaskError, TaskSpec
from hf_tlm.training.run_folder import RESULTS_FILE, SETTINGS_FILE
from hf_tlm.utils.json_files import find_object, read_object
from hf_tlm.utils.run_files import split_folder

# Suffix of the name of a stock class -> kind of task.
HEADS = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "question_answering",
    "ForMultipleChoice": "multiple_choice",
}
# A tokenizer without a limit has a model_max_length of about 1e30; the second is used where the model has no limit either.
_NO_LIMIT, _DEFAULT_LENGTH = 1 << 20, 512


@dataclass(frozen=True)
class Source:
    """A model to predict with.

    folder: the model's folder, local or in the Hub's cache.
    spec: the task, with the names of its columns.
    label_names: names of the classes or tags.
    arguments: the fields of `FinetuneArguments` that predictions depend on.
    prompted: whether it is a masked LM with a prompt.
    stock: whether the folder does not describe its task, such as a checkpoint of transformers.
    fills_masks: whether it is used as a masked LM, with or without a prompt; only with `masked_lm` of `find_source`.
    linear: whether it is a linear model instead of a network.
    """

    folder: Path
    spec: TaskSpec
    label_names: tuple[str, ...]
    arguments: dict[str, Any]
    prompted: bool = False
    stock: bool = False
    fills_masks: bool = False
    linear: bool = False

    def finetune_arguments(self, folder: str, **options: Any) -> FinetuneArguments:
        """Return the `arguments` and further `options`, for a Trainer in `folder` that logs nothing and does not train."""
        quiet: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "select_by": "last", "eval_strategy": "no"}
        return FinetuneArguments(output_dir=folder, **quiet, **self.arguments, **options)


def find_source(
    model_name_or_path: str,
    *,
    trust_remote_code: bool = False,
    text_columns: str | Sequence[str] | None = None,
    max_length: int | None = None,
    files: Sequence[str] = FILES,
    masked_lm: bool = False,
) -> Source:
    """Find the model in a local folder or on the Hub, and what it predicts.

    Args:
        files: globs of the files that are needed of a repository.
        masked_lm: whether a masked LM is accepted, too.
        text_columns: replace those that the model was trained on (stock checkpoints: `text`).
        max_length: number of tokens to which texts are truncated. Default: that of the training (stock checkpoints: the
            longest input they accept, 512 where there is no limit).

    Raises:
        ModelError: the folder holds no model that predicts, or a multi-label model.
        TaskError: `text_columns` for a kind of task that has other columns.
        HubError, SealError: see `checkpoint_folder`.
    """
    name, revision = split_revision(model_name_or_path)
    check_models([name])
    folder = Path(checkpoint_folder(name, revision, trust_remote_code=trust_remote_code, files=files))
    if (best_split := _find_best_split(folder)) is not None:
        folder = Path(checkpoint_folder(str(best_split)))
    if (linear_model := linear_folder(folder)) is not None:
        folder = Path(checkpoint_folder(str(linear_model)))
    elif not has_network(folder):
        raise ModelError(_explain_no_model(model_name_or_path, folder))
    prompted, stock = (folder / PROMPT_FILE).is_file(), linear_model is None and not (folder / SAVED_FILE).is_file()
    # Only stock or prompted models: an adapter trained on a task has the config of its base, which may name a masked LM.
    fills_masks = masked_lm and (prompted or (stock and _is_masked_lm(folder, model_name_or_path, trust_remote_code)))
    if fills_masks:
        spec, label_names, arguments = _describe_masked_lm(folder, trust_remote_code)
    elif not stock:
        spec, label_names, arguments = read_saved(folder)
    elif prompted:
        spec, label_names, arguments = _describe_prompt_model(folder)
    else:
        spec, label_names, arguments = _describe_checkpoint(folder, model_name_or_path, trust_remote_code)
    if text_columns is not None:
        spec = with_text_columns(spec, text_columns)
    if max_length is not None:
        arguments = {**arguments, "max_length": max_length}
    return Source(
        folder, spec, tuple(label_names), arguments, prompted, stock and not prompted, fills_masks, linear_model is not None
    )


def with_text_columns(spec: TaskSpec, text_columns: str | Sequence[str]) -> TaskSpec:
    """Return the task with other names of its text columns, or raise a TaskError for kinds of tasks with other columns."""
    if spec.kind not in ("classification", "regression"):
        raise TaskError(f"text_columns are only for classification and regression; {spec.name} is a {spec.kind} task.")
    texts = (text_columns,) if isinstance(text_columns, str) else tuple(text_columns)
    return dataclasses.replace(spec, text_columns=texts, other_text_columns=())


def _find_best_split(folder: Path) -> Path | None:
    """Return the model folder of the few-shot split that is best on validation; None for folders of other runs.

    Raises:
        ModelError: it is a few-shot run without training, which has no model.
    """
    if (folder / "config.json").exists() or not (folder / RESULTS_FILE).is_file():
        return None
    record = read_object(folder / RESULTS_FILE)
    splits, metric = record.get("splits"), record.get("metric")
    if not isinstance(splits, list) or "scored_split" not in record:
        return None
    trained = [split for split in splits if (split_folder(folder, split.get("seed")) / "model").is_dir()]
    if not trained:
        raise ModelError(
            f"{folder} is a few-shot run without training, which saves no model. Pass a run whose method trains."
        )
    best = max(trained, key=lambda split: split.get("validation", {}).get(metric, 0.0))
    return split_folder(folder, best["seed"]) / "model"


def _explain_no_model(name: str, folder: Path) -> str:
    if (folder / SETTINGS_FILE).is_file() and not (folder / RESULTS_FILE).is_file():
        return f"{name} is an unfinished run. Run its command again until it finishes, then predict."
    if (find_object(folder / RESULTS_FILE) or {}).get("name") in (LINEAR, MAJORITY):
        return (
            f"{name} has the scores of a baseline but no model. Run `hf-tlm baseline` again, which also saves the linear "
            "model in its --output_dir."
        )
    return (
        f"{name} contains no model to predict with: neither config.json nor {ADAPTER_FILE}. Pass the --output_dir of a "
        "finished run, or a checkpoint with a task head."
    )


def _describe_prompt_model(folder: Path) -> tuple[TaskSpec, Sequence[str], dict[str, Any]]:
    """Return task, classes and arguments of a masked LM with a prompt that was saved without its task."""
    template = str(read_object(folder / PROMPT_FILE).get("template"))
    texts = ("text", "text_pair") if "{text_pair" in template else ("text",)
    return TaskSpec(name=folder.name, path="", text_columns=texts), (), {}


def _load_config(folder: Path, name: str, trust_remote_code: bool) -> PreTrainedConfig:
    with reading("a config from", name):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)


def _is_masked_lm(folder: Path, name: str, trust_remote_code: bool) -> bool:
    if not (folder / "config.json").is_file():
        return False
    classes = _load_config(folder, name, trust_remote_code).architectures or ()
    return any(str(class_name).endswith("ForMaskedLM") for class_name in classes)


def _describe_masked_lm(folder: Path, trust_remote_code: bool) -> tuple[TaskSpec, Sequence[str], dict[str, Any]]:
    config = _load_config(folder, str(folder), trust_remote_code)
    tokenizer = load_tokenizer(str(folder), trust_remote_code=trust_remote_code)
    return TaskSpec(name=folder.name, path=""), (), {"max_length": _max_input_length(config, tokenizer)}


def _describe_checkpoint(folder: Path, name: str, trust_remote_code: bool) -> tuple[TaskSpec, Sequence[str], dict[str, Any]]:
    config = _load_config(folder, name, trust_remote_code)
    classes = [str(class_name) for class_name in config.architectures or ()]
    kind = next((kind for class_name in classes for head, kind in HEADS.items() if class_name.endswith(head)), None)
    if kind is None:
        raise ModelError(
            f"{name} has no task head ({', '.join(classes) or 'its config names no class'}) and cannot predict. Fine-tune "
            "it first (`hf-tlm finetune`), or pass a model that was trained on a task."
        )
    if config.problem_type == "multi_label_classification":
        raise ModelError(f"{name} predicts several labels per text (multi-label), which is not supported.")
    if kind == "classification" and (config.problem_type == "regression" or config.num_labels == 1):
        kind = "regression"
    labels = tuple(class_names(config)) if kind in ("classification", "tagging") else ()
    tokenizer = load_tokenizer(str(folder), trust_remote_code=trust_remote_code, masking=False)
    spec = TaskSpec(name=Path(name).name, path="", kind=kind)
    return spec, labels, {"max_length": _max_input_length(config, tokenizer)}


def _max_input_length(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the longest input that a checkpoint accepts, in tokens; 512 where there is no limit."""
    limits = [limit for limit in (tokenizer.model_max_length, longest_input(config)) if limit and limit < _NO_LIMIT]
    return int(min(limits, default=_DEFAULT_LENGTH))
