"""How recipes say what is published on the Hub, and where."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from hf_tlm.errors import HubError
from hf_tlm.hub.commit import Push
from hf_tlm.hub.publish import publish_result
from hf_tlm.hub.push import check_push
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, option

_CONVERTED = NoEffect("legacy_checkpoint", (None,), "without --legacy_checkpoint. Leave it out.")
_EVALUATED = NoEffect("evaluate_on", (None,), "without --evaluate_on. Leave it out.")
_SUBSET = NoEffect("subset", (None,), "without --subset. Leave it out.")
_PUSHED = NoEffect("repo_id", (None,), "without --repo_id. Leave it out.")


@dataclass(repr=False)  # A repr would show the token.
class SubsetHubArguments:
    """Where the subset is published on the Hub. Names are those of the Trainer."""

    push_to_hub: bool = option(False, "Publish the subset as a dataset of the Hub.")
    hub_dataset_id: str | None = option(None, "push_to_hub: the repository, owner/name.")
    hub_private_repo: bool | None = option(
        None, "push_to_hub: whether a repository that is made now is private; default: yes."
    )
    hub_revision: str | None = option(None, "push_to_hub: branch; made if it is not there.")
    hub_token: str | None = option(None, "push_to_hub: token; default: HF_TOKEN, or that of `hf auth login`.")

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


@dataclass(repr=False)  # A repr would show the token.
class PublishArguments:
    """What is published, and where to."""

    model: str | None = option(None, "Folder of a finished run, or of an export (hf-tlm export).")
    subset: str | None = option(None, "Folder of a subset (hf-tlm retrieve, select-influence).")
    space: str | None = option(None, "Folder of a page (hf-tlm export --page), to become a static Space.")
    legacy_checkpoint: str | None = option(
        None,
        "Hub id, with @revision if wanted, or folder of a released checkpoint: pytorch_model.bin, config.json, "
        "and a tokenizer (COCO-LM: sp.model and dict.txt).",
    )
    output_dir: Annotated[str | None, _CONVERTED] = option(
        None, "legacy_checkpoint: folder to write; an earlier model there is replaced."
    )
    task: Annotated[str | None, _CONVERTED] = option(
        None, "TLM: registered task whose classes it tells apart. Default: the one in the checkpoint's name."
    )
    label_names: Annotated[list[str] | None, _CONVERTED] = option(
        None, "TLM: names of the classes by their indices, instead of --task.", nargs="+"
    )
    tokenizer_name: Annotated[str | None, _CONVERTED] = option(
        None, "TLM: tokenizer by Hub id or folder, if the checkpoint has none."
    )
    evaluate_on: Annotated[str | None, _CONVERTED] = option(
        None, "TLM: labelled task (name, Hub id or folder) to score the converted model on."
    )
    evaluate_length: Annotated[int | None, _EVALUATED] = option(
        None,
        "evaluate_on: tokens after which a text is cut. Default: as TLM's scripts cut those of the checkpoint's task, or of "
        "evaluate_on where that is not known: 512 for IMDB, else 128.",
    )
    repo_id: str | None = option(None, "Repository to publish to, owner/name.")
    config_name: Annotated[str | None, _SUBSET] = option(
        None, "subset: its configuration (small, large) in a repository of several."
    )
    private: Annotated[bool | None, _PUSHED] = option(None, "Whether a new repository is private; default: yes.")
    revision: Annotated[str | None, _PUSHED] = option(None, "Branch to publish to; made if it is not there.")
    tag: Annotated[str | None, _PUSHED] = option(None, "Tag of what is published, for a release (v1).")
    license: Annotated[str | None, _PUSHED] = option(None, "Licence, for the card. Default: the card's, or none.")
    language: Annotated[str | None, _PUSHED] = option(
        None, "Language of the texts (en), for the card. Default: the card's, or none."
    )
    dataset: Annotated[str | None, _PUSHED] = option(
        None, "model: repo id of the subset it was trained on, with @revision if known."
    )
    widget_texts: Annotated[list[str] | None, _PUSHED] = option(
        None, "model: texts of your own that its page offers to try; no text of the task is published otherwise.", nargs="+"
    )
    dry_run: Annotated[bool, _PUSHED] = option(False, "Show what would be pushed, and push nothing; needs no network.")
    verify: Annotated[bool, _PUSHED] = option(False, "Load what was published elsewhere, and compare it.")
    hub_token: Annotated[str | None, _PUSHED] = option(None, "Default: HF_TOKEN, or that of `hf auth login`.")

    def __post_init__(self):
        check_ranges(self, HubError)
        kinds = ("model", "subset", "space", "legacy_checkpoint")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise HubError(f"Give one of {', '.join(f'--{kind}' for kind in kinds)}; received {', '.join(given) or 'none'}.")
        needed = "output_dir" if given[0] == "legacy_checkpoint" else "repo_id"
        if getattr(self, needed) is None:
            raise HubError(f"--{given[0]} needs --{needed}: see --help.")
        check_effects(self, HubError, prefix="--")
        for name in ("dataset", "widget_texts"):
            if self.subset is not None and getattr(self, name) is not None:
                raise HubError(f"--{name} is for a model, and has no effect on a subset. Leave it out.")
        for name, default in (("dataset", None), ("widget_texts", None), ("language", None), ("verify", False)):
            if self.space is not None and getattr(self, name) != default:
                raise HubError(f"--{name} has no effect on a Space. Leave it out.")
        if self.dry_run and self.verify:
            raise HubError("--dry_run publishes nothing that --verify could load. Give one of them.")
