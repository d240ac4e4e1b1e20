"""Everything that talks to the Hub, and the cards."""

from typing import TYPE_CHECKING

from hf_tlm.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.hub.arguments import SubsetHubArguments
    from hf_tlm.hub.commit import Push
    from hf_tlm.hub.errors import HubError
    from hf_tlm.hub.publish import publish_model, publish_subset
    from hf_tlm.hub.push import check_push, push
    from hf_tlm.hub.repo import Repo, fetch, find_repo, local_folder
    from hf_tlm.hub.verify import Verification, verify

__getattr__, __dir__, __all__ = export_lazily(
    __name__,
    {
        "arguments": ["SubsetHubArguments"],
        "commit": ["Push"],
        "errors": ["HubError"],
        "publish": ["publish_model", "publish_subset"],
        "push": ["check_push", "push"],
        "repo": ["Repo", "fetch", "find_repo", "local_folder"],
        "verify": ["Verification", "verify"],
    },
)
