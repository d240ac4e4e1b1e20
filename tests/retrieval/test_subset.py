import json
import os
from dataclasses import replace

import datasets
import numpy as np
import pytest
import yaml

from hf_tlm.corpora import load_corpus
from hf_tlm.errors import ArgumentsError
from hf_tlm.retrieval import RetrievalError, Subset, retrieve
from hf_tlm.retrieval.report import retrieval_report
from hf_tlm.retrieval.subset import subset_problem
from hf_tlm.retrieval.subset_files import CARD_FILE, COLUMNS, CONFIG_DATA_FILE, DATA_FILE, REPORT_FILE
from hf_tlm.tasks import TaskError
from hf_tlm.utils.run_files import MANIFEST_FILE


@pytest.fixture
def subset(tmp_path, make_task, make_corpus):
    return retrieve(make_task(), make_corpus(), top_k=2, cache_dir=str(tmp_path / "cache"))


@pytest.fixture
def random_subset(tmp_path, make_task, make_corpus):
    return retrieve(make_task(), make_corpus(), retriever="random", num_passages=3, cache_dir=str(tmp_path / "cache"))


@pytest.fixture(params=["subset", "random_subset"])
def either(request):
    return request.getfixturevalue(request.param)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_columns_have_the_documented_types(either):
    assert {name: feature.dtype for name, feature in either.dataset.features.items()} == COLUMNS


def test_repr_is_one_line(subset):
    names = subset.manifest["corpus"]["name"], subset.manifest["task"]["name"]
    assert repr(subset) == f"Subset({len(subset)} passages of {names[0]!r} for {names[1]!r})"


def test_save_and_load_give_the_same_subset(either, tmp_path):
    either.save(tmp_path / "saved")
    loaded = Subset.load(tmp_path / "saved")
    assert loaded.dataset.to_dict() == either.dataset.to_dict()
    assert loaded.dataset.features == either.dataset.features
    assert loaded.manifest == either.manifest
    assert loaded.summary() == either.summary()
    loaded.save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "saved")


def test_loading_from_a_subset_object_is_refused(subset):
    with pytest.raises(RetrievalError, match=r"expected a folder; received a Subset. Save it with save\(folder\)"):
        Subset.load(subset)


def test_two_runs_give_the_same_bytes_and_no_paths(either, request, tmp_path, make_task, make_corpus):
    options = {"top_k": 2} if either.manifest["retriever"] == "bm25" else {"retriever": "random", "num_passages": 3}
    other = retrieve(make_task(), make_corpus(), cache_dir=str(tmp_path / "elsewhere"), **options)
    either.save(tmp_path / "a")
    other.save(tmp_path / "deep" / "b")
    first = contents(tmp_path / "a")
    assert set(first) == {DATA_FILE, MANIFEST_FILE, REPORT_FILE, CARD_FILE, REPORT_FILE}
    assert first == contents(tmp_path / "deep" / "b")
    assert not any(str(tmp_path).encode() in content for content in first.values())


def test_load_dataset_reads_the_folder(either, tmp_path):
    either.save(tmp_path / "saved")
    loaded = datasets.load_dataset(str(tmp_path / "saved"), cache_dir=str(tmp_path / "hf"))
    assert list(loaded) == ["train"]
    assert loaded["train"].to_dict() == either.dataset.to_dict()
    assert loaded["train"].features == either.dataset.features


def test_card_has_metadata_counts_and_fingerprint(subset, random_subset, tmp_path):
    for saved_subset, text in ((subset, "top 2 passages for each"), (random_subset, "drawn uniformly")):
        saved_subset.save(tmp_path / saved_subset.manifest["retriever"])
        card = (tmp_path / saved_subset.manifest["retriever"] / CARD_FILE).read_text(encoding="utf-8")
        front = yaml.safe_load(card.split("---")[1])
        assert front["size_categories"] == ["n<1K"] and not {"language", "license"} & set(front)  # Neither was given.
        (split,) = front["dataset_info"]["splits"]
        assert split["num_examples"] == len(saved_subset) and {f["name"] for f in front["dataset_info"]["features"]} == set(
            COLUMNS
        )
        assert front["configs"][0]["data_files"] == [{"split": "train", "path": "data/train-*.parquet"}]
        assert text in card and f"{len(saved_subset)} of the 6 passages" in card
        assert saved_subset.manifest["task"]["fingerprint"] in card


