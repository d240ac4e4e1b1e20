"""The page of a run: its content for finished, unfinished and damaged runs of every kind, its escaping and its size."""

import html
import json
import re
import shutil
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from datasets import Dataset

from hf_tlm import analysis
from hf_tlm.analysis import AnalysisError, AnalyzeArguments, AnalyzedTask, read_run, write_report
from hf_tlm.analysis.arguments import ReportPageArguments
from hf_tlm.analysis.report.about import highlights
from hf_tlm.analysis.report.blocks import Column, make_table
from hf_tlm.analysis.report.predictions import document_frequency, lengths_and_rare_shares
from hf_tlm.analysis.report.run_folder import settings_of
from hf_tlm.retrieval import RetrievalError, Subset, retrieve
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.training import TlmArguments
from hf_tlm.training.run_folder import settings
from hf_tlm.utils.seals import write_seal
from support.report_runs import EVIL, classified, kind_run, text_task, tlm_run, write_json, write_lines
from support.toys import make_task, sentences

VOID = {"meta", "link", "input", "img", "br"}


class Page(HTMLParser):
    """Sections by anchor as text, and tables by caption as rows of texts; checks that every tag is closed in order."""

    def __init__(self, source):
        super().__init__()
        self.open, self.sections, self.tables, self.tags, self.links = [], {}, {}, [], []
        self.section, self.rows, self.caption = None, None, None
        self.feed(source)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append((tag, values))
        self.links += [value for name, value in attributes if name in ("href", "src", "action", "data", "srcset")]
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "section":
            self.section = values["id"]
            self.sections[self.section] = ""
        elif tag == "table":
            self.rows, self.caption = [], ""
        elif tag == "tr" and self.rows is not None:
            self.rows.append([])
        elif tag in ("td", "th") and self.rows is not None:
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag
        if tag == "table":
            self.tables[" ".join(self.caption.split())] = [[" ".join(cell.split()) for cell in row] for row in self.rows]
            self.rows = None

    def handle_data(self, data):
        if self.section:
            self.sections[self.section] += data
        if self.rows is not None and "caption" in self.open:
            self.caption += data
        elif self.rows and self.rows[-1] and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def page_of(run, tmp_path, **values):
    return Page(write_report(run, tmp_path / "report.html", **values).read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path, task):
    return tlm_run(tmp_path / "run", task, {3: {0, 1, 2, 5}, 4: {0}}, [0.5, 0.75])


def test_page_of_a_finished_run(run, task, tmp_path):
    page = page_of(run, tmp_path, task=task)
    assert list(page.sections) == ["run", "environment", "cost", "scores", "confusion", "errors", "analysis", "curves"]
    scores = page.tables["In percent"]
    assert scores[0] == ["metric", "split", "mean", "±", "seed 3", "seed 4"]
    assert ["Macro-F1", "test", "62.50", "17.68", "50.00", "75.00"] in scores
    cost = page.tables["Training, by seed and stage"]
    assert cost[1][:5] == ["seed 3", "10", "4,000", "3,000", "2.5e+09"] and cost[1][-1] == "2.000"
    # Two seeds of 24 rows each, with five errors in all.
    matrix = page.tables["test: share of each true class (row) by predicted class (column), and counts of 2 seeds together"]
    names = matrix[0][1:]
    counts = {(row[0], name): int(cell.split()[-1]) for row in matrix[1:] for name, cell in zip(names, row[1:], strict=True)}
    assert sum(counts.values()) == 48 and sum(counts[name, name] for name in names) == 43
    # The best on validation is seed 4, which has row 0 wrong, as has the other seed.
    errors = page.tables["test: errors, the most confident first (seed 4, the best on validation)"]
    row = task.test[0]
    assert errors[0] == ["id", "text", "gold", "predicted", "probability", "probability of gold", "wrong in (of 2 seeds)"]
    assert len(errors) == 2 and errors[1][:3] == ["test-0", row["text"], task.label_names[row["label"]]]
    assert errors[1][4:] == ["0.900", "0.050", "2"]
    by_class = page.tables["test: accuracy by class"]
    assert by_class[0] == ["Class", "rows", "accuracy", "± /%", "precision", "F1"]
    assert sum(int(row[1]) for row in by_class[1:]) == 24
    class_of_row_0 = next(row for row in by_class if row[0] == task.label_names[row_label(task, 0)])
    # The three classes alternate, so each has 8 of the 24 rows.
    assert class_of_row_0[1] == "8"
    lengths = page.tables["test: accuracy by length of the text, in words"]
    assert sum(int(row[1]) for row in lengths[1:]) == 24
    assert "test: accuracy by share of rare words (in fewer than 5 training texts)" in page.tables
    assert "corpus: masked LM" in page.sections["curves"] and "Stage 2: validation" in page.sections["curves"]
    settings = page.sections["run"]
    assert "Settings that differ from the defaults (2)" in settings and "learning_rate" in settings


@pytest.mark.parametrize("teacher,differs", [("none", False), ("linear", True)])
def test_teacher_none_is_shown_as_the_default(run, tmp_path, teacher, differs):
    args = TlmArguments(output_dir=str(tmp_path), teacher=teacher, report_to="none")
    record = json.loads((run / "results.json").read_text())
    write_json(run / "results.json", record | {"arguments": settings(args)})
    shown = next(setting for setting in settings_of(read_run(run)) if setting.name == "teacher")
    assert (shown.value, shown.default, shown.differs) == (teacher, "none", differs)


