"""Subsets through the loopback Hub: single, named, from several writers, and those that the authors of TLM released."""

import csv
import io
import threading

import pytest
import yaml
from datasets import load_dataset

from hf_tlm.errors import HubError
from hf_tlm.hub import publish_subset
from hf_tlm.hub.subset_cards import configs_card
from hf_tlm.influence import select
from hf_tlm.retrieval import RetrievalError, Subset, retrieval_report, retrieve, subset_files
from hf_tlm.tasks import load_task


@pytest.fixture
def subset(task, corpus):
    return retrieve(task, corpus, top_k=2)


@pytest.fixture
def other_subset(task, corpus):
    return retrieve(task, corpus, retriever="random", num_passages=5)


def files(hub, name="alice/passages", **options):
    return {path: data for path, data in hub.files(name, "dataset", **options).items() if path != ".gitattributes"}


def metadata(text):
    return yaml.safe_load(text.split("---")[1])


def rows(subset):
    return subset.dataset.to_list()


class TestSingleSubset:
    def test_round_trip(self, hub, subset, other_subset):
        first = subset.push_to_hub("alice/passages", license="mit", private=False, tag="v1")
        loaded = Subset.from_hub("alice/passages")
        assert rows(loaded) == rows(subset) and loaded.dataset.features == subset.dataset.features
        assert loaded.manifest.pop("hub") == {"repo_id": "alice/passages", "revision": first.commit, "config": None}
        assert loaded.manifest == subset.manifest
        assert metadata(files(hub)["README.md"].decode())["license"] == "mit"
        other_subset.push_to_hub("alice/passages")
        assert rows(Subset.from_hub("alice/passages")) == rows(other_subset)
        for name in ("alice/passages@v1", f"alice/passages@{first.commit}"):
            assert rows(Subset.open(name)) == rows(subset)
        assert rows(Subset.from_hub("alice/passages", revision="v1")) == rows(subset)

    def test_unchanged_content_makes_no_commit(self, hub, subset):
        subset.push_to_hub("alice/passages")
        before = hub.history("alice/passages", "dataset")
        assert Subset.from_hub("alice/passages").push_to_hub("alice/passages").commit is None
        assert hub.history("alice/passages", "dataset") == before

    def test_saved_copy_records_its_revision(self, hub, subset, tmp_path):
        commit = subset.push_to_hub("alice/passages").commit
        Subset.from_hub("alice/passages").save(tmp_path / "copy")
        assert Subset.open(str(tmp_path / "copy")).manifest["hub"]["revision"] == commit

    def test_error_does_not_name_a_temporary_folder(self, hub, subset, sleeps):
        hub.fail(lambda method, path: "/commit/" in path, 500, times=100)
        with pytest.raises(HubError, match="Nothing was published.*The subset is intact") as caught:
            subset.push_to_hub("alice/passages")
        assert "tmp" not in str(caught.value)


