"""`--push_to_hub` of a run: refused or checked before the first step, done once, at the end, from the finished folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hf_tlm.hub.commit import Push
from hf_tlm.hub.publish import publish_result
from hf_tlm.hub.push import check_push
from hf_tlm.hub.rendering import hub_name
from hf_tlm.training.errors import ArgumentsError

if TYPE_CHECKING:
    from hf_tlm.training.base_arguments import BaseArguments


def check_hub(args: BaseArguments, *, adapter: bool = False, base: str | None = None) -> None:
    """Before anything is trained; the first process asks the Hub.

    Args:
        adapter: whether the result of the run is an adapter; base: the model that it is for.

    Raises:
        ArgumentsError: the adapter would belong to a model of this machine.
        HubError: see `hf_tlm.hub.check_push`.
    """
    if not args.push_to_hub:
        return
    if adapter and hub_name(base) is None:
        raise ArgumentsError(
            "The adapter of this run would belong to a model of this machine, and nobody could load it from the Hub. Give "
            "--model_name_or_path the repo id of its base (publish that first), or leave out push_to_hub or use_peft."
        )
    if args.process_index == 0 and args.hub_model_id is not None:
        check_push(args.hub_model_id, args.hub_token)


def publish_run(folder: Path, args: BaseArguments) -> Push | None:
    """Publish the finished folder, if that was asked for, on the first process.

    Raises:
        HubError: it could not be published; the message says how to do it later.
    """
    if not args.push_to_hub or args.hub_model_id is None or args.process_index != 0:
        return None
    return publish_result(
        *("model", folder, args.hub_model_id),
        token=args.hub_token,
        private=args.hub_private_repo,
        revision=args.hub_revision,
    )