def test_baselines_are_shown_with_the_lead_over_them(run, task, tmp_path):
    baselines = [
        {"name": "linear", "settings": {}, "scores": {"test": {task.metric: 0.7}, "validation": {task.metric: 0.65}}},
        *(3, {}, {"name": "x", "scores": 3}, {"name": "y", "scores": {"test": 3}}, {"name": "z", "scores": {"test": {}}}),
    ]
    record = json.loads((run / "results.json").read_text())
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "results.json").write_text(json.dumps(record | {"baselines": baselines}))
    scores = page_of(tmp_path / "copy", tmp_path, task=task).tables["In percent"]
    assert ["Macro-F1", "test: linear model", "70.00", "", "", ""] in scores
    assert sum("linear" in row[1] for row in scores) == 2
    assert ("to beat", "70.00 %", "linear model, on test") in highlights(read_run(tmp_path / "copy"))
    title = "Lead over the linear model in points, and its 95% interval over resampled texts (paired bootstrap)"
    assert title not in page_of(tmp_path / "copy", tmp_path, task=task).tables
    for low, chance in ((0.01, ""), (-0.2, "; the difference may be due to the choice of these texts")):
        lead = {"test": {"difference": 0.1, "low": low, "high": 0.3}, "validation": {"difference": "x"}}
        with_lead = [{**baseline, "lead": lead} if baseline is baselines[0] else baseline for baseline in baselines]
        (tmp_path / "copy" / "results.json").write_text(json.dumps(record | {"baselines": with_lead}))
        rows = page_of(tmp_path / "copy", tmp_path, task=task).tables[title]
        assert rows[1:] == [["Macro-F1", "test", "+10.00", f"{100 * low:+.2f}", "+30.00"]]
        assert ("to beat", "70.00 %", f"linear model, on test{chance}") in highlights(read_run(tmp_path / "copy"))
    # The lead is that of the mean; if another figure is shown, it is left out.
    (tmp_path / "copy" / "results.json").write_text(json.dumps(record | {"baselines": with_lead, "seed_figure": "max"}))
    assert ("to beat", "70.00 %", "linear model, on test") in highlights(read_run(tmp_path / "copy"))


@pytest.mark.parametrize(
    "name,said,score",
    [
        ("averaged", "average of all seeds' models", 0.75),
        ("with_linear", "averaged with the linear model", {"mean": 0.75}),
        ("averaged_with_linear", "average of all seeds' models, averaged with the linear model", 0.75),
    ],
)
def test_score_of_averaged_seeds_is_shown(run, task, tmp_path, name, said, score):
    record = json.loads((run / "results.json").read_text())
    shutil.copytree(run, tmp_path / "copy")
    for found, shown in (({"n": 2, "test": {"macro_f1": score}}, True), ({"n": 2, "test": 3}, False), (3, False)):
        (tmp_path / "copy" / "results.json").write_text(json.dumps(record | {name: found}))
        scores = page_of(tmp_path / "copy", tmp_path, task=task).tables["In percent"]
        assert (["Macro-F1", f"test: {said}", "75.00", "", "", ""] in scores) is shown
        assert any("averag" in row[1] for row in scores) is shown


HUGE = 10**400  # Too large for a float.


def test_numbers_too_large_for_a_float_are_damage(run, task, tmp_path):
    file = shutil.copytree(run, tmp_path / "copy") / "results.json"
    record = json.loads(file.read_text())
    history = [{"step": step, task.metric: HUGE} for step in range(3)]
    seeds = [{**record["seeds"][0], "history": history}, *record["seeds"][1:]]
    scores = {"test": {task.metric: HUGE}}
    file.write_text(
        json.dumps(record | {"seeds": seeds, "averaged": scores, "baselines": [{"name": "x", "scores": scores}]})
    )
    page = page_of(tmp_path / "copy", tmp_path, task=task)
    assert not any("averag" in row[1] or "x" in row[1] for row in page.tables["In percent"][1:])
    for seed in (
        {"test": {task.metric: HUGE}},
        {"cost": {"flops": HUGE}},
        {"stages": {"1": {"cost": {"seconds": HUGE}}}},
        {"stages": {"1": 3}},
    ):
        file.write_text(json.dumps(record | {"seeds": [{**record["seeds"][0], **seed}]}))
        with pytest.raises(AnalysisError, match="The file is damaged"):
            read_run(tmp_path / "copy")
    assert make_table("", [Column("n", "number", "{:.2f}")], [(HUGE,)]).rows[0][0].text == str(HUGE)


def row_label(task, at):
    return task.test["label"][at]


def test_most_confident_errors_come_first_and_the_rest_is_counted(run, task, tmp_path):
    shutil.rmtree(run / "seed-4")
    page = page_of(run, tmp_path, task=task, options=ReportPageArguments(report_rows=2, report_characters=12))
    errors = page.tables["test: errors, the most confident first"]
    assert [row[0] for row in errors[1:]] == ["test-5", "test-2"] and all(len(row[1]) <= 13 for row in errors[1:])
    assert "2 more rows are left out." in page.sections["errors"]


def test_page_without_the_task(run, tmp_path):
    source = write_report(run).read_text(encoding="utf-8")
    assert (run / "analysis" / "report.html").is_file()
    page = Page(source)
    assert "task as --task" in source
    assert page.tables["test: errors, the most confident first (seed 4, the best on validation)"][1][0] == "test-0"
    assert not any("length" in caption for caption in page.tables)


