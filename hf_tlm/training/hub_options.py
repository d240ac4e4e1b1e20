"""Where a run is published: the Trainer's options, with the meaning they have here."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(repr=False)
class HubOptions:
    """A model is pushed once, from its finished folder, and not from what lies in it at some step."""

    push_to_hub: bool = field(default=False, metadata={"help": "Publish the finished model on the Hub."})
    hub_model_id: str | None = field(default=None, metadata={"help": "push_to_hub: the repository, owner/name."})
    hub_private_repo: bool | None = field(
        default=None, metadata={"help": "push_to_hub: whether a repository that is made now is private; default: yes."}
    )
    hub_revision: str | None = field(default=None, metadata={"help": "push_to_hub: branch; made if it is not there."})
    hub_strategy: str = field(
        default="end",
        metadata={
            "help": "push_to_hub: end, once the run is finished. checkpoint, also after every save, to the branch "
            "<hub_revision or main>-checkpoints, which --resume_from_checkpoint owner/name@main-checkpoints continues from."
        },
    )
