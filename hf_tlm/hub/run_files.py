"""The files of runs, models and subsets by their names: what is fetched of a stranger's run, and what a folder publishes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from hf_tlm.errors import HubError
from hf_tlm.hub.repo import is_fetched
from hf_tlm.hub.repo_id import Repo
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.run_names import GRID_FILE, RESULTS_FILE, SETTINGS_FILE, STAGE_FILE, TABLE_FILE

FOLDERS = re.compile(
    r"(seed|split|checkpoint)-\d+|stage\d|global_step\d+|model|mlm|generator|discriminator|adapter|tokenizer|training|"
    r"predictions|data|onnx"
)
NAMES = (
    *("*.safetensors", "*.safetensors.index.json", "*config.json", "*tokenizer*.json", "added_tokens.json"),
    *("special_tokens_map.json", "vocab.*", "merges.txt", "dict.txt", "*.model", "chat_template.jinja"),
    *(SETTINGS_FILE, RESULTS_FILE, TABLE_FILE, STAGE_FILE, GRID_FILE, "seal.json", "manifest.json", "report.md"),
    *("corruption.json", "finetuned.json", "prompt.json", "trainer_state.json", "train_ids.json", "README.md"),
    *("validation.jsonl", "test.jsonl", "train-*.parquet", "*.onnx", "export.json"),
)
# What a run continues from, of which some are pickles.
CONTINUING = (
    *("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state*.pth", "training_args.bin"),
    *("pytorch_model*.bin", "*_optim_states.pt", "*_model_states.pt", "latest"),
)
CODE = ("*configuration_*.py", "*modeling_*.py", "*tokenization_*.py", "bert.py", "embeddings.py", "relative_positions.py")
# Bytes: of a file that holds tensors, of any other, and of all files of a run.
LARGEST_TENSORS, LARGEST_OTHER, LARGEST_RUN = 64 << 30, 1 << 30, 512 << 30
# In the folder of a run that was fetched, and how far above a checkpoint that is at most.
MARK, DEEPEST = "fetched.json", 4
_TENSORS = (".safetensors", ".onnx", ".pt", ".pth", ".bin", ".parquet")


def is_ours(path: str, names: Sequence[str]) -> bool:
    """Whether a file, by its path in a run or a repository, has a name that recipes give.

    Args:
        names: globs.
    """
    *folders, name = path.split("/")
    plain = re.fullmatch(r"\w[\w.+-]*", name, flags=re.ASCII) is not None
    return plain and all(map(FOLDERS.fullmatch, folders)) and any(fnmatch(name, glob) for glob in names)


def check_sizes(sizes: Mapping[str, int], what: str) -> None:
    """Before files are fetched.

    Args:
        sizes: file -> bytes.

    Raises:
        HubError: one of them, or all together, are larger than those of any run.
    """
    for path, size in sizes.items():
        most = LARGEST_TENSORS if PurePosixPath(path).suffix in _TENSORS else LARGEST_OTHER
        if size > most:
            raise HubError(f"{path} of {what} has {size:,} bytes; {most:,} are fetched at most. Look at it on the Hub.")
    if (total := sum(sizes.values())) > LARGEST_RUN:
        raise HubError(f"{what} has {total:,} bytes; {LARGEST_RUN:,} are fetched at most. Look at it on the Hub.")


def mark(folder: Path, asked: Repo, fetched: Repo) -> None:
    """Note in a run's folder that it came from the Hub."""
    atomic_write(folder / MARK, json.dumps({"repo": str(asked), "commit": fetched.revision}, indent=2) + "\n")


def is_foreign(folder: str | os.PathLike) -> bool:
    """Whether a run, or a part of one, came from the Hub: it was fetched to be continued, or it lies in the Hub's cache."""
    folder = Path(folder).absolute()
    return is_fetched(folder) or any((place / MARK).is_file() for place in (folder, *folder.parents[:DEEPEST]))