class TestNamedSubsets:
    def test_round_trip(self, hub, subset, other_subset):
        subset.push_to_hub("alice/passages", config="small", license="mit", language="en")
        pushed = other_subset.push_to_hub("alice/passages", config="large", license="mit", language="en", tag="v1")
        assert set(pushed.pushed) == {
            "README.md", "large/README.md", "large/manifest.json", "large/report.md", "large/train-00000-of-00001.parquet"
        }  # fmt: skip
        for config, original in (("small", subset), ("large", other_subset)):
            found = Subset.from_hub("alice/passages", config=config)
            assert rows(found) == rows(original) and found.manifest["hub"]["config"] == config
            loaded = load_dataset("alice/passages", config, split="train")
            assert loaded.to_list() == rows(original) and loaded.features == original.dataset.features
            assert list(load_dataset("alice/passages", config, split="train", streaming=True)) == rows(original)
        assert rows(Subset.open("alice/passages:large@v1")) == rows(other_subset)
        card = files(hub)["README.md"].decode()
        data = metadata(card)
        assert [entry["config_name"] for entry in data["configs"]] == ["large", "small"]
        assert [entry["config_name"] for entry in data["dataset_info"]] == ["large", "small"]
        assert (data["license"], data["language"]) == ("mit", "en") and {"bm25", "random"} <= set(data["tags"])
        assert 'load_dataset("alice/passages", "large", split="train")' in card and f"| {len(subset):,} |" in card
        assert 'load_dataset("alice/passages", "small", split="train")' in files(hub)["small/README.md"].decode()

    def test_pushing_one_name_replaces_only_its_files(self, hub, subset, other_subset):
        subset.push_to_hub("alice/passages", config="small", report="# Mine\n\nWords.\n")
        other_subset.push_to_hub("alice/passages", config="large")
        before = files(hub)
        assert before["small/report.md"] == b"# Mine\n\nWords.\n"
        hub.put("alice/passages", {"large/train-00001-of-00002.parquet": b"of an older layout", "notes.txt": b"by hand"},
                "dataset")  # fmt: skip
        pushed = subset.push_to_hub("alice/passages", config="large")
        after = files(hub)
        assert pushed.deleted == ["large/train-00001-of-00002.parquet"] and after["notes.txt"] == b"by hand"
        assert all(after[path] == data for path, data in before.items() if path.startswith("small/"))
        assert rows(Subset.from_hub("alice/passages", config="large")) == rows(subset)
        history = hub.history("alice/passages", "dataset")
        assert Subset.from_hub("alice/passages", config="large").push_to_hub("alice/passages", config="large").commit is None
        assert hub.history("alice/passages", "dataset") == history

    def test_dry_run_sends_nothing(self, hub, subset):
        push = subset.push_to_hub("alice/passages", config="small", dry_run=True)
        assert "small/manifest.json" in push.pushed and push.commit is None
        assert not [path for method, path in hub.log if method in ("POST", "PUT")]

    def test_dry_run_works_without_a_hub(self, subset):
        push = subset.push_to_hub("alice/passages", config="small", dry_run=True)
        assert "The Hub was not asked" in push.about and sorted(push.sizes) == sorted(push.pushed)
        assert 'load_dataset("alice/passages", "small"' in push.to_text()

    def test_two_simultaneous_writers_keep_both_names(self, hub, subset, other_subset, sleeps, monkeypatch):
        """Each has read the repository before the other writes."""
        subset.push_to_hub("alice/passages", config="a")
        met, errors, commits = threading.Barrier(2, timeout=60), [], []
        push = subset_files.push

        def push_together(folder, *args, files, **options):
            commits.append(threading.get_ident())
            if commits.count(commits[-1]) == 1:
                met.wait()
            return push(folder, *args, files=files, **options)

        monkeypatch.setattr(subset_files, "push", push_together)

        def write(config, subset_to_push):
            try:
                subset_to_push.push_to_hub("alice/passages", config=config)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=args) for args in (("b", subset), ("c", other_subset))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors and len(commits) >= 3  # The second writer wrote the card again.
        data = metadata(files(hub)["README.md"].decode())
        assert [entry["config_name"] for entry in data["configs"]] == ["a", "b", "c"]
        assert rows(Subset.from_hub("alice/passages", config="b")) == rows(subset)
        assert rows(Subset.from_hub("alice/passages", config="c")) == rows(other_subset)

    @pytest.mark.slow
    @pytest.mark.parametrize("how", [500, "reset"])
    def test_push_survives_a_failure_at_any_request(self, hub, subset, other_subset, sleeps, how):
        def push(name):
            other_subset.push_to_hub(name, config="large", tag="v1")

        subset.push_to_hub("alice/whole", config="small")
        hub.log.clear()
        push("alice/whole")
        requests = len(hub.log)
        assert requests > 10
        for number in range(1, requests + 1):
            name = f"alice/try-{number}"
            hub.put(name, files(hub, "alice/whole", revision=hub.history("alice/whole", "dataset")[1]), "dataset")
            hub.log.clear()
            hub.faults.clear()
            hub.fail(number, how)
            waits = len(sleeps)
            push(name)
            # A failed HEAD is followed by another at once; a push that has nothing to change sends fewer requests.
            assert len(sleeps) > waits or number > len(hub.log) or hub.log[number - 1][0] == "HEAD"
            data = metadata(files(hub, name)["README.md"].decode())
            assert [entry["config_name"] for entry in data["configs"]] == ["large", "small"]
            assert files(hub, name).keys() == files(hub, "alice/whole").keys()
        assert len(sleeps) > requests - 4


