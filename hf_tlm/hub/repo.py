"""Download repositories from the Hub without files that could run code, and verify what was published."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from hf_tlm.errors import HubError
from hf_tlm.hub.errors import explaining, redacted
from hf_tlm.hub.repo_id import Repo, find_repo, parse_repo
from hf_tlm.utils.files import atomic_write, files_in
from hf_tlm.utils.json_files import listed, maybe, one_of, read_fields, real, whole, words
from hf_tlm.utils.run_files import EXPORT_FILE, GRID_FILE, MANIFEST_FILE, RESULTS_FILE, SETTINGS_FILE, STAGE_FILE, TABLE_FILE
from hf_tlm.utils.seals import SEAL, check_seal
from hf_tlm.utils.shown import few, suggested_path

# Formats that `torch.load` and similar functions unpickle; a pickle can run any code.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_PICKLE_INDEX = "*.bin.index.json"  # Maps a model's weights to the pickles that contain them.
# Pickles next to a model that are not its weights.
_TRAINING_STATE = ("training_args.bin", "optimizer*", "scheduler*", "scaler*", "rng_state*")
# Files of tokenizers and configs; together with weights, safetensors or pickles, those of a checkpoint. A repository may
# contain other formats too.
TOKENIZER_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]
FILES = [*TOKENIZER_FILES, "*.safetensors", *PICKLES]
FOLDERS = re.compile(
    r"(seed|split|checkpoint)-\d+|stage\d|global_step\d+|model|mlm|generator|discriminator|adapter|tokenizer|training|"
    r"predictions|data|onnx"
)
PUBLISHED_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*config.json", "*tokenizer*.json", "added_tokens.json"),
    *("special_tokens_map.json", "vocab.*", "merges.txt", "dict.txt", "*.model", "chat_template.jinja"),
    *(SETTINGS_FILE, RESULTS_FILE, TABLE_FILE, STAGE_FILE, GRID_FILE, SEAL, MANIFEST_FILE, "report.md"),
    *("corruption.json", "finetuned.json", "prompt.json", "trainer_state.json", "train_ids.json", "README.md"),
    *("validation.jsonl", "test.jsonl", "train-*.parquet", "*.onnx", EXPORT_FILE),
)
# Files that a run resumes from; some are pickles.
RESUME_FILES = (
    *("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth", "training_args.bin"),
    *("pytorch_model*.bin", "*_optim_states.pt", "*_model_states.pt", "latest"),
)
# COCO-LM's modules that the folder of a published model may hold.
CODE = ("*configuration_*.py", "*modeling_*.py", "*tokenization_*.py", "bert.py", "embeddings.py", "relative_positions.py")
# Limits in bytes: for a file with tensors, for any other file, and for all files of a run together.
LARGEST_TENSORS, LARGEST_OTHER, LARGEST_RUN = 64 << 30, 1 << 30, 512 << 30
# The file that marks the folder of a fetched run, and how many levels above a checkpoint that folder is at most.
FETCHED_FILE, MAX_LEVELS = "fetched.json", 4
_TENSORS = (".safetensors", ".onnx", ".pt", ".pth", ".bin", ".parquet")
TOLERANCE = 1e-6
ADAPTER_FILE = "adapter_config.json"
_REQUIRED = ("peft_type", "base_model_name_or_path")
_LORA_FIELDS = {
    **{"peft_type": one_of("LORA"), "base_model_name_or_path": words(4096), "revision": maybe(words(200))},
    **{"task_type": maybe(words(200)), "r": whole(1, 4096), "lora_alpha": real(0, 1e6)},
    **{"modules_to_save": maybe(listed(words(200), 1000)), "bias": one_of("none", "all", "lora_only")},
    **{"trainable_token_indices": one_of(None), "layer_replication": one_of(None)},
}
# Names of environment variables that contain credentials.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
# Variables that point to caches and credentials even if HF_HOME is changed.
_HF_PATHS = (
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_XET_CACHE", "HF_ASSETS_CACHE"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"),
)


def is_fetched(path: str | os.PathLike) -> bool:
    """Return whether a path is in the Hub's cache, and so not to be trusted until a user has inspected and copied it."""
    from huggingface_hub import constants

    return Path(path).absolute().is_relative_to(Path(constants.HF_HUB_CACHE).absolute())


def check_named(name: str, folder: str | os.PathLike) -> None:
    """Raise a HubError if `folder` is from the Hub, and a file in it names a model by a path instead of owner/name."""
    if is_fetched(folder) and find_repo(name, "model") is None:
        raise HubError(
            f"{folder} is from the Hub and needs the model {name!r}, which must be a model on the Hub (owner/name), not "
            "a local path. Ask the author where that model is."
        )


