"""Damage to what is kept between runs: caches are created again, records are created again or named in one line."""

import json
import shutil

import pytest

from attacks.attack import assert_refused, attack
from hf_tlm.corpora import load_corpus
from hf_tlm.data import load_tokenizer, tokenize, train_wordpiece
from hf_tlm.data.blocks import BlockShards
from hf_tlm.data.tokenization import text_lengths
from hf_tlm.errors import HfTlmError
from hf_tlm.experiments.steps import read_record
from hf_tlm.retrieval import Subset
from hf_tlm.runs.baselines import to_beat
from hf_tlm.runs.grid import _read_seeds
from hf_tlm.runs.grid_points import GridError
from hf_tlm.runs.grid_search import TRIALS_FILE, _read_trials
from hf_tlm.tasks import load_task
from hf_tlm.utils.json_files import find_object, read_object
from hf_tlm.utils.seals import checksum

DAMAGES = {
    "cut in two": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "without its last bytes": lambda data: data[:-100],
    "something else": lambda data: b"<html>Too many requests</html>" * 40,
    "its first bytes": lambda data: b"\0" * 64 + data[64:],
}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


def flip(data, place):
    """Flip one bit, so that the file keeps its length and Arrow reads it."""
    at = int(place * (len(data) - 1))
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


# Positions within the values of an Arrow file, between its schema and its footer.
flipped = pytest.mark.parametrize("place", [0.4, 0.55, 0.7, 0.85])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of `datasets`, empty."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def damage_file(file, damage):
    # Write a new file, so that a memory map of the old one stays valid.
    data = damage(file.read_bytes())
    file.unlink()
    file.write_bytes(data)


@damaged
@pytest.mark.parametrize("name", ["passages.arrow", "counts.json"])
def test_damaged_corpus_in_the_cache_is_created_again(cache, made_toys, name, damage):
    before = load_corpus(str(made_toys.corpus)).to_dataset()[:]
    (file,) = cache.rglob(name)
    damage_file(file, damage)
    corpus = load_corpus(str(made_toys.corpus))
    assert corpus.to_dataset()[:] == before and corpus.skipped == 0
    assert json.loads(next(cache.rglob("counts.json")).read_text()) == {"skipped": 0, "passages": len(before["id"])}


@damaged
def test_damaged_tokens_in_the_cache_are_created_again(cache, made_toys, damage):
    task = load_task(str(made_toys.task))
    tokenizer = train_wordpiece(task.train["text"], 120)
    before = tokenize(task.train, tokenizer, 32)
    files = [file["filename"] for file in before.cache_files]
    rows = before[:]
    assert files
    del before
    for name in files:
        damage_file(cache.__class__(name), damage)
    assert tokenize(load_task(str(made_toys.task)).train, tokenizer, 32)[:] == rows


@flipped
def test_corpus_in_the_cache_with_a_flipped_bit_is_created_again(cache, made_toys, place, caplog):
    before = load_corpus(str(made_toys.corpus)).to_dataset()[:]
    (file,) = cache.rglob("passages.arrow")
    damage_file(file, lambda data: flip(data, place))
    assert load_corpus(str(made_toys.corpus)).to_dataset()[:] == before
    assert "passages.arrow is damaged and will be created again (its checksum differs)" in caplog.text


@flipped
def test_blocks_in_the_cache_with_a_flipped_bit_are_created_again(cache, made_toys, place, caplog):
    corpus = load_corpus(str(made_toys.corpus))
    tokenizer = train_wordpiece(corpus.to_dataset()["text"], 120)
    before = BlockShards(corpus, tokenizer, 16, shard_size=4).to_dataset()["input_ids"][:]
    file = next(cache.rglob("shard-00001/blocks.arrow"))
    damage_file(file, lambda data: flip(data, place))
    assert BlockShards(corpus, tokenizer, 16, shard_size=4).to_dataset()["input_ids"][:] == before
    assert "its checksum differs" in caplog.text


@flipped
def test_tokens_in_the_cache_with_a_flipped_bit_are_created_again(cache, made_toys, place, caplog):
    tokenizer = train_wordpiece(load_task(str(made_toys.task)).train["text"], 120)
    before = tokenize(load_task(str(made_toys.task)).train, tokenizer, 32)
    (file,), rows = [cache.__class__(file["filename"]) for file in before.cache_files], before[:]
    del before
    for _ in range(2):  # The new file has a seal too.
        damage_file(file, lambda data: flip(data, place))
        caplog.clear()
        assert tokenize(load_task(str(made_toys.task)).train, tokenizer, 32)[:] == rows
        assert "its copy in the cache is damaged and will be created again (its checksum differs)" in caplog.text