class TestRefusals:
    def test_named_and_unnamed_subsets_do_not_mix(self, hub, subset, other_subset):
        subset.push_to_hub("alice/named", config="small")
        subset.push_to_hub("alice/alone")
        before = files(hub, "alice/named"), files(hub, "alice/alone")
        with pytest.raises(HubError, match="has named subsets .small."):
            other_subset.push_to_hub("alice/named")
        with pytest.raises(RetrievalError, match="a subset without a name"):
            other_subset.push_to_hub("alice/alone", config="small")
        assert (files(hub, "alice/named"), files(hub, "alice/alone")) == before

    def test_new_branch_starts_from_the_default_branch(self, hub, subset, other_subset):
        subset.push_to_hub("alice/named", config="small")
        with pytest.raises(HubError, match="has named subsets .small."):
            other_subset.push_to_hub("alice/named", revision="next")
        commits = len(hub.history("alice/named", "dataset"))
        other_subset.push_to_hub("alice/named", config="large", revision="next")
        assert len(hub.history("alice/named", "dataset", "next")) == commits + 1
        data = metadata(files(hub, "alice/named", revision="next")["README.md"].decode())
        assert [entry["config_name"] for entry in data["configs"]] == ["large", "small"]
        subset.push_to_hub("alice/alone")
        with pytest.raises(RetrievalError, match="a subset without a name"):
            other_subset.push_to_hub("alice/alone", config="small", revision="next")

    @pytest.mark.parametrize("name", ["passages", "alice/passages@v1", "alice/a b", "alice/" + "a" * 96])
    def test_invalid_repository_name_is_refused(self, hub, subset, tmp_path, name):
        subset.save(tmp_path / "subset")
        with pytest.raises(HubError, match="as owner/name"):
            publish_subset(tmp_path / "subset", name)
        assert not hub.log

    @pytest.mark.parametrize("config", ["data", "a/b", "..", "", "a" * 97])
    def test_invalid_configuration_name_is_refused(self, hub, subset, config):
        with pytest.raises(RetrievalError, match="^Expected a configuration's name that a folder can have"):
            subset.push_to_hub("alice/passages", config=config)
        assert not hub.log

    @pytest.mark.parametrize(
        "name,message",
        [
            ("nowhere", "Expected the folder of a subset, or a dataset of the Hub as owner/name"),
            ("x" * 5000, "Expected the folder of a subset"),
            ("./runs/nowhere", "received './runs/nowhere'"),
            ("alice/nothing", "no dataset repository alice/nothing that you may see"),
            ("alice/passages@v9", "no branch, tag or commit 'v9'"),
            ("alice/passages", r"no subset without a name.*there: large, small\.$"),
            ("alice/passages:medium", r"no subset 'medium'.*there: large, small\.$"),
            ("alice/text", "no subset without a name.*there: none"),
            ("bob/private", "no dataset repository bob/private.*log in"),
            ("bob/gated", "gated: ask for access"),
        ],
    )
    def test_subset_that_cannot_be_opened_is_refused(self, hub, subset, other_subset, name, message):
        subset.push_to_hub("alice/passages", config="small")
        hub.put("alice/passages", {"large_external.csv": b"text\na\n"}, "dataset")
        hub.put("alice/text", {"train.csv": b"text\na\n"}, "dataset")
        hub.put("bob/private", {"manifest.json": b"{}"}, "dataset", private=True)
        hub.put("bob/gated", {"manifest.json": b"{}"}, "dataset", gated=True)
        with pytest.raises((HubError, RetrievalError), match=message):
            Subset.open(name)

    @pytest.mark.parametrize("name", ["alice/corpus", "alice/corpus:en"])
    def test_data_of_a_repository_without_the_subset_are_not_downloaded(self, hub, name):
        files = ("data/train-0.parquet", "en/train-0.parquet", "en/manifest.txt")
        hub.put("alice/corpus", dict.fromkeys(files, b"large"), "dataset")
        with pytest.raises(RetrievalError, match="has no subset"):
            Subset.open(name)
        assert not [path for _, path in hub.log if "/resolve/" in path]

    def test_damaged_subset_is_refused(self, hub, subset):
        subset.push_to_hub("alice/passages", config="small")
        hub.put("alice/passages", {"small/train-00000-of-00001.parquet": b"PAR1"}, "dataset")
        with pytest.raises(RetrievalError, match="does not match the manifest"):
            Subset.from_hub("alice/passages", config="small")


