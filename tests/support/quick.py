"""What takes libraries time and shows nothing in tests is changed, in their process and in those that start warm."""

import os
from types import SimpleNamespace

import accelerate.utils.memory
import datasets
import pyarrow as pa
import xxhash
from datasets.fingerprint import generate_fingerprint
from datasets.table import InMemoryTable

from hf_tlm.runs import price

# Of what a dataset of theirs is, beside its rows.
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
    """Of a dataset in memory, equal for equal rows as that of `datasets`, which pickles code with every table.

    That took a twelfth of the time of the tests.
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
    """Change it, once in a process."""
    os.fsync = lambda descriptor: None  # No test has a power cut, and a disk takes milliseconds for each of many thousand.
    # Every Trainer collects garbage before it trains, for the memory of a GPU: a tenth of the time of these tests.
    accelerate.utils.memory.gc = SimpleNamespace(collect=lambda: 0)
    price.SECONDS = 0.0  # One pass is enough where nobody looks at the time.
    datasets.arrow_dataset.generate_fingerprint = fingerprint
