"""What the models of a run have answered, read back: a file that was emptied, cut short or changed is told, never taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_tlm.errors import HfTlmError
from hf_tlm.utils.run_names import predictions_file
from hf_tlm.utils.seals import sealed_file_problem

AGAIN = "Copy the file again, or run the command again that made the run, which makes it again."


def read_answers(
    seed: Path, split: str, error: type[HfTlmError] = HfTlmError, advice: str = AGAIN
) -> list[dict[str, Any]] | None:
    """What a seed's model says of a split of its task, an object a row; None where it has left nothing of it.

    Args:
        seed: its folder, whose seal knows the file. That of before there were seals has none.
        advice: what to do about a damaged file.

    Raises:
        HfTlmError: of the class `error`, with `advice`: the file cannot be read, or is not as it was written.
    """
    path = predictions_file(seed, split)
    if not path.is_file():
        return None
    lines: list[dict[str, Any]] = []
    try:
        damage = sealed_file_problem(seed, path.relative_to(seed).as_posix())
        with open(path, encoding="utf-8") as file:
            for text in file:
                if not isinstance(line := json.loads(text), dict):
                    raise ValueError(f"expected an object, found {line!r:.60}")
                lines.append(line)
    except (OSError, ValueError, RecursionError) as problem:
        raise error(
            f"{path}, line {len(lines) + 1}, cannot be read as JSON: {problem}. It is damaged. {advice}"
        ) from problem
    damage = damage or (None if lines else f"{path} is empty, and had a line a text")
    if damage is not None:
        raise error(f"{damage}. It is damaged. {advice}")
    return lines
