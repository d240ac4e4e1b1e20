"""An index with matching checksums but invalid contents is refused: the kernels would read and write out of bounds."""

import json
import shutil
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset

from hf_tlm.retrieval import RetrievalError
from hf_tlm.retrieval.bm25 import tiles
from hf_tlm.retrieval.bm25.files import ARRAYS, IDS_FILE, META_FILE, POSTINGS_FILE, checksum, digest_of
from hf_tlm.retrieval.bm25.index import Index
from hf_tlm.retrieval.bm25.tokenize import tokenize_texts
from hf_tlm.retrieval.texts import Analyzer

NUMBER = 60


@pytest.fixture(scope="module")
def built_index(tmp_path_factory):
    """An index of two tiles, with a term of many occurrences."""
    folder = tmp_path_factory.mktemp("forged") / "index"
    texts = [f"alpha w{i % 11} beta w{i % 7} gamma" + " many" * (300 if i == 3 else 1) for i in range(NUMBER)]
    rows = Dataset.from_dict({"id": [f"p{(i * 37) % 1009}" for i in range(NUMBER)], "text": texts})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", 32)
        Index.build(folder, rows, corpus_name="toy", fingerprint="f", analyzer=Analyzer(), progress=False)
    return folder


@pytest.fixture
def index(built_index, tmp_path):
    return shutil.copytree(built_index, tmp_path / "index")


def reseal(folder, **changes):
    """Update the checksums in the description to those of the files."""
    path = folder / META_FILE
    meta = json.loads(path.read_text())
    meta.pop("checksum")
    meta["files"] = {name: checksum(folder / name) for name in meta["files"]}
    meta |= changes
    path.write_text(json.dumps(meta | {"checksum": digest_of(meta)}))


def assert_index_refused(folder, *words):
    with pytest.raises(RetrievalError) as refused:
        Index.load(folder)
    message = str(refused.value)
    assert str(folder) in message and "\n" not in message and len(message) < 500
    assert all(word in message for word in words), message


@pytest.mark.slow
def test_resealed_unchanged_index_is_read(built_index, index):
    reseal(index)
    ((expected, _), (hits, _)) = (
        next(loaded.search(tokenize_texts(["many w3"], loaded.analyzer), 5))
        for loaded in (Index.load(built_index), Index.load(index))
    )
    assert len(hits) == 5 and hits.tolist() == expected.tolist()


def put(position, value):
    def change(array):
        array = np.array(array)
        array[position] = value
        return array

    return change


ARRAY_CHANGES = {
    "shorter": lambda array: array[:-1],
    "longer": lambda array: np.concatenate([array, array[-1:]]),
    "empty": lambda array: array[:0],
    "other type": lambda array: array.astype(np.float64),
    "other bytes": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "other shape": lambda array: array.reshape(1, *array.shape),
    "negative": put(0, -1),
    "huge": put(-1, 2**31 - 1),
    "swapped": lambda array: array[::-1].copy(),
}
# A byte has no byte order, and cannot be negative or huge.
NONE = [("arena", "other bytes"), ("arena", "negative"), ("arena", "huge")]


@pytest.mark.parametrize("name, change", [pair for pair in product(ARRAYS, ARRAY_CHANGES) if pair not in NONE])
def test_forged_array_is_refused(index, name, change):
    path = index / f"{name}.npy"
    before = np.load(path)
    after = ARRAY_CHANGES[change](before)
    assert before.dtype != after.dtype or before.shape != after.shape or not np.array_equal(before, after)
    np.save(path, after)
    reseal(index)
    if name == "sampled" and change == "swapped":
        assert_index_refused(index, "sample")
    else:
        assert_index_refused(index, "damaged, or was not written by hf_tlm")


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04", np.array([{}], object).dumps()])
def test_file_that_is_not_an_array_is_refused(index, name, content):
    (index / f"{name}.npy").write_bytes(content)
    reseal(index)
    assert_index_refused(index, "cannot be read")


def tile_array(index, tile, field):
    """Return an array of a tile within the postings as a writable memory map."""
    table = np.load(index / "table.npy")
    data = np.memmap(index / POSTINGS_FILE, np.uint8, mode="r+")
    offset, *shape = table[tile].tolist()
    return getattr(tiles.Tile.from_buffer(data, offset, shape), field)


TILE_CHANGES = {
    "term beyond the vocabulary": ("terms", -1, 10**6),
    "negative term": ("terms", 0, -1),
    "terms that descend": ("terms", 1, 0),
    "start beyond the postings": ("starts", 1, 2**30),
    "negative start": ("starts", 1, -5),
    "starts that do not begin at 0": ("starts", 0, 1),
    "end beyond the postings": ("starts", -1, 2**30),
    "passage beyond the tile": ("docs", -1, 65_535),
    "passages that descend": ("docs", 1, 0),
    "no occurrence": ("counts", 0, 0),
    "more occurrences": ("counts", 0, 200),
    "many that is not listed": ("counts", 0, 255),
    "many of no posting": ("many", (0, 0), 10**9),
    "negative many": ("many", (0, 1), -1),
    "too many": ("many", (0, 1), 2**40),
}


