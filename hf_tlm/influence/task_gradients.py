"""The gradients of task batches, in blocks in a folder: some blocks stay in memory, the others are read one at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from hf_tlm.errors import InfluenceError
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.json_files import find_format

# Blocks stay on the device up to this many bytes in total, or half of a GPU's free memory if that is more. The others are
# loaded each time. On a CPU that is cheap: the files are memory-mapped, and the system caches their pages.
KEPT_BYTES = 1 << 30
# Folder name of task gradients, inside the folder of scores or of a scorer.
GRADIENTS_FOLDER = "task-gradients"
# Increased when the meaning of the files changes.
_FORMAT = 2
_META = "task_gradients.json"
_CHECKSUM = "xxh3"

# The named tensors of each parameter, by the parameter's key.
Block = dict[str, dict[str, torch.Tensor]]


class TaskGradients:
    """The gradients of task batches in a folder, in blocks of consecutive batches.

    `block-<digest>-<n>.safetensors` holds the gradients of one block. `task_gradients.json`, which is written first and
    whose digest is in the blocks' names, holds the bounds of the blocks and the `settings` of the gradients. A block is
    written atomically, with a checksum of its tensors, and is never changed.

    Attributes:
        stops: for each block, the index after its last task batch.
    """

    def __init__(self, folder: Path, device: torch.device, meta: dict[str, Any]):
        self.folder, self.device, self.stops, self.settings = folder, device, meta["stops"], meta["settings"]
        self._digest = xxhash.xxh3_64_hexdigest(json.dumps(meta).encode())
        self._kept: dict[int, Block] = {}
        self._sound: set[int] = set()  # Blocks whose checksum was compared.
        self._free = _free_memory(device)

    @classmethod
    def begin(cls, folder: Path, device: torch.device, stops: list[int], settings: dict[str, Any]) -> TaskGradients:
        """Prepare a folder for blocks of these task batches and settings.

        Blocks that another process has written remain; gradients of other settings are removed.
        """
        if (found := find_format(folder / _META, _FORMAT)) and found["settings"] != settings:
            shutil.rmtree(folder)
        meta = {"format": _FORMAT, "stops": stops, "settings": settings}
        atomic_write(folder / _META, json.dumps(meta, indent=2) + "\n")
        return cls(folder, device, meta)

    @classmethod
    def find(cls, folder: Path, device: torch.device, **settings: Any) -> TaskGradients | None:
        """Find the task gradients in a folder, finished or not; return None if there are none with these settings."""
        meta = find_format(folder / _META, _FORMAT)
        if meta is None or any(meta["settings"].get(name) != value for name, value in settings.items()):
            return None
        return cls(folder, device, meta)

    @classmethod
    def open(cls, folder: Path, device: torch.device, fingerprint: str) -> TaskGradients:
        """Open a folder that has all blocks, computed by the same models with the same settings (`fingerprint`).

        Raises:
            InfluenceError: there are no task gradients, blocks are missing or damaged, or they belong to other models or
                settings.
        """
        if not (folder / _META).is_file():
            raise InfluenceError(
                f"{folder} contains no task gradients. Compute them with InfluenceScorer.fit, and save them."
            )
        found = cls.find(folder, device, fingerprint=fingerprint)
        if found is None:
            raise InfluenceError(
                f"The task gradients in {folder} were computed with other models or settings. Choose another folder, or "
                "compute them again with InfluenceScorer.fit."
            )
        if missing := [number for number in range(len(found.stops)) if not found.has(number)]:
            raise InfluenceError(
                f"{len(missing)} of {len(found.stops)} blocks of the task gradients in {folder} are missing or damaged. "
                "Compute them with InfluenceScorer.fit, which continues."
            )
        return found

    @property
    def num_task_batches(self) -> int:
        return self.stops[-1]

    @property
    def stay(self) -> bool:
        """Whether all blocks fit on the device together, so that each is read only once."""
        return sum(self._path(number).stat().st_size for number in range(len(self.stops))) <= _free_memory(self.device)

    def task_batches(self, number: int) -> slice:
        """Return the slice of a block's task batches."""
        return slice(self.stops[number - 1] if number else 0, self.stops[number])

    def has(self, number: int) -> bool:
        """Return whether a block exists and is intact; its checksum is compared only once."""
        if number not in self._sound and _has_valid_checksum(self._path(number)):
            self._sound.add(number)
        return number in self._sound

    def write(self, number: int, block: Block) -> None:
        """Write the gradients of a block; raise an HfTlmError if the file cannot be written."""
        tensors = {f"{key}/{name}": x.contiguous().cpu() for key, parts in block.items() for name, x in parts.items()}
        atomic_write(self._path(number), save(tensors, {_CHECKSUM: _checksum(tensors)}))

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield the slice of task batches and the gradients of each block."""
        for number in range(len(self.stops)):
            yield self.task_batches(number), self._kept.get(number) or self._read(number)

    def tensors(self, key: str, name: str) -> Iterator[torch.Tensor]:
        """Yield one tensor of a parameter from each block."""
        for number in range(len(self.stops)):
            with safe_open(self._path(number), "pt") as file:
                yield file.get_tensor(f"{key}/{name}")

    def _read(self, number: int) -> Block:
        block: Block = {}
        for name, tensor in load_file(self._path(number), device=str(self.device)).items():
            key, _, part = name.rpartition("/")
            block.setdefault(key, {})[part] = tensor
        size = sum(tensor.nbytes for parts in block.values() for tensor in parts.values())
        # Blocks are read in the same order every time, so keeping the first ones is as good as keeping any others.
        if size <= self._free:
            self._kept[number], self._free = block, self._free - size
        return block

    def _path(self, number: int) -> Path:
        return self.folder / f"block-{self._digest}-{number:05d}.safetensors"


def _has_valid_checksum(path: Path) -> bool:
    """Return whether a file's tensors match its checksum; files of versions without checksums are accepted."""
    try:
        with safe_open(path, "pt") as file:
            expected = (file.metadata() or {}).get(_CHECKSUM)
            return expected is None or expected == _checksum({name: file.get_tensor(name) for name in file.keys()})
    except (OSError, SafetensorError):
        return False


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _free_memory(device: torch.device) -> int:
    return max(KEPT_BYTES, torch.cuda.mem_get_info(device)[0] // 2) if device.type == "cuda" else KEPT_BYTES