def fetch(
    repo: Repo,
    *,
    allow_patterns: Sequence[str] | str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    token: str | None = None,
) -> Path:
    """Download a snapshot of a repository to the Hub's cache and return its folder; offline, return the cached snapshot.

    The list of files is checked before the first is downloaded. Python files and pickles are downloaded only if they are
    asked for; a pickled copy of weights that also exist as safetensors never is.

    Args:
        allow_patterns: globs of the files to download; None: all.
        trust_remote_code: download a model's own Python files. Those of a dataset are never downloaded.
        allow_pickle: download a model's pickles.
        token: None for the token of the logged-in user.

    Raises:
        HubError: the repository has Python files, or weights only as pickles, that were not asked for; it does not exist,
            is gated, or the token has no access; the Hub cannot be reached, and the snapshot is not in the cache.
    """
    import httpx2
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.utils import filter_repo_objects

    options: dict[str, Any] = {"repo_id": repo.id, "repo_type": repo.type}
    unwanted = [] if trust_remote_code and repo.type == "model" else ["*.py"]
    if repo.type == "model" and not allow_pickle:
        unwanted += PICKLES

    def check(files: list[str]) -> list[str]:
        # The annotation demands a list, but any sequence works.
        chosen = list(filter_repo_objects(files, allow_patterns=allow_patterns))  # type: ignore[arg-type]
        if repo.type == "dataset":
            return []
        return check_model(repo, chosen, trust_remote_code, allow_pickle)

    with explaining(repo):
        api = HfApi(token=token)
        revision = api.resolve_revision(repo.id, revision=repo.revision, repo_type=repo.type)
        filters: dict[str, Any] = {"revision": revision, "allow_patterns": allow_patterns, "token": token}
        try:
            files = api.list_repo_files(**options, revision=revision.resolved)
        except (httpx2.TransportError, OfflineModeIsEnabled):
            folder = Path(snapshot_download(**options, **filters, ignore_patterns=unwanted, local_files_only=True))
            check(list(files_in(folder)))
            return folder
        unwanted += check(files)
        return Path(snapshot_download(**options, **filters, ignore_patterns=unwanted))


def file_sizes(repo: Repo, token: str | None = None) -> tuple[Repo, dict[str, int]]:
    """Return the repository with its revision resolved to a commit, and the size in bytes of each of its files.

    Without a network, both come from the Hub's cache.

    Raises:
        HubError: a file name leads out of the folder, such as one with `..`; otherwise see `fetch`.
    """
    import httpx2
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled
    from huggingface_hub.hf_api import RepoFile

    options: dict[str, Any] = {"repo_type": repo.type}
    with explaining(repo):
        api = HfApi(token=token)
        commit = api.resolve_revision(repo.id, revision=repo.revision, **options).resolved
        try:
            tree = api.list_repo_tree(repo.id, recursive=True, revision=commit, **options)
            sizes = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
        except (httpx2.TransportError, OfflineModeIsEnabled):
            folder = Path(snapshot_download(repo.id, revision=commit, local_files_only=True, **options))
            sizes = {name: path.stat().st_size for name, path in files_in(folder).items()}
    for name in sizes:
        if {"", ".", ".."} & set(name.split("/")) or "\\" in name or ":" in name:
            raise HubError(f"{repo} has a file {name!r}, whose name points outside its folder. Nothing was downloaded.")
    return Repo(repo.id, commit, repo.type), sizes


def local_folder(name: str, type: str, **options) -> Path:
    """Return an existing local path unchanged; otherwise download the repository of that name and return its folder.

    Args:
        options: see `fetch`.

    Raises:
        HubError: the name is neither; otherwise see `fetch`.
    """
    repo = find_repo(name, type)
    if repo is not None:
        return fetch(repo, **options)
    if not os.path.exists(name):
        raise HubError(
            f"Expected a local path, or a {type} repository of the Hub as owner/name or owner/name@revision; "
            f"received {str(name)!r}, which is neither.{suggested_path(str(name))}"
        )
    return Path(name)


