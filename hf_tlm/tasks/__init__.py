"""Labelled tasks: their definition, the registered ones, and how to load them."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.corpora.demo import demo_task
    from hf_tlm.tasks.arguments import TaskArguments
    from hf_tlm.tasks.loading import load_task, task_from_datasets
    from hf_tlm.tasks.reading import unlabelled, unlabelled_chunks
    from hf_tlm.tasks.spec import KIND_METRICS, KINDS, METRICS, TASKS, Task, TaskError, TaskSpec, registered_task

__getattr__, __dir__, __all__ = export_lazily(__name__)
