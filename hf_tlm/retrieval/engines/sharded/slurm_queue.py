"""What Slurm says of a job."""

from __future__ import annotations

import logging
import subprocess

logger = logging.getLogger(__name__)


def in_queue(job: str | int) -> bool:
    """Whether Slurm still lists a job.

    Slurm forgets a job some time after its end, and then answers that there is none. Another error, as of a busy controller,
    says nothing of the job: it is asked for again later.
    """
    if job == -1:
        return False
    listed = subprocess.run(["squeue", "--noheader", "--jobs", str(job)], capture_output=True, text=True)
    if listed.returncode:
        gone = "invalid job id" in listed.stderr.lower()
        if not gone:
            logger.warning("squeue failed: %s", listed.stderr.strip())
        return not gone
    return bool(listed.stdout.strip())
