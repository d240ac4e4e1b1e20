"""Other processes that hold the locks of folders."""

import contextlib
import multiprocessing

from hf_tlm.utils.locks import owned

FORK = multiprocessing.get_context("fork")


def hold(folder, end):
    with owned(folder):
        end.send("ready")
        end.poll(60)


@contextlib.contextmanager
def holder(folder):
    """Start another process that holds the folder's lock within the block."""
    here, other = FORK.Pipe()
    process = FORK.Process(target=hold, args=(folder, other))
    process.start()
    assert here.poll(60)
    try:
        yield process
    finally:
        here.send("go")
        process.join(60)