def check_model(repo: Repo, files: list[str], trust_remote_code: bool, allow_pickle: bool = False) -> list[str]:
    """Check that a model's files run no code that was not asked for; return the pickles with safetensors next to them.

    Pickles in folders that no run writes are accepted, because nothing here reads them unless an index of pickles names
    them: files of OpenVINO and Core ML end with .bin too, and sentence-transformers has modules of its own.

    Raises:
        HubError: there are Python files, or weights only as pickles, that were not asked for.
    """
    code = [file for file in files if file.endswith(".py")]
    if code and not trust_remote_code:
        raise HubError(
            f"{repo} has Python files of its own ({few(code)}), which loading it could run. Read them on the Hub; "
            "if you trust them, pass trust_remote_code (--trust_remote_code)."
        )
    safe_folders = {PurePosixPath(file).parent for file in files if file.endswith(".safetensors")}
    lone_files = [file for file in files if PurePosixPath(file).parent not in safe_folders]
    pickles, indices = list(filter(_is_pickle, lone_files)), [file for file in lone_files if _matches(file, [_PICKLE_INDEX])]
    refused = [file for file in (*pickles, *indices) if all(map(FOLDERS.fullmatch, file.split("/")[:-1]))]
    if refused and not allow_pickle:
        raise HubError(
            f"The weights of {repo} are pickles ({few(refused)}), which can run code when they are read; safetensors "
            "cannot. Use a revision with safetensors (its page may offer one as a pull request: @refs/pr/N). If you trust "
            "this one, download it and pass the folder; convert checkpoints of TLM and COCO-LM with hf-tlm publish "
            "--legacy_checkpoint."
        )
    return [file for file in filter(_is_pickle, files) if file not in pickles]


def _is_pickle(file: str) -> bool:
    """Return whether a file is a pickle of weights, rather than of a training state."""
    return _matches(file, PICKLES) and not _matches(file, _TRAINING_STATE)


def _matches(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(PurePosixPath(file).name, pattern) for pattern in patterns)


def checkpoint_folder(
    name_or_path: str,
    revision: str | None = None,
    *,
    trust_remote_code: bool = False,
    files: Sequence[str] = FILES,
) -> str:
    """Download the checkpoint owner/name or owner/name@revision and return its folder; return other names unchanged.

    Python files are downloaded only with `trust_remote_code`. Without it, loading a model that needs them fails.

    Args:
        revision: branch, tag or commit, instead of one in the name.
        files: globs of the files to download.

    Raises:
        HubError: there are two different revisions; or see `fetch`: there is no such repository, or its weights are only
            pickles.
        SealError: the name is a folder that a run wrote, and its files have changed since.
    """
    repo = find_repo(name_or_path, "model")
    if repo is None:
        check_seal(name_or_path)
        return name_or_path
    repo = Repo(*split_revision(name_or_path, revision), "model")
    files = [*files, "*.py"] if trust_remote_code else files
    return str(fetch(repo, allow_patterns=files, trust_remote_code=trust_remote_code))


def split_revision(name_or_path: str, revision: str | None = None) -> tuple[str, str | None]:
    """Split owner/name@revision into name and revision; return other names unchanged, with `revision`.

    Raises:
        HubError: the name contains a revision, and `revision` is a different one.
    """
    repo = find_repo(name_or_path, "model")
    if repo is None or repo.revision is None:
        return name_or_path, revision
    if revision not in (None, repo.revision):
        raise HubError(f"{name_or_path} names a revision, but the option is {revision!r}. Pass only one of them.")
    return repo.id, repo.revision


def is_ours(path: str, names: Sequence[str]) -> bool:
    """Return whether a path in a run or repository has folders that recipes write, and a file name that matches `names`.

    Args:
        path: relative, with `/`.
        names: globs.
    """
    *folders, name = path.split("/")
    plain = re.fullmatch(r"\w[\w.+-]*", name, flags=re.ASCII) is not None
    return plain and all(map(FOLDERS.fullmatch, folders)) and any(fnmatch(name, glob) for glob in names)


def check_sizes(sizes: Mapping[str, int], source: str) -> None:
    """Raise a HubError before a download if a file, or all files together, have more bytes than those of any run."""
    for path, size in sizes.items():
        limit = LARGEST_TENSORS if PurePosixPath(path).suffix in _TENSORS else LARGEST_OTHER
        if size > limit:
            raise HubError(
                f"{path} of {source} has {size:,} bytes; at most {limit:,} are downloaded. Look at it on the Hub."
            )
    if (total := sum(sizes.values())) > LARGEST_RUN:
        raise HubError(f"{source} has {total:,} bytes; at most {LARGEST_RUN:,} are downloaded. Look at it on the Hub.")


def mark_as_fetched(folder: Path, requested: Repo, fetched: Repo) -> None:
    """Mark the folder of a run as fetched from the Hub, with the repository that was requested and the commit."""
    atomic_write(folder / FETCHED_FILE, json.dumps({"repo": str(requested), "commit": fetched.revision}, indent=2) + "\n")


def is_foreign(folder: str | os.PathLike) -> bool:
    """Return whether a run, or a part of one, is from the Hub: it was fetched to be continued, or is in the Hub's cache."""
    folder = Path(folder).absolute()
    return is_fetched(folder) or any((parent / FETCHED_FILE).is_file() for parent in (folder, *folder.parents[:MAX_LEVELS]))


