"""Compressed corpora that are truncated or damaged are refused by name, or skipped with skip_bad_files."""

import gzip
import io
import json
import random

import pytest
import zstandard

from attacks.attack import assert_refused, attack
from hf_tlm.corpora import CorpusError, load_corpus

LETTERS = random.Random(0)
LINES = ["".join(LETTERS.choices("abcdefghij ", k=40)) for _ in range(3000)]
CONTENTS = {
    "txt": "".join(f"{line}\n" for line in LINES).encode(),
    "csv": "".join(f"{line}\n" for line in ["text", *LINES]).encode(),
    "jsonl": "".join(json.dumps({"text": line}) + "\n" for line in LINES).encode(),
}


def zst(data):
    """Return a zstd frame without length and checksum, as a stream writes it."""
    stream = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(stream, closefd=False) as writer:
        writer.write(data)
    return stream.getvalue()


COMPRESS = {"gz": gzip.compress, "zst": zst}
DAMAGES = {
    "half": lambda data: data[: len(data) // 2],
    "the last byte is missing": lambda data: data[:-1],
    "its end is another": lambda data: data[:-300] + bytes(300),
    "something follows": lambda data: data + b"something that is no frame",
    "half a frame follows": lambda data: data + data[:100],
    "not compressed": lambda data: b"plain text",
    "a head alone": lambda data: data[:3],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", CONTENTS)
def test_damaged_stream_is_refused(tmp_path, suffix, compression, damage):
    path = tmp_path / f"part.{suffix}.{compression}"
    path.write_bytes(DAMAGES[damage](COMPRESS[compression](CONTENTS[suffix])))
    with pytest.raises(CorpusError, match=f"Cannot read .*part.{suffix}.{compression}"):
        list(load_corpus(str(path)))
    with pytest.raises(CorpusError, match=f"Cannot read .*part.{suffix}.{compression}"):
        load_corpus(str(path)).to_dataset(tmp_path / "cache")
    (tmp_path / "whole.txt").write_text("A whole text.\n")
    corpus = load_corpus([str(path), str(tmp_path / "whole.txt")], skip_bad_files=True)
    assert [row["text"] for row in corpus] == ["A whole text."]
    assert list(corpus.bad_files) == [path.name]


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_all_frames_of_a_stream_are_read(tmp_path, suffix, compression):
    """Parallel compressors and `cat` write several frames; zstd's skippable frames hold no text."""
    frame = COMPRESS[compression](CONTENTS[suffix])
    skippable = bytes.fromhex("502a4d18") + (5).to_bytes(4, "little") + b"index" if compression == "zst" else b""
    path = tmp_path / f"part.{suffix}.{compression}"
    path.write_bytes(frame + skippable + frame)
    assert [row["text"] for row in load_corpus(str(path))] == LINES * 2


def test_retrieval_from_a_truncated_stream_is_refused(toys, tmp_path):
    (tmp_path / "c.txt.zst").write_bytes(zst(CONTENTS["txt"])[:-100])
    outcome = attack("retrieve", "--task", toys.task, "--corpus", tmp_path / "c.txt.zst", "--output_dir", toys.out)
    assert_refused(outcome, "Cannot read c.txt.zst", "Truncated")
    assert not toys.out.exists()
