"""What was published, loaded as somebody else would: a separate process, an empty cache, and not this package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from hf_tlm.errors import HubError
from hf_tlm.hub.errors import explaining, redacted
from hf_tlm.hub.repo import check_model
from hf_tlm.hub.repo_id import Repo, parse_repo
from hf_tlm.utils.json_files import listed, maybe, one_of, read_fields, real, whole, words

TOLERANCE = 1e-6
ADAPTER_FILE = "adapter_config.json"
_NAMES = maybe(listed(words(200), 1000))
_NEEDED = ("peft_type", "base_model_name_or_path")
_ADAPTER = {
    **{"peft_type": one_of("LORA"), "base_model_name_or_path": words(4096), "revision": maybe(words(200))},
    **{"task_type": maybe(words(200)), "modules_to_save": _NAMES, "r": whole(1, 4096), "lora_alpha": real(0, 1e6)},
    **{
        "bias": one_of("none", "all", "lora_only"),
        "trainable_token_indices": one_of(None),
        "layer_replication": one_of(None),
    },
}
# Names of variables that hold logins.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
# Where caches and logins would be found in spite of another HF_HOME.
_PLACES = (
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_XET_CACHE", "HF_ASSETS_CACHE"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"),
)


@dataclass(frozen=True)
class Verification:
    """What was loaded from a repository, and how it compares with the local original.

    loaded: subfolder of a model ("" for the repository's root), or config/split of a data set -> what it is, in words.
    differences: the same -> largest absolute difference of the models' outputs; 0 for rows that are all equal. Empty
        without an original.
    """

    repo: Repo
    commit: str
    loaded: dict[str, str]
    differences: dict[str, float]

    def to_text(self) -> str:
        equal = f", equal to the local one within {TOLERANCE:g}" if self.differences else ""
        head = f"{self.repo} at commit {self.commit[:12]} loads without hf_tlm{equal}:"
        return "\n".join([head, *(f"  {name or 'model'}: {words}" for name, words in self.loaded.items())])


def verify(
    repo_id: str,
    *,
    revision: str | None = None,
    type: str = "model",
    config: str | None = None,
    local: str | os.PathLike | None = None,
    trust_remote_code: bool = False,
    token: str | None = None,
) -> Verification:
    """Load a repository's models, or the rows of its data set, in a process that cannot import this package.

    Every folder with a config and safetensors is loaded by the class that the config names, and given a fixed text.

    Args:
        type: `model` or `dataset`.
        config: of a data set; None: all.
        local: the folder that was published, to be loaded in the same process and compared.
        trust_remote_code: let the models' own code run.
        token: None for the one that is logged in.

    Raises:
        HubError: it cannot be read (see `fetch`) or loaded, there is nothing in it to load, or it differs from `local`.
    """
    from huggingface_hub import HfApi, get_token

    repo = parse_repo(repo_id, type)
    if repo is None or repo.revision is not None:
        raise HubError(f"Expected a repository as owner/name, its revision apart from that; received {repo_id!r}.")
    repo, token = Repo(repo_id, revision, type), token or get_token()
    with explaining(repo):
        info: Any = HfApi(token=token).repo_info(repo.id, revision=revision, repo_type=type)
    listed = [sibling.rfilename for sibling in info.siblings]
    if type == "model":
        check_model(repo, listed, trust_remote_code)
        _check_adapters(repo, [name for name in listed if PurePosixPath(name).name == ADAPTER_FILE], info.sha, token)
    asked = {
        **{"kind": type, "repo": repo_id, "commit": info.sha, "files": listed, "config": config},
        **{"trust_remote_code": trust_remote_code, "local": None if local is None else str(Path(local).resolve())},
    }
    answer = _load_isolated(repo, asked, token)
    if not answer:
        raise HubError(f"There is nothing to load in {repo}: no folder with a config.json and safetensors.")
    words = {name: found["words"] for name, found in answer.items()}
    differences = {} if local is None else {name: found["difference"] for name, found in answer.items()}
    # Not a number is no agreement either.
    if different := [name or "model" for name, value in differences.items() if not value <= TOLERANCE]:
        raise HubError(
            f"{repo} at commit {info.sha[:12]} differs from {local}: {', '.join(different)}. Publish the folder "
            "again, or compare with the revision that it was published as."
        )
    return Verification(repo, info.sha, words, differences)


def _check_adapters(repo: Repo, names: list[str], commit: str, token: str | None) -> None:
    """Raise a HubError for an adapter that is not LoRA as peft writes it, before a library follows whatever it says."""
    from huggingface_hub import hf_hub_download

    for name in names:
        with explaining(repo):
            path = hf_hub_download(repo.id, name, revision=commit, repo_type=repo.type, token=token)
        read_fields(Path(path), _ADAPTER, HubError, optional=[field for field in _ADAPTER if field not in _NEEDED])


def _load_isolated(repo: Repo, asked: dict, token: str | None) -> dict[str, dict]:
    """What `hf_tlm.hub.isolated_load` answers in a process and a cache of its own; a HubError where it failed."""
    with tempfile.TemporaryDirectory(prefix="hf-tlm-verify-") as home:
        # What it loads could be a stranger's: no login of this machine is there to be found. A token is an argument of the
        # calls that read the repository, and of no others.
        environment = {key: value for key, value in os.environ.items() if key not in _PLACES and not _SECRET.search(key)}
        environment |= {"HF_HOME": home, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
        answer = Path(home, "answer.json")
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                files("hf_tlm.hub").joinpath("isolated_load.py").read_text(encoding="utf-8"),
                str(answer),
            ],
            input=json.dumps({**asked, "token": token}),
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = redacted(RuntimeError(done.stderr.strip().rsplit("\n", 1)[-1]))
            raise HubError(f"{repo} cannot be loaded without hf_tlm: {reason}")
        return json.loads(answer.read_text(encoding="utf-8"))