@dataclass(frozen=True)
class Verification:
    """The result of `verify`: what was loaded from a repository, and how it compares with the local original.

    loaded: subfolder of a model ("" for the repository's root), or config/split of a dataset -> its description.
    differences: the same keys -> largest absolute difference between the models' outputs; for a dataset 0, as all rows are
        equal. Empty without a local original.
    """

    repo: Repo
    commit: str
    loaded: dict[str, str]
    differences: dict[str, float]

    def to_text(self) -> str:
        equal = f", equal to the local one within {TOLERANCE:g}" if self.differences else ""
        repo = self.repo.id if self.repo.revision == self.commit else self.repo
        head = f"{repo} at commit {self.commit[:12]} loads without hf_tlm{equal}:"
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
    """Load a repository's models, or the rows of its dataset, in a process that cannot import this package.

    Every folder with a config and safetensors is loaded with the class that the config names, and run on a fixed text.

    Args:
        type: `model` or `dataset`.
        config: configuration of a dataset; None: all.
        local: the folder that was published, to load in the same process and compare.
        trust_remote_code: run the models' own code.
        token: None for the token of the logged-in user.

    Raises:
        HubError: the repository cannot be read (see `fetch`) or loaded, contains nothing to load, or differs from `local`.
    """
    from huggingface_hub import HfApi, get_token

    repo = parse_repo(repo_id, type)
    if repo is None or repo.revision is not None:
        raise HubError(f"Expected a repository as owner/name, with its revision in a separate option; received {repo_id!r}.")
    repo, token = Repo(repo_id, revision, type), token or get_token()
    with explaining(repo):
        info: Any = HfApi(token=token).repo_info(repo.id, revision=revision, repo_type=type)
    repo_paths = [sibling.rfilename for sibling in info.siblings]
    if type == "model":
        check_model(repo, repo_paths, trust_remote_code)
        _check_adapters(repo, [name for name in repo_paths if PurePosixPath(name).name == ADAPTER_FILE], info.sha, token)
    request = {
        **{"kind": type, "repo": repo_id, "commit": info.sha, "files": repo_paths, "config": config},
        **{"trust_remote_code": trust_remote_code, "local": None if local is None else str(Path(local).resolve())},
    }
    results = _load_isolated(repo, request, token)
    if not results:
        raise HubError(f"There is nothing to load in {repo}: expected a folder with config.json and safetensors.")
    descriptions = {name: result["words"] for name, result in results.items()}
    differences = {} if local is None else {name: result["difference"] for name, result in results.items()}
    # `not <=` also catches NaN.
    if different := [name or "model" for name, value in differences.items() if not value <= TOLERANCE]:
        raise HubError(
            f"{repo} at commit {info.sha[:12]} differs from {local}: {', '.join(different)}. Publish the folder "
            "again, or compare with the revision that it was published as."
        )
    return Verification(repo, info.sha, descriptions, differences)


def _check_adapters(repo: Repo, names: list[str], commit: str, token: str | None) -> None:
    """Raise a HubError if an adapter's config is not one of LoRA as peft writes it, before any library loads it."""
    from huggingface_hub import hf_hub_download

    for name in names:
        with explaining(repo):
            path = hf_hub_download(repo.id, name, revision=commit, repo_type=repo.type, token=token)
        read_fields(Path(path), _LORA_FIELDS, HubError, optional=[field for field in _LORA_FIELDS if field not in _REQUIRED])


def _load_isolated(repo: Repo, request: dict, token: str | None) -> dict[str, dict]:
    """Run `hf_tlm.hub.isolated_load` in a separate process with an empty cache, and return its results.

    Raises:
        HubError: the process failed.
    """
    with tempfile.TemporaryDirectory(prefix="hf-tlm-verify-") as home:
        # The code that it loads may not be trusted, so it must not find this machine's credentials. The token is passed
        # only to the calls that read the repository.
        environment = {key: value for key, value in os.environ.items() if key not in _HF_PATHS and not _SECRET.search(key)}
        environment |= {"HF_HOME": home, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
        results_file = Path(home, "answer.json")
        program = files("hf_tlm.hub").joinpath("isolated_load.py").read_text(encoding="utf-8")
        process = subprocess.run(
            [sys.executable, "-c", program, str(results_file)],
            input=json.dumps({**request, "token": token}),
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
        )
        if process.returncode:
            reason = redacted(RuntimeError(process.stderr.strip().rsplit("\n", 1)[-1]))
            raise HubError(f"{repo} cannot be loaded without hf_tlm: {reason}")
        return json.loads(results_file.read_text(encoding="utf-8"))
