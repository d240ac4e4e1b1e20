"""Labelled tasks: what they are, the registered ones, and how they are read."""

from hf_tlm.tasks.arguments import TaskArguments
from hf_tlm.tasks.loading import load_task, task_from_datasets
from hf_tlm.tasks.registry import TASKS
from hf_tlm.tasks.spec import METRICS, Task, TaskError, TaskSpec

__all__ = ["METRICS", "TASKS", "Task", "TaskArguments", "TaskError", "TaskSpec", "load_task", "task_from_datasets"]
