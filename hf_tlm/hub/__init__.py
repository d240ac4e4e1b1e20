"""Everything that talks to the Hub, and the cards."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.hub.arguments import PublishArguments, SubsetHubArguments
    from hf_tlm.hub.commit import Push
    from hf_tlm.hub.publish import publish_model, publish_space, publish_subset
    from hf_tlm.hub.push import check_push, push
    from hf_tlm.hub.repo import fetch, local_folder
    from hf_tlm.hub.repo_id import Repo, find_repo
    from hf_tlm.hub.verify import Verification, verify

__getattr__, __dir__, __all__ = export_lazily(__name__)
