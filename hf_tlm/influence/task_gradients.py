"""The gradients of the task batches in a folder, in blocks: some stay in memory, of the others there is one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hf_tlm.files import atomic_write
from hf_tlm.influence.errors import InfluenceError

# Blocks stay on the device until they have so many bytes. The others are brought there again for every batch of passages,
# of which a low layer makes small ones. On a CPU that costs little: the files are mapped, and the system keeps their pages.
KEPT_BYTES = 1 << 30
# Changes when the files would mean something else.
_FORMAT = 1
_META = "task_gradients.json"

# By key of a parameter, its named tensors.
Block = dict[str, dict[str, torch.Tensor]]


class TaskGradients:
    """`block-<n>.safetensors` has the gradients of consecutive task batches; `task_gradients.json`, which is written last,
    which ones, and the `settings` that they were made with.
    """

    def __init__(self, folder: Path, device: torch.device):
        self.folder, self.device = folder, device
        self._meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        self._kept: dict[int, Block] = {}
        self._free = KEPT_BYTES

    @classmethod
    def open(cls, folder: Path, device: torch.device, fingerprint: str) -> TaskGradients:
        """Raises:
        InfluenceError: they are not there, not whole, or were made by another model or with other settings.
        """
        if not (folder / _META).is_file():
            raise InfluenceError(f"{folder} holds no task gradients. Make them with InfluenceScorer.fit and save.")
        found = cls(folder, device)
        if found._meta["format"] != _FORMAT or found.settings["fingerprint"] != fingerprint:
            raise InfluenceError(
                f"The task gradients in {folder} were made by other models or with other settings. Choose another folder, "
                "or make them again with InfluenceScorer.fit."
            )
        return found

    @staticmethod
    def write_block(folder: Path, number: int, block: Block) -> None:
        tensors = {f"{key}/{name}": x.contiguous().cpu() for key, parts in block.items() for name, x in parts.items()}
        save_file(tensors, folder / f"block-{number:05d}.safetensors")

    @staticmethod
    def finish(folder: Path, stops: list[int], settings: dict[str, Any]) -> None:
        """stops: of each block, the task batch after its last one."""
        atomic_write(folder / _META, json.dumps({"format": _FORMAT, "stops": stops, "settings": settings}, indent=2) + "\n")

    @property
    def settings(self) -> dict[str, Any]:
        return self._meta["settings"]

    @property
    def num_task_batches(self) -> int:
        return self._meta["stops"][-1]

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """The task batches of each block, and their gradients."""
        start = 0
        for number, stop in enumerate(self._meta["stops"]):
            yield slice(start, stop), self._kept.get(number) or self._read(number)
            start = stop

    def _read(self, number: int) -> Block:
        block: Block = {}
        for name, tensor in load_file(self.folder / f"block-{number:05d}.safetensors", device=str(self.device)).items():
            key, _, part = name.rpartition("/")
            block.setdefault(key, {})[part] = tensor
        size = sum(tensor.nbytes for parts in block.values() for tensor in parts.values())
        # Blocks are read in the same order every time, so those that came first are as good to keep as any.
        if size <= self._free:
            self._kept[number], self._free = block, self._free - size
        return block