def csv_text(columns, *lines):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([columns, *lines])
    return text.getvalue()


LONG = 'long, and quoted "text"\nof two lines ' * 5000
RELEASED = csv_text(
    ["text", "id", "rank"], ["second", 0, 1], ["first", 1, 0], ["", 2, 0], ["  ", 3, 7], [LONG, 4, 1], ["None", 5, 12]
)  # fmt: skip


class TestReleasedSubsets:
    """Subsets in the layout of yxchar/<task>-tlm."""

    def put(self, hub, **contents):
        data = {f"{name}.csv": text for name, text in contents.items()}
        return hub.put("yxchar/chemprot-tlm", data, "dataset")

    def test_passages_are_ordered_by_rank_and_blank_texts_left_out(self, hub, caplog):
        commit = self.put(hub, small_external=RELEASED)
        loaded = Subset.from_hub("yxchar/chemprot-tlm", config="small")
        assert loaded.dataset["text"][:] == ["first", "second", LONG, "None"]
        assert loaded.dataset["rank"][:] == [1, 2, 2, 13]  # The released ranks begin at 0.
        assert loaded.dataset["id"][:] == [f"small_external.csv:{row}" for row in (1, 0, 4, 5)]
        assert set(loaded.dataset["source"][:]) == {"yxchar/chemprot-tlm"}
        assert {value for name in ("score", "n_queries", "best_query") for value in loaded.dataset[name][:]} == {None}
        assert "left out 2 of 6 rows" in caplog.text
        assert loaded.manifest["counts"] == {"passages": 6, "union": 4, "blank_texts": 2}
        assert loaded.manifest["task"]["name"] == "chemprot" and loaded.manifest["retriever"] == "released"
        assert loaded.manifest["hub"] == {"repo_id": "yxchar/chemprot-tlm", "revision": commit, "config": "small"}
        assert rows(Subset.open("yxchar/chemprot-tlm:small")) == rows(loaded)

    @pytest.mark.parametrize(
        "text,expected",
        [
            (csv_text(["text"], ["a"], ["b"]), [1, 2]),
            (csv_text(["id", "text", "rank"], [0, "a", 3], [1, "b", ""]), [1, 2]),
            (csv_text(["id", "text", "rank"], [0, "a", 3], [1, "b", 3]), [3, 3]),
            (csv_text(["id", "text", "rank"], [0, "a", "0.0"], [1, "b", "2.0"]), [1, 3]),
        ],
    )
    def test_file_with_incomplete_ranks_keeps_its_order(self, hub, text, expected):
        self.put(hub, large_external=text)
        loaded = Subset.from_hub("yxchar/chemprot-tlm", config="large")
        assert loaded.dataset["rank"][:] == expected and loaded.dataset["text"][:] == ["a", "b"]
        assert loaded.manifest["rank_column"] == (expected != [1, 2])
        # The order of a file without ranks does not tell what a smaller K would retrieve.
        assert ("Size against K" in retrieval_report(loaded, None, num_examples=0)) == (expected != [1, 2])

    def test_summary_report_and_card_describe_the_release(self, hub, tmp_path, task):
        self.put(hub, small_external=RELEASED)
        loaded = Subset.from_hub("yxchar/chemprot-tlm", config="small")
        assert "retrieved and released by the authors of TLM" in loaded.summary() and "left out: 2" in loaded.summary()
        report = retrieval_report(loaded, task)
        assert "passages of the released file | 6" in report and "Size against K" in report
        assert "rows without a text | 2 left out" in report and "None" not in report.replace("> None", "")
        loaded.save(tmp_path / "saved", report=report)
        card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
        assert "The authors of TLM retrieved these passages" in card and "2 rows without text were left out" in card
        assert "`rank` is that of the released file" in card and "`None`" not in card
        assert metadata(card)["source_datasets"] == ["yxchar/chemprot-tlm"]
        again = Subset.load(tmp_path / "saved")
        assert rows(again) == rows(loaded) and again.manifest == loaded.manifest
        assert again.as_corpus().name.endswith("for chemprot") and again.examples(task, 3) == []
        again.push_to_hub("alice/copy")
        assert rows(Subset.from_hub("alice/copy")) == rows(loaded)

    @pytest.mark.parametrize(
        "text,message",
        [
            ("label,id\nx,1\n", "no column 'text'; the columns are label, id"),
            ("", "no column 'text'; the columns are none"),
            ("text\n \n", r"no texts: all of its rows \(1\) are blank"),
            (b"text\n\xff\xfe\n", "Cannot read .*small_external.csv"),
            ('text\n"open', "Cannot read .*small_external.csv"),
        ],
    )
    def test_file_without_a_text_column_is_refused(self, hub, text, message):
        self.put(hub, small_external=text)
        with pytest.raises(RetrievalError, match=message):
            Subset.from_hub("yxchar/chemprot-tlm", config="small")

    @pytest.mark.parametrize("name", ["chemprot", "yxchar/chemprot-tlm", "yxchar/chemprot-tlm@main"])
    def test_task_is_loaded_from_the_same_repository(self, hub, name):
        lines = [[f"text {label}", label] for label in range(13)]
        text = csv_text(["text", "label"], *lines)
        self.put(hub, train=text, dev=text, test=text, small_external=RELEASED)
        task = load_task(name)
        assert task.name == "chemprot" and task.metric == "micro_f1" and task.num_labels == 13
        assert [len(rows) for rows in task.splits.values()] == [13, 13, 13]


def test_card_without_required_metadata_is_refused():
    cards = {"a": "---\nconfigs: [{config_name: x}]\n---\n"}
    with pytest.raises(HubError, match="The metadata of a/README.md in alice/passages lack dataset_info"):
        configs_card(cards, "alice/passages")


def test_licences_of_several_subsets_are_all_named():
    info = {"configs": [{"config_name": "x"}], "dataset_info": {"splits": [{"num_examples": 3}]}}
    cards = {name: "---\n" + yaml.safe_dump({**info, "license": kind}) + "---\n" for name, kind in
             {"a": "mit", "b": "cc0-1.0", "c": "mit"}.items()}  # fmt: skip
    assert metadata(configs_card(cards, "alice/passages"))["license"] == ["mit", "cc0-1.0"]


def test_selection_records_the_hub_repository_of_its_subset(hub, task, subset):
    subset.push_to_hub("alice/passages")
    selected = select(task, Subset.from_hub("alice/passages"), method="random", fraction=0.5)
    assert "hub" not in selected.manifest and selected.manifest["selection"]["hub"]["repo_id"] == "alice/passages"