def test_tokens_in_the_cache_with_damaged_types_are_created_again(cache, made_toys, caplog):
    tokenizer = train_wordpiece(load_task(str(made_toys.task)).train["text"], 120)
    before = tokenize(load_task(str(made_toys.task)).train, tokenizer, 32)
    (file,), rows = [cache.__class__(file["filename"]) for file in before.cache_files], before[:]
    del before
    damage_file(file, lambda data: data.replace(b'"dtype": "int32"', b'"dtype": "inu32"'))
    assert tokenize(load_task(str(made_toys.task)).train, tokenizer, 32)[:] == rows
    assert "its copy in the cache is damaged and will be created again (its checksum differs)" in caplog.text


@pytest.mark.parametrize("old,new", [(b'"dtype": "string"', b'"dtype": "strhng"'), (b"enzyme", b"enzymf")])
@pytest.mark.parametrize("what", ["subset", "table"])
def test_damaged_copy_of_datasets_is_created_again(cache, made_toys, tmp_path, caplog, what, old, new):
    rows = [{"text": f"an enzyme binds {n}", "label": "ab"[n % 2]} for n in range(40)]
    (tmp_path / "task.csv").write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))

    def read():
        return Subset.load(made_toys.subset).dataset[:] if what == "subset" else load_task(tmp_path / "task.csv").train[:]

    before = read()
    damage_file(
        next(cache.glob("parquet/**/*.arrow" if what == "subset" else "csv/**/*.arrow")), lambda d: d.replace(old, new)
    )
    assert read() == before and "damaged and will be created again" in caplog.text
    caplog.clear()
    assert read() == before and "damaged" not in caplog.text


def test_lengths_in_the_cache_with_a_flipped_bit_are_created_again(cache, made_toys, monkeypatch, caplog):
    monkeypatch.setattr("hf_tlm.data.tokenization._IN_MEMORY", 5)
    tokenizer = train_wordpiece(load_task(str(made_toys.task)).train["text"], 120)
    rows = tokenize(load_task(str(made_toys.task)).train, tokenizer, 32)
    before = text_lengths(rows).tolist()
    damage_file(next(cache.rglob("lengths-*.i32")), lambda data: flip(data, 0.5))
    assert text_lengths(rows).tolist() == before and "its checksum differs" in caplog.text


def test_changed_baselines_in_the_cache_are_created_again(cache, made_toys, caplog):
    task = load_task(str(made_toys.task))
    before = to_beat(task)
    (file,) = cache.rglob("baselines-*.json")
    content = json.loads(file.read_text())
    content["baselines"][0]["scores"]["test"][task.metric] += 0.1
    file.write_text(json.dumps(content))
    assert to_beat(task) == before and "its checksum differs" in caplog.text


@damaged
def test_cached_file_with_a_damaged_seal_is_created_again(cache, made_toys, damage, caplog):
    before = load_corpus(str(made_toys.corpus)).to_dataset()[:]
    (seal,) = cache.rglob("passages.arrow.seal")
    damage_file(seal, damage)
    assert load_corpus(str(made_toys.corpus)).to_dataset()[:] == before
    assert "passages.arrow is damaged and will be created again (its seal cannot be read)" in caplog.text
    caplog.clear()
    load_corpus(str(made_toys.corpus)).to_dataset()
    assert not caplog.text


def test_copied_cache_is_checked_by_content_once(cache, made_toys, caplog, monkeypatch):
    """A copy has other times: its checksum is compared once, later its new times are trusted."""
    load_corpus(str(made_toys.corpus)).to_dataset()
    (file,) = cache.rglob("passages.arrow")
    damage_file(file, lambda data: data)
    read = []
    monkeypatch.setattr("hf_tlm.utils.arrow_files.checksum", lambda path: read.append(path) or checksum(path))
    for _ in range(2):
        load_corpus(str(made_toys.corpus)).to_dataset()
    assert read == [file] and not caplog.text


def test_cache_without_seals_is_accepted(cache, made_toys, caplog):
    before = load_corpus(str(made_toys.corpus)).to_dataset()
    (seal,) = cache.rglob("passages.arrow.seal")
    seal.unlink()
    assert load_corpus(str(made_toys.corpus)).to_dataset().cache_files == before.cache_files and not caplog.text


def test_truncated_tokens_in_the_cache_are_created_again(cache, made_toys, caplog):
    import pyarrow as pa

    task = load_task(str(made_toys.task))
    tokenizer = train_wordpiece(task.train["text"], 120)
    before = tokenize(task.train, tokenizer, 32)
    (file,), rows = [file["filename"] for file in before.cache_files], before[:]
    table = before.data.table.slice(0, 5)
    del before
    cache.__class__(file).unlink()
    cache.__class__(f"{file}.seal").unlink()
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert tokenize(load_task(str(made_toys.task)).train, tokenizer, 32)[:] == rows
    assert "5 rows of 24" in caplog.text


