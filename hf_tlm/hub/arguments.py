"""How recipes that make a subset say where it is published."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hf_tlm.errors import HubError
from hf_tlm.hub.commit import Push
from hf_tlm.hub.publish import publish_result
from hf_tlm.hub.push import check_push


@dataclass(repr=False)  # A repr would show the token.
class SubsetHubArguments:
    """Where the subset is published on the Hub. Names are those of the Trainer."""

    push_to_hub: bool = field(default=False, metadata={"help": "Publish the subset as a dataset of the Hub."})
    hub_dataset_id: str | None = field(default=None, metadata={"help": "push_to_hub: the repository, owner/name."})
    hub_private_repo: bool | None = field(
        default=None, metadata={"help": "push_to_hub: whether a repository that is made now is private; default: yes."}
    )
    hub_revision: str | None = field(default=None, metadata={"help": "push_to_hub: branch; made if it is not there."})
    hub_token: str | None = field(
        default=None, metadata={"help": "push_to_hub: token; default: HF_TOKEN, or that of `hf auth login`."}
    )

    def __post_init__(self):
        names = ("hub_dataset_id", "hub_private_repo", "hub_revision", "hub_token")
        given = [f"--{name}" for name in names if getattr(self, name) is not None]
        if given and not self.push_to_hub:
            has = "has" if len(given) == 1 else "have"
            raise HubError(f"{' and '.join(given)} {has} no effect without --push_to_hub. Add it, or leave them out.")
        if self.push_to_hub and self.hub_dataset_id is None:
            raise HubError("--push_to_hub needs --hub_dataset_id owner/name: the repository to publish the subset to.")

    def check(self) -> None:
        """Before the work begins.

        Raises:
            HubError: see `hf_tlm.hub.check_push`.
        """
        if self.push_to_hub and self.hub_dataset_id is not None:
            check_push(self.hub_dataset_id, self.hub_token)

    def publish(self, folder: str | os.PathLike) -> Push | None:
        """Publish a saved subset, if that was asked for.

        Raises:
            HubError: it could not be published; the message says how to do it later.
        """
        if not self.push_to_hub or self.hub_dataset_id is None:
            return None
        return publish_result(
            *("subset", folder, self.hub_dataset_id),
            token=self.hub_token,
            private=self.hub_private_repo,
            revision=self.hub_revision,
        )
