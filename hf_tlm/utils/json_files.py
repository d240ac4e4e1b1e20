"""JSON objects that recipes keep for themselves, read so that a damaged one is a line and no traceback."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from hf_tlm.errors import HfTlmError

logger = logging.getLogger(__name__)


def read_object(path: Path, error: type[HfTlmError] = HfTlmError, advice: str = "Make it again.") -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        HfTlmError: of the class `error`, with `advice`: it cannot be read, is not JSON, or no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else f"it is not JSON: {problem}"
        raise error(f"{path} cannot be read, it is damaged or incomplete ({reason}). {advice}") from problem
    if not isinstance(content, dict):
        raise error(f"{path} is damaged: it must hold a JSON object, and holds {type(content).__name__}. {advice}")
    return content


def find_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no file, or, with a warning, a damaged one: it is then made again."""
    if not path.is_file():
        return None
    try:
        return read_object(path, advice="It is made again.")
    except HfTlmError as problem:
        logger.warning("%s", problem)
        return None
