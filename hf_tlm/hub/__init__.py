"""Downloads from the Hugging Face Hub, uploads to it, and model and dataset cards."""

from typing import TYPE_CHECKING

from hf_tlm.utils.lazy import export_lazily

if TYPE_CHECKING:
    from hf_tlm.hub.publish import PublishArguments, SubsetHubArguments, publish_model, publish_space, publish_subset
    from hf_tlm.hub.push import Push, check_push, push
    from hf_tlm.hub.repo import Verification, fetch, local_folder, verify
    from hf_tlm.hub.repo_id import Repo, find_repo

__getattr__, __dir__, __all__ = export_lazily(__name__)
