"""Options of the selection of passages from a subset, for recipes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_tlm.errors import InfluenceError
from hf_tlm.influence.checks import (
    BALANCES,
    CONTROLS,
    GROUP_LOSSES,
    METHODS,
    TASK_SPLITS,
    check_executor,
    check_selection,
    without_effect,
)
from hf_tlm.utils.options import check_ranges, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from hf_tlm.influence.scorer import InfluenceScorer
    from hf_tlm.influence.selection import PassageScores
    from hf_tlm.models import TlmModel
    from hf_tlm.retrieval import Sharding, Subset
    from hf_tlm.tasks import Task

NUM_SHARDS = 2

logger = logging.getLogger(__name__)


@dataclass
class SelectionArguments:
    """Settings of the selection: which passages of a subset are kept."""

    subset: str = option(
        help=(
            "Folder written by hf-tlm retrieve, or a dataset of the Hub: owner/name or owner/name:config, "
            "optionally with @revision."
        )
    )
    method: str = option(
        "iss",
        "iss: influence on the validation examples' loss. confidence: passages that --teacher is most certain of. "
        "disagreement: passages on which several teachers differ most. Controls: dsir (n-gram importance resampling), "
        "bm25-rank (the first passages of the subset), random.",
        choices=list(METHODS),
    )
    fraction: float | None = option(None, "Share of the subset to keep; the paper's is 0.2.")
    top_k: int | None = option(None, "iss, instead of fraction: keep the union of each task batch's best top_k passages.")
    num_passages: int | None = option(None, "Instead of fraction: number of passages to keep.")
    balance: str | None = option(
        None,
        "class: every class of the validation examples selects equally many passages; with a teacher, equally many "
        "passages are kept of every class that it predicts.",
        choices=list(BALANCES),
    )
    corpus_batch_size: int = option(
        4, "Passages scored together (the paper's B_p); 1 scores each passage by itself, at the same cost."
    )
    task_batch_size: int = option(4, "Validation examples that share a gradient (the paper's B_t); more are faster.")
    group_loss: str = option(
        "passages",
        "Masked-LM loss of passages that are scored together. passages: the sum of each passage's mean. tokens: "
        "the mean over the masked tokens of all of them, as in the released script.",
        choices=list(GROUP_LOSSES),
    )
    task_split: str = option(
        "validation",
        "Split on whose loss influence is measured: validation in the paper, train in the released script.",
        choices=list(TASK_SPLITS),
    )
    mask_task_texts: bool = option(False, "Mask the examples of that split like passages, as the released script does.")
    selection_seed: int = option(0, "Seed of the masks, of dsir and of random.")

    score_model: list[str] = option(
        help=(
            "scratch: train a score model on the task. Or a checkpoint (folder, or Hub id, optionally with "
            "@revision), or several checkpoints of one run, whose scores are averaged."
        ),
        factory=lambda: ["scratch"],
        nargs="+",
    )
    layer: int = option(-1, "Layer whose gradients are used: 0 is the embeddings, 1 the first layer, -1 the last.")
    parameters: str | None = option(
        None,
        "Parameters of the layer, as patterns such as 'attention.*.weight,*bias'. Default: the weight of "
        "attention's output projection; of layer 0 the word embeddings.",
    )
    projection_dim: int | None = option(
        None, "Project inputs and gradients to this many dimensions, for approximate scores. Default: exact scores."
    )
    score_mlm_probability: float = option(0.1, "Share of a passage's tokens that are masked for scoring.")
    score_max_length: int | None = option(
        None, "Tokens after which a text is truncated for scoring. Default: 128, or fewer if the score model takes fewer."
    )
    score_batch_size: int = option(32, "Passages in a forward pass; scores do not depend on it.")
    quote_task_texts: bool = option(
        False, "Quote texts of the task in report.md and the card, beside the passages that they retrieved."
    )
    work_dir: str | None = option(
        None, "Folder of the scores, from which a killed run continues. Default: one in the cache, for these settings."
    )
    executor: str | None = option(
        None,
        "Score on an executor of datatrove; its machines must see work_dir. Default: score in this process, and "
        "in those that accelerate launches with it.",
        choices=["local", "ray", "slurm", "jobs"],
    )
    num_shards: int | None = option(
        None, f"executor: number of tasks that share the scoring, each with its own model. Default: {NUM_SHARDS}."
    )
    workers: int | None = option(None, "executor: number of tasks that run at a time.")
    executor_options: str | None = option(
        None, 'executor: options of datatrove\'s executor, e.g. \'{"partition": "gpu", "time": "2:00:00"}\'.'
    )

    def __post_init__(self):
        check_ranges(self, InfluenceError)
        check_selection(**self._choice())
        check_executor(self.method, self.executor, self.num_shards, self.workers, self.executor_options)
        if self.executor is not None:
            from hf_tlm.influence.sharded import check_sharding

            check_sharding(self._sharding(), self.work_dir)

    def check(
        self,
        task: Task,
        subset: Subset,
        output_dir: str,
        teacher: Sequence[str] | None = None,
        training: Sequence[str] = (),
    ) -> None:
        """Check the options against the task and the subset, before a score model is trained and passages are scored.

        Options that have no effect with the method are logged as a warning.

        Args:
            teacher: the names given as teachers, which only some methods use; None if no teacher was named.
            training: options of a score model's training, as "name value", which the control methods do not use.

        Raises:
            InfluenceError: `output_dir` is the subset's folder; or see `hf_tlm.influence.select`.
            RetrievalError: `output_dir` holds something other than a subset; or the report is to quote queries that the task
                does not have.
        """
        from hf_tlm.influence.select import check_inputs
        from hf_tlm.retrieval.subset import check_replaceable

        default = type(self)(subset=self.subset, fraction=1.0)
        changed = {name: value for name, value in vars(self).items() if value != getattr(default, name)}
        changed |= {} if teacher is None else {"teacher": " ".join(teacher)}
        if idle := [*without_effect(self.method, changed), *(training if self.method in CONTROLS else ())]:
            logger.warning("These options have no effect with method %s: %s.", self.method, ", ".join(idle))
        if Path(self.subset).is_dir() and Path(self.subset).resolve() == Path(output_dir).resolve():
            raise InfluenceError(
                f"The smaller subset would replace the subset that it is chosen from, {self.subset}. Choose another "
                "output_dir."
            )
        check_replaceable(Path(output_dir), work_dir=self.work_dir)
        if self.quote_task_texts:
            subset.rows_of_queries(task)
        sizes = {name: getattr(self, name) for name in ("fraction", "top_k", "num_passages")}
        of_batches: dict[str, Any] = {"balance": self.balance, "task_batch_size": self.task_batch_size}
        check_inputs(task, subset, self.method, **sizes, task_split=self.task_split, **of_batches)

    def scorer(self, models: Sequence[TlmModel], tokenizer: PreTrainedTokenizerBase) -> InfluenceScorer:
        """Return the scorer of a score model or of several checkpoints of it.

        Raises:
            InfluenceError: see `InfluenceScorer`.
        """
        from hf_tlm.influence.scorer import InfluenceScorer

        return InfluenceScorer(
            models,
            tokenizer,
            layer=self.layer,
            parameters=self.parameters,
            mlm_probability=self.score_mlm_probability,
            seed=self.selection_seed,
            batch_size=self.score_batch_size,
            projection_dim=self.projection_dim,
            mask_task_texts=self.mask_task_texts,
        )

    def select(
        self,
        task: Task,
        subset: Subset,
        scorer: InfluenceScorer | None = None,
        *,
        scores: PassageScores | None = None,
        score_model: Any = None,
        process_index: int = 0,
        num_processes: int = 1,
    ) -> Subset:
        """Return the selected passages as a smaller subset.

        Args:
            scorer: the scorer that method iss needs, see `scorer`.
            scores: the scores of a teacher, see `hf_tlm.runs.teacher_scores`.
            score_model: the name of the score model in the manifest; None: `self.score_model`.

        Raises:
            InfluenceError: see `hf_tlm.influence.select`.
        """
        from hf_tlm.influence.select import select

        return select(
            task,
            subset,
            **self._choice(),
            seed=self.selection_seed,
            scorer=scorer,
            scores=scores,
            max_length=self.score_max_length,
            score_model=self.score_model if score_model is None else score_model,
            work_dir=self.work_dir,
            sharding=self._sharding(),
            process_index=process_index,
            num_processes=num_processes,
        )

    def _choice(self) -> dict[str, Any]:
        """Return the options that both `check_selection` and `select` accept."""
        names = "method fraction top_k num_passages balance corpus_batch_size task_batch_size task_split group_loss"
        return {name: getattr(self, name) for name in names.split()}

    def _sharding(self) -> Sharding | None:
        if self.executor is None:
            return None
        from hf_tlm.retrieval.arguments import parse_executor_options
        from hf_tlm.retrieval.settings import Sharding

        options = parse_executor_options(self.executor_options or "{}")
        return Sharding(self.num_shards or NUM_SHARDS, self.executor, self.workers, options=options)