def test_saved_subset_is_replaced_as_a_whole(subset, random_subset, tmp_path):
    target = tmp_path / "saved"
    target.mkdir()
    subset.save(target)
    random_subset.save(target)
    assert Subset.load(target).manifest["retriever"] == "random"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".saved")] == []


def test_load_sees_new_content_even_with_the_old_file_time(subset, random_subset, tmp_path):
    target = tmp_path / "saved"
    subset.save(target)
    time = os.stat(target / DATA_FILE).st_mtime
    Subset.load(target)
    random_subset.save(target)
    os.utime(target / DATA_FILE, (time, time))
    assert Subset.load(target).dataset.to_dict() == random_subset.dataset.to_dict()


def test_folder_with_other_files_is_not_overwritten(subset, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    subset.save(tmp_path / "saved")
    (tmp_path / "saved" / "notes.txt").write_text("notes")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / MANIFEST_FILE).write_text('{"name": "a web application"}')
    before = contents(tmp_path)
    for path, named in ((folder, "thesis.txt"), (tmp_path / "saved", "notes.txt"), (foreign, MANIFEST_FILE)):
        with pytest.raises(RetrievalError, match=f"not empty and contains something other.*{named}"):
            subset.save(path)
    with pytest.raises(ArgumentsError, match="Cannot save a subset to .*file is not a writable folder"):
        subset.save(tmp_path / "file")
    assert contents(tmp_path) == before


def test_saving_through_a_link_keeps_the_link(subset, tmp_path):
    (tmp_path / "big-disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "big-disk")
    subset.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "big-disk" / MANIFEST_FILE).is_file()