def test_task_is_found_from_the_recorded_command(run, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        Dataset.from_list(sentences(24, len(split))).to_json(folder / f"{split}.jsonl")
    task = AnalyzedTask(task=str(folder)).load()
    tlm_run(run, task, {0: {0}}, [0.5])
    (tmp_path / "task.yaml").write_text("train_tlm: {task: data}\n")
    results = json.loads((run / "results.json").read_text())
    monkeypatch.chdir(tmp_path)
    commands = ["train_tlm.py --task data --seeds 0 1", "train_tlm.py --config task.yaml --rho1 3"]
    commands += ["hf-tlm train --config task.yaml --rho1 3", "hf-tlm train --config tlm/tiny --task data"]
    for command in commands:
        write_json(run / "results.json", results | {"command": command})
        assert "text" in page_of(run, tmp_path).tables["test: errors, the most confident first"][0]
    assert analysis.task_of_run(run / "seed-3")[1] == "data"
    table = tmp_path / "data.csv"
    Dataset.from_list(sentences(24, 1)).to_csv(table)
    of_table = AnalyzedTask(task=str(table), validation_share=0.25, test_share=0.5, max_train_samples=5).load()
    command = f"hf-tlm train --task {table} --validation-share 0.25 --test_share=0.5 --max_train_samples 5"
    write_json(run / "results.json", results | {"command": command, "task_fingerprint": of_table.fingerprint})
    assert analysis.task_of_run(run)[0].fingerprint == of_table.fingerprint
    # Data other than the run's have other texts, and a command can be any text.
    for command in ("train_tlm.py --task data --text_column label", "train_tlm.py --task nowhere", "hf-tlm", "'", 7, ""):
        write_json(run / "results.json", results | {"command": command})
        assert "text" not in page_of(run, tmp_path).tables["test: errors, the most confident first"][0]
        with pytest.raises(AnalysisError, match="have changed since|not a file or folder|names no task"):
            analysis.task_of_run(run)
    with pytest.raises(AnalysisError, match="not the folder of a run"):
        analysis.task_of_run(tmp_path / "nowhere")


def test_other_task_than_the_runs_is_refused(run, tmp_path):
    with pytest.raises(AnalysisError, match="--task toy is not the task of run: its data have fingerprint"):
        page_of(run, tmp_path, task=make_task(test=23))
    assert not (tmp_path / "report.html").exists()


def test_page_compares_two_runs(run, task, tmp_path):
    second = tlm_run(tmp_path / "second", task, {3: {1, 7}, 4: {0}}, [0.6, 0.7])
    page = page_of(run, tmp_path, task=task, second=second)
    assert "Comparison with second" in page.sections["against"]
    agreement = page.tables["Rows that both models, one, or neither predict correctly"]
    # Seed 3: only the second has rows 0, 2 and 5 right, only the first row 7, neither row 1; seed 4: the same error.
    assert agreement[1:] == [["3", "19", "1", "3", "1", "0.62"], ["4", "23", "0", "0", "1", "1"]]
    assert page.tables["test scores of both runs, in percent"][1] == ["Macro-F1", "62.50", "17.68", "65.00", "7.07", "+2.50"]
    assert list(page.tables["Settings that differ"][1:]) == []
    cost = page.tables["Cost of both runs, means over seeds"]
    assert cost[1] == ["run", "10", "4,000", "2.5e+09", "", "2.000"] and cost[2][0] == "second"
    for folder, rho1, rate in ((run, 3.0, 0.5), (second, 3, 0.25)):
        record = json.loads((folder / "results.json").read_text())
        record["arguments"] |= {"rho1": rho1, "learning_rate": rate}
        write_json(folder / "results.json", record)
    differing = page_of(run, tmp_path, task=task, second=second).tables["Settings that differ"]
    assert differing[1:] == [["learning_rate", "0.5", "0.25"]]
    whole = page.tables["accuracy of both runs, in percent"]
    assert whole[1] == ["all", "24", "89.58", "93.75", "+4.17", "5.89"]
    shown = "predictions of the seed with the largest difference, scores over all seeds"
    better = page.tables[f"Rows where second is better than run: {shown}"]
    assert better[0][2:] == ["seed", "gold", "run", "second", "accuracy: run", "accuracy: second"]
    assert {row[0]: row[6:] for row in better[1:]} == {
        **{"test-0": ["0.00", "0.50"], "test-2": ["0.50", "1.00"], "test-5": ["0.50", "1.00"]}
    }
    worse = page.tables[f"Rows where second is worse than run: {shown}"]
    assert [row[0] for row in worse[1:]] == ["test-7"]
    # In the seed in which the two differ, the better run predicts gold.
    assert all(row[3] == row[5] != row[4] for row in better[1:]) and all(row[3] == row[4] != row[5] for row in worse[1:])
    by_length = page.tables["accuracy of both runs by length of the text, in words, in percent"]
    assert sum(int(row[1]) for row in by_length[1:]) == 24 and by_length[0][2:4] == ["run", "second"]
    other = tlm_run(tmp_path / "other", make_task(test=23), {3: {1}}, [0.6])
    with pytest.raises(AnalysisError, match="must have the same task; run is on toy"):
        page_of(run, tmp_path, task=task, second=other)


def test_page_of_an_unfinished_run_says_so(run, task, tmp_path):
    (run / "results.json").unlink()
    write_json(run / "seed-3" / "results.json", {"test": {"macro_f1": 0.5}, "validation": {"macro_f1": 0.4}})
    (run / "seed-3" / "predictions" / "test.jsonl").unlink()
    (run / "seed-4" / "stage2" / "trainer_state.json").rename(run / "seed-4" / "left.json")
    write_json(
        run / "seed-4" / "stage2" / "checkpoint-9" / "trainer_state.json", {"log_history": [{"step": 1, "loss": 4.5}]}
    )
    page = page_of(run, tmp_path, task=None)
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    for sentence in ("is not finished: there is no results.json", "Not finished: seed 4.", "No test predictions of seed 3"):
        assert sentence in source
    assert ["Macro-F1", "validation", "40.00", "40.00"] in page.tables["In percent"]
    # The run has only started.
    shutil.rmtree(run / "seed-3")
    shutil.rmtree(run / "seed-4")
    assert list(page_of(run, tmp_path).sections) == ["run"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("results.json", '{"task": ', r"results.json cannot be read, .*\(it is not JSON"),
        ("results.json", "[1]", "results.json is damaged: expected a JSON object"),
        ("results.json", '{"seeds": {"a": 1}}', "results.json is not what recipes write: seeds must be a list"),
        (
            "results.json",
            '{"seeds": [], "kind": "weird"}',
            "results.json is not what recipes write: kind must be .*found 'weird'",
        ),
        (
            "results.json",
            '{"seeds": [], "metric": 5}',
            "results.json is not what recipes write: metric must be a text; found 5",
        ),
        (
            "results.json",
            '{"seeds": [], "subset": {"selection": 3}}',
            "results.json .* subset.selection must be an object; found 3",
        ),
        ("results.json", '{"seeds": [{"seed": 3, "history": 5}]}', "results.json .* seed 3: history must be a list"),
        ("results.json", '{"seeds": [{"seed": 3, "history": [5]}]}', "seed 3: history.0 must be an object; found 5"),
        (
            "results.json",
            '{"seeds": [{"seed": 3, "stages": {"1": {"cost": 5}}}]}',
            "seed 3: stages.1.cost must be an object",
        ),
        ("results.json", '{"seeds": [{"seed": 3, "test": {"f1": "x"}}]}', "seed 3: test.f1 must be a number; found 'x'"),
        *(
            ("results.json", f'{{"seeds": [{{"seed": 3, {text}}}]}}', f"seed 3: {name} must be")
            for text, name in (
                ('"trained_parameters": "x", "parameters": 3', "trained_parameters"),
                ('"cost": {"seconds": NaN}', "cost.seconds"),
                ('"tables": {"test": {"tags": [{"tag": "B"}]}}', "tables.test.tags.0.support"),
            )
        ),
        *(
            ("results.json", f'{{"seeds": [], {text}}}', f"results.json .* {name} must be")
            for text, name in (
                ('"metric": []', "metric"),
                ('"held_out": {"test": "x"}', "held_out.test"),
                ('"subset": []', "subset"),
                ('"subset": {"top_k": "x"}', "subset.top_k"),
                ('"subset": {"corpus": {"size": "x"}}', "subset.corpus.size"),
                ('"subset": {"selection": {"method": [1]}}', "subset.selection.method"),
            )
        ),
        ("settings.json", "", "settings.json cannot be read, .* is not JSON"),
        (
            "seed-3/predictions/test.jsonl",
            '{"id": "a", "label": "x", "prediction": "x"}\n{"id',
            "test.jsonl, line 2, cannot",
        ),
        ("seed-3/predictions/test.jsonl", "[]", "test.jsonl, line 1, cannot be read as JSON: expected an object"),
        (
            "seed-3/predictions/test.jsonl",
            "",
            "test.jsonl is empty, but should have a line per text. It is damaged. Copy the file again",
        ),
        ("seed-3/predictions/test.jsonl", '{"id": "a"}', "test.jsonl, line 1, is not a prediction .*label"),
        ("seed-4/stage2/trainer_state.json", "\xff", "trainer_state.json cannot be read, .* is not JSON"),
    ],
)
def test_damaged_file_is_named(run, tmp_path, file, text, message):
    (run / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(AnalysisError, match=message):
        page_of(run, tmp_path)


def test_changed_predictions_are_refused(run, task, tmp_path):
    """If complete lines are missing, only the seal of the seed shows it; the run and the one it is compared with are
    checked.
    """
    file = run / "seed-4" / "predictions" / "validation.jsonl"
    for seed in (3, 4):
        write_seal(run / f"seed-{seed}", "predictions")
    whole = file.read_bytes()
    page_of(run, tmp_path, task=task)
    lines = whole.splitlines(keepends=True)
    again = r"Copy the file again, or repeat the command that created the run, to create the seed again\."
    other = tlm_run(tmp_path / "other", task, {3: {0}}, [0.5])
    shutil.rmtree(other / "seed-3/predictions")
    shutil.copytree(run / "seed-3/predictions", other / "seed-3/predictions")
    for damaged, message in (
        (b"".join(lines[:-1]), r"validation.jsonl has [\d,]+ bytes and had [\d,]+ when it was saved"),
        (b"", "validation.jsonl has 0 bytes and had"),
        (whole.replace(b"0.9", b"0.8", 1), "validation.jsonl has changed since it was saved"),
    ):
        file.write_bytes(damaged)
        assert damaged != whole
        with pytest.raises(AnalysisError, match=f"{message}.* It is damaged. {again}"):
            page_of(run, tmp_path, task=task)
    (other / "seed-3/predictions/test.jsonl").unlink()
    with pytest.raises(AnalysisError, match="seed-4/predictions/validation.jsonl has changed"):
        page_of(other, tmp_path, task=task, second=run)
    file.write_bytes(whole)
    page_of(run, tmp_path, task=task)


@pytest.mark.parametrize(
    ("record", "first"),
    [
        ({"command": "hf-tlm reproduce --arms x"}, " after deleting its record in the folder runs of the table"),
        ({"command": "hf-tlm train --output_dir reproduce"}, ""),
        ({"grid": {}}, " after deleting .*results.json"),
    ],
)
def test_record_of_a_finished_run_is_to_be_deleted_first(run, tmp_path, record, first):
    write_json(run / "results.json", json.loads((run / "results.json").read_text()) | record)
    (run / "seed-3/predictions/test.jsonl").write_text("")
    with pytest.raises(AnalysisError, match=f"the command that created the run{first}, to create the seed again"):
        page_of(run, tmp_path)


def test_scores_that_are_not_finite_or_missing(run, task, tmp_path):
    record = json.loads((run / "results.json").read_text())
    record["seeds"][0]["validation"] = {task.metric: float("nan"), "loss": None}
    record["seeds"][0]["cost"] = {"flops": None}
    write_json(run / "results.json", record)
    page = page_of(run, tmp_path, task=task)
    assert ["Macro-F1", "validation", "nan", "nan", "nan", "65.00"] in page.tables["In percent"]
    assert analysis.read_run(run).best_seed == 4
    record["seeds"] = record["seeds"][1:]
    write_json(run / "results.json", record)
    assert "standard deviation" not in page_of(run, tmp_path, task=task).sections["scores"]


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(AnalysisError, match="contains no run: expected results.json"):
        write_report(tmp_path)


def test_texts_are_escaped_and_nothing_is_loaded(tmp_path):
    name = EVIL.replace("\ud800", "").replace("\x00", "")
    rows = [(f"{name} number {at}", (f"<b>{name}", "x")[at % 2]) for at in range(6)]
    task = text_task(dict.fromkeys(("train", "validation", "test"), rows), name=name)
    run = tlm_run(tmp_path / "run", task, {0: {0, 1}, 1: {2}}, [0.5, 0.6])
    record = json.loads((run / "results.json").read_text())
    record |= {"command": EVIL, "environment": {EVIL: EVIL}, "subset": {"corpus": {"name": EVIL}, EVIL: [EVIL]}}
    record["arguments"][EVIL], record["model"]["model_config"] = EVIL, EVIL
    write_json(run / "results.json", record)
    state = json.loads((run / "seed-1/stage1/trainer_state.json").read_text())
    state["log_history"][0][f"{EVIL}_loss"] = 1.0
    write_json(run / "seed-1/stage1/trainer_state.json", state)
    second = tlm_run(tmp_path / "second", task, {0: {3}}, [0.5])
    source = write_report(
        analysis.read_run(run, EVIL), tmp_path / "r.html", task=task, second=analysis.read_run(second, EVIL)
    ).read_text(encoding="utf-8")
    page = Page(source)
    assert not [tag for tag, _ in page.tags if tag in ("img", "b", "iframe", "object")]
    assert [tag for tag, _ in page.tags].count("script") == [tag for tag, _ in page.tags].count("style") == 1
    assert "49" not in page.sections["run"] and "\u202e" not in source and "\x00" not in source
    assert html.escape("</script>") in source and source.count("</script>") == 1
    # Links only point to the page's own anchors, and no style or script has an address.
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    assert not [values for _, values in page.tags for name in values if name.startswith("on")]
    style, script = (re.search(f"<{tag}>(.*?)</{tag}>", source, re.S)[1] for tag in ("style", "script"))
    assert not re.search(
        r"https?:|//\w|url\(|@import|fetch|XMLHttp|import\(", style + re.sub(r"^\s*//.*$", "", script, flags=re.M)
    )
    (policy,) = [v["content"] for t, v in page.tags if t == "meta" and v.get("http-equiv") == "Content-Security-Policy"]
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    sources = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:; base-uri 'none'; "
    assert policy == sources.format(*hashes) + "form-action 'none'"
    assert not [values for _, values in page.tags if "style" in values]


def test_page_of_a_large_run_stays_small(tmp_path):
    long = [(f"{at} " + "\"'<&>\U0001f600 " * 400, f"class {at % 40} " + "&" * 300) for at in range(500)]
    task = text_task(dict.fromkeys(("train", "validation", "test"), long))
    run = tlm_run(tmp_path / "run", task, {0: set(range(500))}, [0.1])
    second = tlm_run(tmp_path / "second", task, {0: set()}, [0.1])
    options = ReportPageArguments(report_rows=10**6, report_characters=10**6)
    path = write_report(run, tmp_path / "report.html", task=task, second=second, options=options)
    assert 1e6 < path.stat().st_size < 5e6
    assert "rows are left out" in Page(path.read_text(encoding="utf-8")).sections["errors"]


def test_page_of_regression(tmp_path):
    rows = [{"text": f"a text of {at} words", "label": at / 2} for at in range(9)]
    splits = {split: Dataset.from_list(rows) for split in ("train", "validation", "test")}
    task = task_from_datasets(TaskSpec(name="stsb", path="m", kind="regression"), splits)
    lines = [{"id": f"test-{at}", "label": at / 2, "prediction": at / 2 + at / 10} for at in range(9)]
    run = kind_run(tmp_path / "run", task, {"test": lines})
    page = page_of(run, tmp_path, task=task, second=run)
    assert sum(tag == "circle" for tag, _ in page.tags) == 9
    errors = page.tables["test: rows, the largest error first"]
    assert errors[1] == ["test-8", "a text of 8 words", "4", "4.8", "0.800"] and len(errors) == 10
    assert page.tables["test: absolute error by true number"][-1] == ["3.5 to 4", "2", "0.750"]
    assert "Rows that both models, one, or neither predict correctly" not in page.tables
    assert page.tables["absolute error of both runs"][1] == ["all", "9", "0.40", "0.40", "+0.00"]


def test_large_numbers_of_a_regression_are_shown_in_full(tmp_path):
    """As for prices: 1.25e+04 would hide the error, and dots of a chart would lie on a grid."""
    rows = [{"text": f"a flat of {at} rooms", "label": 12499.0 + 1000000 * at} for at in range(3)]
    task = task_from_datasets(
        TaskSpec(name="prices", path="m", kind="regression"),
        {split: Dataset.from_list(rows) for split in ("train", "validation", "test")},
    )
    lines = [{"id": f"test-{at}", "label": row["label"], "prediction": 12000.25} for at, row in enumerate(rows)]
    page = page_of(kind_run(tmp_path / "run", task, {"test": lines}), tmp_path, task=task)
    errors = page.tables["test: rows, the largest error first"]
    assert [row[2:4] for row in errors[1:]] == [["2012499", "12000"], ["1012499", "12000"], ["12499", "12000"]]


def test_page_of_question_answering(tmp_path):
    rows = [
        {"context": "Vienna is old.", "question": "What is old?", "answers": ["Vienna"], "answer_start": [0]},
        {"context": "Vienna is old.", "question": "Who is new?", "answers": [], "answer_start": []},
    ]
    splits = {split: Dataset.from_list(rows) for split in ("train", "validation")}
    task = task_from_datasets(TaskSpec(name="squad", path="m", kind="question_answering"), splits)
    lines = [
        {"id": "validation-0", "label": ["Vienna"], "prediction": "the Vienna is", "probability": 0.4},
        {"id": "validation-1", "label": [], "prediction": "old", "probability": 0.7},
    ]
    page = page_of(kind_run(tmp_path / "run", task, {"validation": lines}), tmp_path, task=task)
    errors = page.tables["validation: errors, the most confident first"]
    assert errors[1][1:] == ["Who is new? / Vienna is old.", "(no answer)", "old", "0.700", "0.00"]
    assert errors[2][2:] == ["Vienna", "the Vienna is", "0.400", "0.67"]
    assert page.tables["validation: F1 by question word"][1:] == [["what", "1", "66.7%"], ["who", "1", "0.0%"]]


def test_page_of_tagging_and_multiple_choice(tmp_path):
    rows = [{"tokens": ["the", "cat", "ran"], "tags": ["DT", "NN", "VB"]}]
    splits = {split: Dataset.from_list(rows) for split in ("train", "validation", "test")}
    task = task_from_datasets(TaskSpec(name="pos", path="m", kind="tagging"), splits)
    gold = ["DT", "NN", None]
    lines = [{"id": "test-0", "label": gold, "prediction": ["DT", "VB", "VB"], "probabilities": [0.9, 0.8, 0.6]}]
    table = [{"tag": "NN", "support": 1, "precision": 0.5, "recall": 0.25, "f1": 1 / 3}]
    run = kind_run(tmp_path / "run", task, {"test": lines}, tables={"test": {"tags": table}})
    page = page_of(run, tmp_path, task=task)
    assert page.tables["test: tags"][1] == ["NN", "1", "50.0%", "25.0%", "33.3%"]
    errors = page.tables["test: errors, the most confident first"][1]
    assert errors == ["test-0", "the cat ran", "cat: NN, ran: None", "cat: VB, ran: VB", "0.800", "0.33"]
    assert page_of(run, tmp_path).tables["test: errors, the most confident first"][1][1] == "2: NN, 3: None"

    rows = [{"context": "c", "question": "q?", "options": ["one", "two"], "label": 1}] * 2
    splits = {split: Dataset.from_list(rows) for split in ("train", "validation", "test")}
    task = task_from_datasets(TaskSpec(name="race", path="m", kind="multiple_choice"), splits)
    run = kind_run(tmp_path / "choice", task, {"test": classified(task, "test", {1})})
    page = page_of(run, tmp_path, task=task)
    assert page.tables["test: errors, the most confident first"][1][1:4] == ["q? / one | two / c", "B", "A"]


def test_pages_of_subsets_and_pretraining(task, corpus, tmp_path):
    subset = retrieve(task, corpus, top_k=3)
    subset.save(tmp_path / "subset")
    path = analysis.ReportArguments(report=True).write(tmp_path / "subset", task, subset)
    page = Page(path.read_text(encoding="utf-8"))
    assert list(page.sections) == ["run", "environment", "retrieved"]
    (passages,) = [rows for name, rows in page.tables.items() if "Passages" in name]
    assert passages[1][1] in task.train["text"][:] and passages[1][2] in subset.dataset["text"][:]
    # The report belongs to that subset: saving another subset removes it and is not refused because of it.
    subset.save(tmp_path / "subset")
    assert not path.exists() and len(Subset.load(tmp_path / "subset")) == len(subset)
    assert analysis.ReportArguments().write(tmp_path / "subset") is None
    (tmp_path / "mine" / "analysis").mkdir(parents=True)
    (tmp_path / "mine" / "analysis" / "notes.txt").write_text("of years")
    with pytest.raises(RetrievalError, match="contains something other than a saved subset"):
        subset.save(tmp_path / "mine")
    # On the page of a run that used the subset.
    run = tlm_run(tmp_path / "run", task, {0: {0}}, [0.5], subset=json.loads(json.dumps(subset.manifest)))
    page = page_of(run, tmp_path, task=task)
    assert "retrieved" not in page.sections and "as --subsets" in (tmp_path / "report.html").read_text()
    assert "retrieved" in page_of(run, tmp_path, task=task, subsets={"BM25": subset}).sections
    record = json.loads((run / "results.json").read_text()) | {"command": f"train_tlm.py --subset {tmp_path / 'subset'}"}
    write_json(run / "results.json", record)
    assert "retrieved" in page_of(run, tmp_path, task=task).sections
    # The command names the subset relative to the run's parent folder; its config file does not exist.
    write_json(run / "results.json", record | {"command": "train_tlm.py --config gone.yaml --subset subset"})
    assert "retrieved" in page_of(run, tmp_path, task=task).sections

    pretrained = {"corpus_fingerprint": "x", "corpus": {"name": "c", "tokens": 5}, "arguments": {"objective": "mlm"}}
    pretrained |= {"cost": {"steps": 1, "tokens": 2, "flops": 3.0, "seconds": 4}, "validation": {"mlm_loss": 6.5}}
    write_json(tmp_path / "pretrained" / "results.json", pretrained)
    more = {"corpus/copy_accuracy_original": 0.25, "corpus/cosine_positive": 0.5}
    lines = [{"step": step, "loss": 4.0 - step, "corpus/mlm_loss": 4.0 - step, **more} for step in (1, 2, 3)]
    write_json(tmp_path / "pretrained" / "training" / "trainer_state.json", {"log_history": lines})
    page = page_of(tmp_path / "pretrained", tmp_path)
    assert list(page.sections) == ["run", "cost", "scores", "curves"]
    assert ["validation", "mlm loss", "6.5000"] in page.tables["Losses (nats) and shares"]
    charts = page.sections["curves"]
    assert "Accuracies and shares" in charts and "copy accuracy original" in charts and "Cosines of pairs" in charts


def test_pages_of_grids_and_few_shot_splits(task, tmp_path):
    point = tlm_run(tmp_path / "grid" / "points" / "lr-1", task, {0: {0}}, [0.5])
    shutil.copy(point / "results.json", tmp_path / "grid" / "results.json")
    points = [{"values": {"lr": lr}, "folder": f"points/lr-{lr}", "validation": {}} for lr in (1, 2)]
    write_json(tmp_path / "grid" / "grid.json", {"points": points, "chosen": {"folder": "points/lr-1"}})
    page = page_of(tmp_path / "grid", tmp_path, task=task)
    assert [row[0] + row[-1] for row in page.tables["Points of the grid"][1:]] == ["1chosen", "2"]
    assert "test: errors, the most confident first" in page.tables

    record = json.loads((point / "results.json").read_text())
    (split,) = record.pop("seeds")
    record |= {"method": "prompt", "k": 2, "splits": [split, {**split, "seed": 7}], "scored_split": "validation"}
    write_json(tmp_path / "few" / "results.json", record)
    for seed in (0, 7):
        write_lines(tmp_path / "few" / f"split-{seed}" / "predictions" / "test.jsonl", classified(task, "validation", {1}))
    page = page_of(tmp_path / "few", tmp_path, task=task)
    errors = page.tables["test: errors, the most confident first (split 0, the best on validation)"]
    assert errors[0][-1] == "wrong in (of 2 splits)" and errors[1][1] == task.validation["text"][1]
    assert any(caption.endswith("counts of 2 splits together") for caption in page.tables)
    texts = task.validation["text"][:]

    def rare(training):
        shares = []
        for below in (5, 1):
            lengths, found = lengths_and_rare_shares(texts, document_frequency(training), below)
            shares.append(100 * (lengths * found).sum() / lengths.sum())
        return "test {:.1f}% (in none: {:.1f}%)".format(*shares)

    rare_in_task, rare_in_split = rare(task.train["text"][:]), rare(task.train["text"][:2])
    assert rare_in_task != rare_in_split and rare_in_task in page.sections["run"]
    note = "The training examples of split 0: examples.json in its folder is missing or damaged"
    assert note in (tmp_path / "report.html").read_text(encoding="utf-8")
    write_json(tmp_path / "few" / "split-0" / "examples.json", {"train": task.train["id"][:2], "validation": []})
    write_json(tmp_path / "few" / "split-7" / "examples.json", {"train": task.train["id"][2:4], "validation": []})
    page = page_of(tmp_path / "few", tmp_path, task=task)
    assert rare_in_split in page.sections["run"]  # Rare words are counted in the examples of split 0 only.
    assert note not in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "are on the task's validation split: there is no test split with labels" in page.sections["scores"]

    # The same holds for a fraction of the labels.
    record = json.loads((point / "results.json").read_text())
    write_json(point / "results.json", record | {"arguments": {**record.get("arguments", {}), "train_fraction": 0.5}})
    page = page_of(point, tmp_path, task=task)
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The training examples of seed 0: train_ids.json in its folder is missing or damaged" in source
    every = page.sections["run"]
    write_json(point / "seed-0" / "train_ids.json", task.train["id"][:2])
    page = page_of(point, tmp_path, task=task)
    assert "train_ids.json" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert rare(task.train["text"][:])[4:] in every and rare(task.train["text"][:2])[4:] in page.sections["run"]


def test_recipe_writes_the_page(run, tmp_path, monkeypatch, capsys):
    import runpy

    from support.launching import ROOT, fails

    monkeypatch.setattr(sys, "argv", ["analyze.py", "--what", "report", "--run", f"mine={run}"])
    runpy.run_path(str(ROOT / "recipes/analyze.py"), run_name="__main__")
    assert f"Saved:\n  {run / 'analysis' / 'report.html'}" in capsys.readouterr().out
    assert "mine" in (run / "analysis" / "report.html").read_text(encoding="utf-8")
    recipe = ("recipes/analyze.py", "--what", "report")
    fails(*recipe, message="--what report needs one --run, or two to compare; received 0")
    (run / "results.json").write_text("{")
    fails(*recipe, "--run", run, message=f"{run / 'results.json'} cannot be read, it is damaged")


def test_arm_has_no_score_of_its_first_seed_alone(task, tmp_path):
    """The teacher of the best seed is shown."""
    lead = {"test": {"difference": 0.1, "low": 0.01, "high": 0.3}}
    more = {"with_linear": {"test": {task.metric: {"mean": 0.75}}}, "teacher": {"model": "linear"}}
    more["baselines"] = [{"name": "linear", "scores": {"test": {task.metric: 0.7}}, "lead": lead}]
    for seed, wrong in ((3, {0, 1}), (4, {0})):
        folder = tlm_run(tmp_path / f"arm/seed-{seed}", task, {seed: wrong}, [1 - len(wrong) / 8])
        write_json(folder / "results.json", json.loads((folder / "results.json").read_text()) | more)
        write_json(folder / "teacher.json", {"model": f"linear, as for seed {seed}"})
    alone, page = (page_of(tmp_path / place, tmp_path, task=task) for place in ("arm/seed-3", "arm"))
    assert [row[1] for row in alone.tables["In percent"]].count("test: averaged with the linear model") == 1
    assert [row[1] for row in page.tables["In percent"]].count("test: averaged with the linear model") == 0
    assert any(caption.startswith("Lead over") for caption in alone.tables)
    assert not any(caption.startswith("Lead over") for caption in page.tables)
    assert "as for seed 4" in page.sections["teacher"]


def test_single_seed_runs_of_an_arm_are_shown_as_one_run(run, task, tmp_path, monkeypatch, capsys):
    """`reproduce.py` writes the folder of a run for each seed."""
    import runpy

    from support.launching import ROOT

    arms = {}
    for name, wrong in (("first", {3: {0, 1, 2, 5}, 4: {0}}), ("second", {3: {1}, 4: {0}})):
        for seed, rows in wrong.items():
            tlm_run(tmp_path / name / f"seed-{seed}", task, {seed: rows}, [1 - len(rows) / 8])
        arms[name] = tlm_run(tmp_path / f"{name}_whole", task, wrong, [1 - len(rows) / 8 for rows in wrong.values()])
    found = read_run(tmp_path / "first")
    assert found.apart and found.best_seed == 4 and found.started_seeds == [3, 4] and found.missing == []
    page, whole = (page_of(folder, tmp_path, task=task) for folder in (tmp_path / "first", arms["first"]))
    assert list(page.tables) == list(whole.tables)
    for caption in page.tables:
        assert page.tables[caption] == whole.tables[caption]
    assert page.sections["curves"] == whole.sections["curves"]

    for split, rows in task.splits.items():
        rows.to_json(tmp_path / "toy" / f"{split}.jsonl")
    monkeypatch.setattr(sys, "argv", ["analyze.py", "--what", "report", "--task", str(tmp_path / "toy"), "--run"])
    sys.argv += [str(tmp_path / "first"), str(tmp_path / "second")]
    for name in ("first", "second"):  # Files have another fingerprint than the task in memory.
        fingerprint = analysis.AnalyzedTask(task=str(tmp_path / "toy")).load().fingerprint
        for file in (tmp_path / name).glob("seed-*/results.json"):
            write_json(file, json.loads(file.read_text()) | {"task_fingerprint": fingerprint})
    runpy.run_path(str(ROOT / "recipes/analyze.py"), run_name="__main__")
    folder = tmp_path / "first" / "analysis" / "against-second"  # The report of the first run alone stays.
    assert (folder / "report.html").is_file() and [*folder.parent.iterdir()] == [folder]
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.partition("\n\n")[2].strip() in capsys.readouterr().out and "| all | 24 |" in text
    assert (
        "of both runs by class, in percent**" in text
        and "**Rows that both models, one, or neither predict correctly**" in text
    )
    assert not any(line in text for line in task.test["text"]), "no texts of the task"

    write_json(tmp_path / "first" / "seed-5" / "settings.json", {"task": task.name, "subset": None})
    shutil.copytree(tmp_path / "first" / "seed-4", tmp_path / "first" / "seed-old")
    found = read_run(tmp_path / "first")
    assert [seed["seed"] for seed in found.seeds] == [3, 4] and "seed-5: The run is not finished" in found.missing[0]
    shutil.rmtree(tmp_path / "first" / "seed-5")

    other = tmp_path / "first" / "seed-4" / "results.json"
    write_json(other, json.loads(other.read_text()) | {"arguments": {"learning_rate": 0.25}})
    with pytest.raises(AnalysisError, match="not runs of one arm: their arguments learning_rate differs"):
        read_run(tmp_path / "first")
    shutil.move(tmp_path / "first" / "seed-4", tmp_path / "first" / "seed-5")
    with pytest.raises(AnalysisError, match="seed-5 has runs of other seeds than its name says"):
        read_run(tmp_path / "first")


def test_read_run_finds_kind_seeds_and_name(run):
    run_folder = read_run(run)
    assert (run_folder.kind, run_folder.best_seed, run_folder.started_seeds, run_folder.name) == ("tlm", 4, [3, 4], "run")
    assert AnalyzeArguments(what=["report"], run=[str(run)]).folder == run / "analysis"