@damaged
@pytest.mark.parametrize("name", ["shard-00000/blocks.arrow", "shard-00001/state.json", "totals.json"])
def test_damaged_blocks_in_the_cache_are_created_again(cache, made_toys, name, damage):
    corpus = load_corpus(str(made_toys.corpus))
    tokenizer = train_wordpiece(corpus.to_dataset()["text"], 120)

    def shards():
        return BlockShards(corpus, tokenizer, 16, shard_size=4)

    before, totals = shards().to_dataset()["input_ids"][:], shards().totals
    (file,) = (path for path in cache.rglob(name.rpartition("/")[2]) if str(path).endswith(name))
    damage_file(file, damage)
    assert shards().to_dataset()["input_ids"][:] == before and shards().totals == totals


@pytest.mark.parametrize("name", ["shard-00001/state.json", "totals.json"])
def test_changed_state_of_blocks_is_created_again(cache, made_toys, name):
    corpus = load_corpus(str(made_toys.corpus))
    tokenizer = train_wordpiece(corpus.to_dataset()["text"], 120)

    def shards():
        return BlockShards(corpus, tokenizer, 16, shard_size=4)

    before, totals = shards().to_dataset()["input_ids"][:], shards().totals
    folder = shards().folder
    (folder / "totals.json").unlink() if "state" in name else None
    for later in folder.glob("shard-*") if "state" in name else ():  # The state after a kill.
        if later.name > "shard-00001":
            shutil.rmtree(later)
    content = json.loads((folder / name).read_text())
    content["passages"] += 1
    content["row" if "state" in name else "blocks"] += 1
    (folder / name).write_text(json.dumps(content))
    assert shards().to_dataset()["input_ids"][:] == before and shards().totals == totals


@damaged
def test_damaged_json_file_is_reported(tmp_path, damage, caplog):
    path = tmp_path / "record.json"
    path.write_bytes(damage(json.dumps({"values": list(range(200))}).encode()))
    for find in (find_object, read_record):
        caplog.clear()
        assert find(path) is None and "record.json" in caplog.text
    with pytest.raises(HfTlmError, match="record.json cannot be read, it is damaged.*Create it again."):
        read_object(path)
    assert find_object(tmp_path / "none.json") is None


@pytest.mark.parametrize("content", ["[]", "null", "3", '"text"', "[" * 100_000])
def test_json_file_without_an_object_is_reported(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_text(content)
    assert find_object(path) is None
    with pytest.raises(HfTlmError, match="record.json.*damaged"):
        read_object(path)


@pytest.mark.parametrize("content", ["{}", '{"seeds": 3}', '{"seeds": [{"seed": 1}]}', '{"seeds": [[]]}', "{", "[]"])
def test_damaged_point_of_a_grid_is_not_finished(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    assert _read_seeds(tmp_path) == []


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"asked": 3, "trials": []}', '{"asked": {}, "trials": 3}'])
def test_damaged_trials_of_a_search_are_refused(tmp_path, content):
    (tmp_path / TRIALS_FILE).write_text(content)
    with pytest.raises(GridError, match="Choose another --output_dir"):
        _read_trials(tmp_path, {})


@pytest.mark.slow
@pytest.mark.parametrize("state", ["exported", "published"])
@pytest.mark.parametrize("name", ["model.safetensors", "results.json", "config.json", "seal.json"])
def test_damaged_pretrained_model_is_created_again(toys, tmp_path, state, name):
    outcome = attack("pretrain", *toys.commands["pretrain"])
    assert outcome.status == 0, outcome.stderr
    before = {path.name: path.read_bytes() for path in toys.out.glob("*.safetensors")}
    if state == "exported":
        (toys.out / "export").mkdir()
        for file in json.loads((toys.out / "seal.json").read_text())["files"]:
            (toys.out / "export" / file).parent.mkdir(exist_ok=True)
            shutil.move(toys.out / file, toys.out / "export" / file)
        shutil.move(toys.out / "seal.json", toys.out / "export" / "seal.json")
    file = toys.out / ("export" if state == "exported" else "") / name
    damage_file(file, DAMAGES["cut in two"])
    outcome = attack("pretrain", *toys.commands["pretrain"])
    assert outcome.status == 0 and "created again" in outcome.stderr and "Traceback" not in outcome.stderr, outcome.stderr
    assert before == {path.name: path.read_bytes() for path in toys.out.glob("*.safetensors")}
    assert not (toys.out / "export").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_damaged_settings_of_a_pretraining_are_refused(toys, content):
    toys.out.mkdir()
    (toys.out / "settings.json").write_bytes(content)
    assert_refused(attack("pretrain", *toys.commands["pretrain"]), "settings.json", "damaged")
    assert (toys.out / "settings.json").read_bytes() == content


def test_truncated_tokenizer_is_refused(tmp_path):
    tokenizer = train_wordpiece(["the gene binds the cell"] * 3, 60)
    tokenizer.save_pretrained(tmp_path)
    damage_file(tmp_path / "tokenizer.json", DAMAGES["cut in two"])
    with pytest.raises(HfTlmError):
        load_tokenizer(str(tmp_path))