def test_load_refuses_what_is_not_a_saved_subset(tmp_path):
    (tmp_path / MANIFEST_FILE).write_text("{broken")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RetrievalError, match="not a saved subset: it has no readable manifest.json") as error:
            Subset.load(folder)
        assert "--corpus" not in str(error.value)
    (tmp_path / "unlabelled.csv").write_text("text\none\n")
    with pytest.raises(
        RetrievalError, match=r"To retrieve a subset from a file of texts, use --corpus .*unlabelled\.csv\.$"
    ):
        Subset.load(tmp_path / "unlabelled.csv")


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_load_notices_damaged_data(subset, tmp_path, damage):
    subset.save(tmp_path / "saved")
    data = tmp_path / "saved" / DATA_FILE
    content = bytearray(data.read_bytes())
    if damage == "remove":
        data.unlink()
    else:
        content[len(content) // 2] ^= 1
        data.write_bytes(content if damage == "flip" else content[:-20])
    with pytest.raises(RetrievalError, match="does not match the manifest"):
        Subset.load(tmp_path / "saved")


@pytest.mark.parametrize("data_file", [DATA_FILE, CONFIG_DATA_FILE])
def test_changed_data_are_noticed_by_the_same_process(subset, tmp_path, data_file):
    subset.write(tmp_path, retrieval_report(subset), data_file)
    assert subset_problem(tmp_path) is None
    (tmp_path / data_file).write_bytes(b"other data")
    assert "does not match the manifest" in subset_problem(tmp_path)


def test_load_refuses_an_empty_subset(subset, tmp_path):
    replace(subset, dataset=subset.dataset.select([])).save(tmp_path / "none")
    with pytest.raises(RetrievalError, match="none is an empty subset without passages"):
        Subset.load(tmp_path / "none")


def test_load_refuses_another_format_version(subset, tmp_path):
    subset.save(tmp_path / "saved")
    path = tmp_path / "saved" / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    with pytest.raises(RetrievalError, match="format version 2; this hf_tlm reads version 1"):
        Subset.load(tmp_path / "saved")


def test_missing_columns_are_named(subset):
    with pytest.raises(RetrievalError, match=r"lacks the columns rank \(int32\)"):
        Subset(subset.dataset.remove_columns("rank"), subset.manifest)
    with pytest.raises(RetrievalError, match=r"lacks the columns score \(float32\).*score \(float64\)"):
        Subset(subset.dataset.cast_column("score", datasets.Value("float64")), subset.manifest)


def test_unusable_manifest_is_refused(either, tmp_path):
    """A subset that could not be loaded again is not saved, and one whose manifest lacks required fields cannot be
    created.
    """
    for manifest in ({}, None, {"retriever": "bm25"}):
        with pytest.raises(
            RetrievalError, match="^manifest: expected a dict with corpus, task, retriever, counts; received"
        ):
            Subset(either.dataset, manifest)
    for changes, message in (
        ({"retriever": "mine"}, "retriever must be bm25"),
        ({"counts": {"passages": np.int64(6), "union": len(either)}}, "counts.passages must be a whole number"),
        ({"note": "by hand"}, "has a field 'note' that recipes do not write"),
    ):
        with pytest.raises(RetrievalError, match=f"^The subset's manifest .*{message}.*that the passages are from"):
            Subset(either.dataset, either.manifest | changes).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(RetrievalError, match=r"^dataset: expected a datasets.Dataset; received a list. Pass Dataset.from"):
        Subset(either.dataset.to_list(), either.manifest)


def test_additional_columns_are_saved(subset, tmp_path):
    scored = subset.dataset.add_column("influence", [0.5] * len(subset))
    Subset(scored, subset.manifest).save(tmp_path / "saved")
    assert Subset.load(tmp_path / "saved").dataset["influence"][0] == 0.5


def test_summary_names_the_counts(subset, random_subset):
    text = subset.summary()
    assert f"{len(subset)} of 6 passages" in text and "for toy" in text
    assert "bm25, lucene, k1 1.2, b 0.75, stop words dropped" in text
    assert "5 queries (text), top 2 of each" in text
    assert "empty queries: 1" in text and "queries without hits: 1" in text
    assert "3 of 6 passages" in random_subset.summary() and "random, seed 0" in random_subset.summary()


def test_filtered_subset_counts_its_own_passages(either, tmp_path):
    fewer = Subset(either.dataset.select([0, 1]), either.manifest)
    assert either.manifest["counts"]["union"] == len(either) > 2
    assert fewer.summary().startswith("2 of 6 passages") and either.summary().startswith(f"{len(either)} of 6 passages")
    fewer.save(tmp_path / "saved")
    assert Subset.load(tmp_path / "saved").manifest["counts"] == {**either.manifest["counts"], "union": 2}


def test_subset_as_a_corpus_has_its_passages(either):
    corpus = either.as_corpus()
    rows = [row for _, batch in corpus.batches() for row in batch.to_pylist()]
    assert rows == [{name: row[name] for name in ("id", "text", "source")} for row in either.dataset]
    manifest = either.manifest
    assert corpus.name == f"{manifest['corpus']['name']}, for {manifest['task']['name']}"
    assert corpus.fingerprint == either.as_corpus().fingerprint != manifest["corpus"]["fingerprint"]


def test_subset_of_cut_documents_as_a_corpus_is_marked_as_cut(make_task, tmp_path):
    rows = [{"id": f"d{number}", "text": f"kinase one. gene two. cell {number}."} for number in range(6)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task({"q": "kinase", "r": "gene"})
    for max_words, cut in ((None, False), (2, True)):
        corpus = load_corpus(str(tmp_path / "corpus.jsonl"), id_column="id", max_words=max_words)
        subset_corpus = retrieve(task, corpus, top_k=4, cache_dir=str(tmp_path / "cache")).as_corpus()
        assert (
            subset_corpus.cut == cut
            and subset_corpus.fingerprint.endswith("-cut") == cut
            and subset_corpus.max_words is None
        )
        assert {row["id"].partition("#")[0] for row in subset_corpus} <= {row["id"] for row in rows}


def test_examples_pair_passages_with_their_queries(subset, random_subset, make_task, queries):
    task = make_task()
    examples = subset.examples(task, 2)
    rows = subset.dataset[:2]
    assert examples == list(zip([queries[query] for query in rows["best_query"]], rows["text"], rows["score"], strict=True))
    assert len(subset.examples(task, 1000)) == len(subset) and subset.examples(task, 0) == []
    assert random_subset.examples(task, 2) == []


def test_examples_need_a_task_and_a_number(subset, random_subset, make_task):
    for each_subset in (subset, random_subset):
        for ask in (lambda given: given.examples("x", 2), lambda given: given.rows_of_queries("x")):
            with pytest.raises(TaskError, match="^task: expected a Task; "):
                ask(each_subset)
        with pytest.raises(TaskError, match="^task: expected a Task; "):
            each_subset.tell_of_other_task("x")
        with pytest.raises(RetrievalError, match="^n: expected a whole number of passages; received 'x'"):
            each_subset.examples(make_task(), "x")
    assert subset.examples(make_task(), np.int64(2)) == subset.examples(make_task(), 2)


def test_examples_of_another_task_are_refused(subset, make_task):
    with pytest.raises(RetrievalError, match="has no example .*retrieved for toy"):
        subset.examples(make_task({"other": "kinase", "task": "enzymes"}), 2)
