"""Manifests with missing, unknown or wrongly typed fields are refused when a subset is opened; older ones are read."""

import json
import shutil

import pytest

from hf_tlm.corpora import load_corpus
from hf_tlm.retrieval import RetrievalError, Subset, retrieve
from support.toys import make_task

MISSING = ["corpus", "task", "retriever", "counts", "query_mode", "top_k", "k1", "b", "variant"]
INNER = [("corpus", "name"), ("corpus", "fingerprint"), ("task", "name"), ("task", "fingerprint"), ("counts", "union")]
INNER += [("counts", "passages"), ("counts", "queries")]
WRONG = {
    "corpus": (["x"], "corpus must be an object; found ['x']"),
    "task": (None, "task must be an object"),
    "retriever": ("bm52", "retriever must be bm25"),
    "counts": ({"passages": 0, "union": 1, "queries": 1}, "counts.passages must be a whole number from 1"),
    "query_mode": (3, "query_mode must be text or rake"),
    "top_k": ("50", "top_k must be a whole number from 1"),
    "k1": (True, "k1 must be a number"),
    "delta": ("0.5", "delta must be a number"),
    "stopwords": (7, "stopwords must be a text"),
    "decontamination": ({"ids": []}, "decontamination.passages must be a whole number"),
    "deduplication": ([], "deduplication must be an object"),
    "selection": ({"size": 1, "of": 2, "method": "magic"}, "selection.method must be iss or confidence or disagreement"),
    "versions": (["1.0"], "versions must be an object"),
    "files": ("none", "files must be an object"),
    "hub": ("alice/toy", "hub must be an object"),
    "rank_column": ("no", "rank_column must be true or false"),
    "decontaminated": (True, "has a field 'decontaminated' that recipes do not write. Did you mean decontamination?"),
    "run_me": ("rm", "has a field 'run_me' that recipes do not write."),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    from datasets import Dataset

    folder = tmp_path_factory.mktemp("subset") / "saved"
    corpus = Dataset.from_list([{"text": f"the gene activates the cell {number}"} for number in range(8)])
    retrieve(make_task(), load_corpus(corpus), top_k=2).save(folder)
    return folder


@pytest.fixture
def changed(saved, tmp_path):
    """A function that changes the manifest of a copy of the subset and returns the copy."""

    def change(how):
        shutil.copytree(saved, tmp_path / "copy")
        path = tmp_path / "copy" / "manifest.json"
        manifest = json.loads(path.read_text())
        how(manifest)
        path.write_text(json.dumps(manifest))
        return tmp_path / "copy"

    return change


@pytest.mark.parametrize("name", MISSING)
def test_missing_field_is_named(changed, name):
    with pytest.raises(RetrievalError, match=rf"manifest.json is not what recipes write: {name} must be .*; found nothing"):
        Subset.load(changed(lambda manifest: manifest.pop(name)))


@pytest.mark.parametrize("outer,inner", [pair for pair in INNER if pair[1] != "fingerprint"])
def test_missing_nested_field_is_named(changed, outer, inner):
    with pytest.raises(RetrievalError, match=rf"{outer}.{inner} must be .*; found nothing"):
        Subset.load(changed(lambda manifest: manifest[outer].pop(inner)))


@pytest.mark.parametrize("name", WRONG)
def test_wrongly_typed_field_is_named(changed, name):
    value, message = WRONG[name]
    with pytest.raises(RetrievalError) as raised:
        Subset.load(changed(lambda manifest: manifest.update({name: value})))
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("versions", [["1"], None, "1"])
def test_format_version_is_checked_before_other_fields(changed, versions):
    with pytest.raises(RetrievalError, match="has format version 99; this hf_tlm reads version 1"):
        Subset.load(changed(lambda manifest: manifest.update(format_version=99, versions=versions)))


def test_manifest_is_loaded_unchanged(saved):
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest["files"]
    assert Subset.load(saved).manifest == manifest


def test_older_manifest_is_read(changed):
    def older(manifest):
        for name in ("deduplication", "stemmer", "top_k_requested", "num_passages", "seed", "versions"):
            del manifest[name]
        for name in ("sources", "bad_files", "first_empty_queries", "first_queries_without_hits", "skipped"):
            manifest["counts"].pop(name, None)

    subset = Subset.load(changed(older))
    assert "top 2 of each" in subset.summary()