@pytest.mark.parametrize("tile", [0, -1])
@pytest.mark.parametrize("change", TILE_CHANGES)
def test_forged_tile_is_refused(index, change, tile):
    field, position, value = TILE_CHANGES[change]
    array = tile_array(index, tile, field)
    assert len(array)
    array[position] = value
    reseal(index)
    assert_index_refused(index, "tile")


@pytest.mark.parametrize("position", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 3), (1, 4), (2, 4)])
@pytest.mark.parametrize("value", [-64, 1, 64, 2**40, 2**62, 2**63 - 1])
def test_forged_table_is_refused(index, position, value):
    table = np.load(index / "table.npy")
    table[position] = value if table[position] != value else value + 1
    np.save(index / "table.npy", table)
    reseal(index)
    assert_index_refused(index, "table")


@pytest.mark.parametrize("data", [b"", b"\0" * 64])
def test_forged_postings_are_refused(index, data):
    (index / POSTINGS_FILE).write_bytes(data)
    reseal(index)
    assert_index_refused(index)


def write_ids(index, table):
    with pa.OSFile(str(index / IDS_FILE), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    reseal(index)


IDS = [f"p{(i * 37) % 1009}" for i in range(NUMBER)]
WRONG_IDS = {
    "another column": pa.table({"name": pa.array(IDS, pa.large_string())}),
    "another type": pa.table({"id": pa.array(IDS, pa.string())}),
    "numbers": pa.table({"id": pa.array(range(NUMBER))}),
    "fewer": pa.table({"id": pa.array(IDS[:-1], pa.large_string())}),
    "a null": pa.table({"id": pa.array([*IDS[:-1], None], pa.large_string())}),
    "a duplicate": pa.table({"id": pa.array([*IDS[:-1], IDS[0]], pa.large_string())}),
    "another order": pa.table({"id": pa.array(IDS[::-1], pa.large_string())}),
}


@pytest.mark.parametrize("case", WRONG_IDS)
def test_forged_ids_are_refused(index, case):
    write_ids(index, WRONG_IDS[case])
    assert_index_refused(index)


def test_ids_with_offsets_out_of_range_are_refused(index):
    offsets = np.arange(NUMBER + 1, dtype=np.int64)
    offsets[-1] = 2**40
    good = pa.table({"id": pa.array(IDS, pa.large_string())})
    write_ids(index, good)
    data = (index / IDS_FILE).read_bytes()
    held = np.array(good["id"].chunk(0).buffers()[1]).tobytes()[: 8 * (NUMBER + 1)]
    assert data.count(held) == 1
    (index / IDS_FILE).write_bytes(data.replace(held, offsets.tobytes()))
    reseal(index)
    assert_index_refused(index)


DESCRIPTIONS = {
    "no corpus": {"corpus": None},
    "a corpus of another type": {"corpus": []},
    "parts of another type": {"corpus": {"name": "toy", "fingerprint": "f", "parts": [1]}},
    "no parts": {"corpus": {"name": "toy", "fingerprint": "f"}},
    "no analyser": {"analyzer": {}},
    "an analyser of another type": {"analyzer": {"stopwords": 1, "stemmer": None}},
    "an analyser there is not": {"analyzer": {"stopwords": "xx", "stemmer": None}},
    "a stemmer there is not": {"analyzer": {"stopwords": "en", "stemmer": "xx"}},
    "more of an analyser": {"analyzer": {"stopwords": "en", "stemmer": None, "more": 1}},
    "fewer passages": {"passages": NUMBER - 1},
    "more passages": {"passages": 10**18},
    "negative passages": {"passages": -1},
    "passages of another type": {"passages": True},
    "no tokens": {"tokens": None},
    "other tokens": {"tokens": 5},
    "more terms": {"terms": 10**18},
    "other postings": {"postings": 1},
    "no files": {"files": {}},
    "files of another type": {"files": []},
    "files elsewhere": {"files": {"../x": "1"}},
}


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_forged_description_is_refused(index, case):
    reseal(index, **DESCRIPTIONS[case])
    assert_index_refused(index, "damaged, or was not written by hf_tlm")


def test_deeply_nested_description_is_refused(index):
    (index / META_FILE).write_text('{"a":' * 100_000)
    assert_index_refused(index, "not an index")


@pytest.mark.slow
def test_random_changes_are_refused_or_harmless(index):
    """If the index opens, a search ends and returns existing passages."""
    rng = np.random.default_rng(0)
    files = [POSTINGS_FILE, *(f"{name}.npy" for name in ARRAYS)]
    whole = {name: (index / name).read_bytes() for name in files}
    opened = 0
    for _ in range(150):
        name = files[rng.integers(len(files))]
        data = bytearray(whole[name])
        for position in rng.integers(0, len(data), rng.integers(1, 4)):
            data[position] = rng.integers(256)
        (index / name).write_bytes(data)
        reseal(index)
        try:
            loaded = Index.load(index)
        except RetrievalError as refused:
            assert "\n" not in str(refused)
        else:
            opened += 1
            for documents, _ in loaded.search(tokenize_texts(["alpha many w3", "beta gamma"], loaded.analyzer), 7):
                assert len(documents) <= 7 and ((documents >= 0) & (documents < NUMBER)).all()
        (index / name).write_bytes(whole[name])
    assert opened < 100
