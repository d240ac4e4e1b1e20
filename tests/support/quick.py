"""Speed up libraries in tests, in their process and in those that start warm, by changing what tests do not check."""

import os
from types import SimpleNamespace

import accelerate.utils.memory
import datasets
import pyarrow as pa
import xxhash
from datasets.fingerprint import generate_fingerprint
from datasets.table import InMemoryTable

from hf_tlm.runs import price

# Attributes of a dataset that its fingerprint covers, beside its rows.
_REST = (
    "_format_columns",
    "_format_kwargs",
    "_format_type",
    "_indexes",
    "_indices",
    "_info",
    "_output_all_columns",
    "_split",
)


def fingerprint(dataset):
    """Compute the fingerprint of an in-memory dataset, equal for equal rows like that of `datasets`, but faster.

    `datasets` pickles code with every table, which took a twelfth of the time of the tests.
    """
    parts = vars(dataset)
    plain = type(dataset._data) is InMemoryTable and dataset._indices is None and not dataset._indexes
    if not plain or parts.keys() != {"_data", "_fingerprint", *_REST}:
        return generate_fingerprint(dataset)
    sink, table = pa.BufferOutputStream(), dataset._data.table.combine_chunks()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    digest = xxhash.xxh64(sink.getvalue())
    digest.update(repr([parts[name] for name in _REST]).encode())
    return digest.hexdigest()


def change():
    """Apply the changes, once per process."""
    os.fsync = lambda descriptor: None  # Tests need not survive a power cut, and a disk takes milliseconds for each file.
    # Every Trainer collects garbage before training, to free GPU memory: a tenth of the time of these tests.
    accelerate.utils.memory.gc = SimpleNamespace(collect=lambda: 0)
    price.SECONDS = 0.0  # One pass is enough, as no test checks times.
    datasets.arrow_dataset.generate_fingerprint = fingerprint
