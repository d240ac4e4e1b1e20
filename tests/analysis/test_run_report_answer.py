"""The summary on top of the page: which run is ahead, whether by chance, what a subset contains and which command
creates it.
"""

import json
import shlex
import shutil

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.analysis import read_run, write_report
from hf_tlm.analysis.arguments import ReportPageArguments
from hf_tlm.analysis.report.about import _loss_chart, _validation_chart
from hf_tlm.analysis.report.compare import lead_of, verdict
from hf_tlm.analysis.report.predictions import JUDGES, Predictions, _judge_classification, read_predictions
from hf_tlm.analysis.report.teacher_and_subset import subset_command
from hf_tlm.config import parse
from hf_tlm.corpora import PassageArguments, load_corpus
from hf_tlm.errors import AnalysisError
from hf_tlm.influence import InfluenceScorer, SelectionArguments, select
from hf_tlm.metrics import Lead, paired_bootstrap, scorer
from hf_tlm.retrieval import Bm25Settings, RetrievalArguments, retrieve
from hf_tlm.runs import make_baselines
from hf_tlm.tasks import TaskArguments, TaskSpec, task_from_datasets
from support.naive import tiny
from support.report_runs import text_task, tlm_run, write_lines


@pytest.fixture
def run(task, tmp_path):
    return tlm_run(tmp_path / "run", task, {3: {0, 1, 2, 5}, 4: {0}}, [0.5, 0.75])


def page(run, tmp_path, **options):
    return write_report(run, tmp_path / "report.html", **options).read_text(encoding="utf-8")


def test_verdict_names_both_runs_and_their_scores(run, task, tmp_path):
    second = tlm_run(tmp_path / "second", task, {3: {1, 7}, 4: {0}}, [0.6, 0.7])
    ahead = "second is ahead of run in test Macro-F1 by 2.50 points: 65.00 for second, 62.50 for run."
    sentence = f"{ahead} That is no more than the standard deviation over seeds (17.68)."
    assert verdict((read_run(run), read_run(second))) == sentence
    source = page(run, tmp_path, task=task, second=second)
    head = source[: source.index("<nav")]
    assert sentence in head and head.count("<dt>to beat") <= 1
    for name, score in (("run", "62.50 ± 17.68 %"), ("second", "65.00 ± 7.07 %")):
        assert f"<dt>test Macro-F1: {name}</dt><dd>{score}" in head
    assert 'class="verdict"' not in page(run, tmp_path, task=task)


def test_verdict_on_runs_that_report_the_maximum(task, tmp_path):
    """By their means b would be ahead. The maximum is not compared if the runs have different numbers of seeds."""
    runs = {"a": [0.5, 0.8], "b": [0.7, 0.7], "c": [0.1, 0.2, 0.9]}
    for name, scores in runs.items():
        file = tlm_run(tmp_path / name, task, {seed: {1} for seed in range(len(scores))}, scores) / "results.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "seed_figure": "max"}))
    a, b, c = (read_run(tmp_path / name) for name in runs)
    ahead = "a is ahead of b in the maximum of test Macro-F1 by 10.00 points: 70.00 for b, 80.00 for a."
    assert verdict((a, b)).startswith(ahead)
    assert verdict((a, c)).startswith("a is ahead of c in test Macro-F1 by 25.00 points")
    source = page(tmp_path / "a", tmp_path, second=tmp_path / "b")
    table = source[source.index("test scores of both runs, in percent, the maximum of the seeds") :]
    table = table[: table.index("</table>")]
    assert [cell for cell in ("80.00", "70.00", "-10.00") if cell in table] == ["80.00", "70.00", "-10.00"]
    assert "in percent, the maximum" not in page(tmp_path / "a", tmp_path, second=tmp_path / "c")


def test_verdict_says_whether_the_lead_may_be_chance(task, tmp_path):
    """The interval resamples rows and averages over seeds; the page and the verdict have it, whichever run is ahead."""
    first = tlm_run(tmp_path / "first", task, {3: {0, 1, 2}, 4: {0}}, [0.5, 0.75])
    second = tlm_run(tmp_path / "second", task, {3: {1, 7}, 4: {0}}, [0.6, 0.7])
    both = tuple(map(read_run, (first, second)))
    predictions = [read_predictions(run, "test")[0] for run in both]
    class_index = {name: at for at, name in enumerate(task.label_names)}
    labels = [class_index[row.gold] for row in predictions[0].by_seed[3]]
    scorers = [
        [
            scorer("macro_f1", labels, [class_index[row.predicted] for row in rows])
            for rows in run_predictions.by_seed.values()
        ]
        for run_predictions in predictions
    ]
    lead = lead_of(*predictions, "macro_f1", np.arange(len(labels)))
    assert lead == paired_bootstrap(scorers[1], scorers[0], len(labels)) and not lead.sure
    assert verdict(both, lead).endswith(f"(17.68). The lead may be due to the choice of these texts ({lead.interval}).")
    assert verdict(both[::-1], lead.reversed).endswith(
        f"The lead may be due to the choice of these texts ({lead.interval})."
    )
    assert verdict(both, Lead(0.03, 0.01, 0.04)).endswith(
        "more than the choice of these texts explains (95% interval 1.00 to 4.00)."
    )
    source = page(first, tmp_path, second=second)
    assert f"The lead may be due to the choice of these texts ({lead.interval})." in source[: source.index("<nav")]
    assert f"Macro-F1: {100 * lead.low:+.2f} to {100 * lead.high:+.2f} points, over 1,000 resamples" in source
    # The rows of the second run in another order.
    lines = [json.loads(line) for line in (second / "seed-3/predictions/test.jsonl").read_text().splitlines()]
    for seed in (3, 4):
        file = second / f"seed-{seed}/predictions/test.jsonl"
        write_lines(file, sorted(map(json.loads, file.read_text().splitlines()), key=lambda line: line["id"], reverse=True))
    assert [line["id"] for line in lines] != sorted((line["id"] for line in lines), reverse=True)
    assert verdict(both, lead) in page(first, tmp_path, second=second)


def test_lead_needs_predictions_of_the_scored_split_and_seeds(task, tmp_path):
    """If test predictions are missing, the interval is that of validation or of fewer seeds than the scores."""
    first = tlm_run(tmp_path / "first", task, {3: {0, 1, 2}, 4: {0}}, [0.5, 0.75])
    second = tlm_run(tmp_path / "second", task, {3: {1, 7}, 4: {0}}, [0.6, 0.7])
    for seed in (3, 4):
        (second / f"seed-{seed}" / "predictions" / "test.jsonl").unlink()
        source = page(first, tmp_path, second=second)
        head = source[: source.index("<nav")]
        assert "ahead of first in test" in head and "choice of these texts" not in head
        assert "1,000 resamples" in source and f"rows of {'test' if seed == 3 else 'validation'};" in source


def test_lead_in_f1_is_left_out_for_a_third_label(tmp_path):
    """F1 needs two classes; a file of a foreign run may have another label."""
    shares = {"no": 0.5, "yes": 0.5}
    lines = [{"id": at, "label": "yes", "prediction": "no", "probabilities": shares} for at in range(4)]

    def predictions(found):
        return Predictions("classification", "test", {0: [_judge_classification(line) for line in found]}, ("no", "yes"))

    two, three = predictions(lines), predictions([{**lines[0], "label": "may be"}, *lines[1:]])
    assert lead_of(two, two, "f1", np.arange(4)) is not None
    assert lead_of(three, three, "f1", np.arange(4)) is None


def test_lead_of_regression_question_answering_and_tagging(tmp_path):
    """Correlations use the numbers of the files, F1 the answers. A metric of tags is not computed from scores of rows,
    so there is no lead.
    """

    def predictions(kind, lines):
        found = {0: [JUDGES[kind](line) for line in lines]}
        return Predictions(kind, "test", found)

    truth, *predicted = np.random.default_rng(0).normal(size=(3, 40))
    rated = [
        predictions(
            "regression",
            [
                {"id": at, "label": label, "prediction": number}
                for at, (label, number) in enumerate(zip(truth, numbers, strict=True))
            ],
        )
        for numbers in predicted
    ]
    expected = paired_bootstrap([scorer("spearman", truth, predicted[1])], [scorer("spearman", truth, predicted[0])], 40)
    assert lead_of(*rated, "spearman", np.arange(40)) == expected
    answers = [["k b"], ["c"], []]
    answered = [
        predictions(
            "question_answering",
            [
                {"id": at, "label": gold, "prediction": text}
                for at, (gold, text) in enumerate(zip(answers, texts, strict=True))
            ],
        )
        for texts in (["k", "c", ""], ["x", "c", "y"])
    ]
    assert lead_of(*answered, "squad_f1", np.arange(3)).difference == pytest.approx(1 / 3 - (2 / 3 + 1 + 1) / 3)
    # A metric of another kind of task, and values that are not finite, which a foreign file may have.
    assert lead_of(*rated, "accuracy", np.arange(40)) is None
    for damaged in ("nan", "inf"):
        strange = predictions("regression", [{"id": at, "label": at, "prediction": damaged} for at in range(40)])
        assert lead_of(rated[0], strange, "pearson", np.arange(40)) is None
    tagged = predictions("tagging", [{"id": 0, "label": ["O"], "prediction": ["O"]}])
    assert lead_of(tagged, tagged, "span_f1", np.arange(1)) is None


def test_run_is_compared_with_a_baseline(run, task, tmp_path):
    """The folders of `hf-tlm baseline` are compared with every seed, and have pages of their own."""
    baselines = dict(zip(("majority", "linear"), make_baselines(task), strict=True))
    for name, baseline in baselines.items():
        baseline.save(tmp_path / name, task)
    source = page(run, tmp_path, task=task, second=tmp_path / "linear")
    score = 100 * baselines["linear"].scores["test"]["macro_f1"]
    head = source[: source.index("<nav")]
    assert f"{score:.2f} for linear, 62.50 for run" in head and "choice of these texts" in head
    assert f"<dt>test Macro-F1: linear</dt><dd>{score:.2f} %" in head
    table = source[source.index("Rows that both models, one, or neither predict correctly") :]
    table = table[: table.index("</table>")]
    assert [f'<th scope="row" dir="auto">{seed}</th>' in table for seed in (3, 4)] == [True, True]
    assert "num_train_epochs" not in source[source.index("Settings that differ") : source.index("test scores of both")]
    other = page(tmp_path / "linear", tmp_path, second=run)
    table = other[other.index("Rows that both models, one, or neither predict correctly") :]
    rows = [f'<th scope="row" dir="auto">{seed}</th>' in table[: table.index("</table>")] for seed in (3, 4)]
    assert rows == [True, True]
    # Baselines are not random: there is no difference between seeds to mention.
    both = page(tmp_path / "majority", tmp_path, second=tmp_path / "linear")
    assert "choice of these texts" in both[: both.index("<nav")] and "one seed" not in both[: both.index("<nav")]
    single = tlm_run(tmp_path / "single", task, {3: {1}}, [0.6])
    assert "It has one seed, so the variation" in page(single, tmp_path, second=tmp_path / "linear")
    (tmp_path / "all").mkdir()
    shutil.copytree(tmp_path / "linear", tmp_path / "all" / "linear")
    assert f"{score:.2f} for all, 62.50 for run" in page(run, tmp_path, task=task, second=tmp_path / "all")
    for name, baseline in baselines.items():
        alone = page(tmp_path / name, tmp_path, task=task)
        assert "Baseline without a neural network" in alone and f"{100 * baseline.scores['test']['macro_f1']:.2f}" in alone
        assert all(f">{setting}</th>" in alone for setting in baseline.settings)
    file = tmp_path / "linear" / "results.json"
    record = json.loads(file.read_text())
    # The page only uses the scores of splits, whatever else a foreign file has.
    file.write_text(json.dumps(record | {"scores": record["scores"] | {"seed": "x", "history": [3]}}))
    assert f"{score:.2f} for linear, 62.50 for run" in page(run, tmp_path, second=tmp_path / "linear")
    for scores in ({"test": 3}, {"test": {"macro_f1": "much"}}):
        file.write_text(json.dumps(record | {"scores": scores}))
        with pytest.raises(AnalysisError, match="The file is damaged"):
            read_run(tmp_path / "linear")


def test_verdict_on_single_seeds_and_on_runs_of_the_same_name(task, tmp_path):
    a, b = (read_run(tlm_run(tmp_path / name / "run", task, {3: {1}}, [score])) for name, score in (("a", 0.6), ("b", 0.7)))
    unknown = "Both have one seed, so the variation between seeds is not known."
    assert (
        verdict((a, b))
        == f"b/run is ahead of a/run in test Macro-F1 by 10.00 points: 70.00 for b/run, 60.00 for a/run. {unknown}"
    )
    assert "are equal" in verdict((a, read_run(tlm_run(tmp_path / "c", task, {3: {1}}, [0.6]))))


def test_differences_are_shown_for_the_seed_with_the_most(run, task, tmp_path):
    """Row 9 is wrong only in seed 4 of the second run."""
    second = tlm_run(tmp_path / "second", task, {3: {0, 1, 2, 5}, 4: {0, 9}}, [0.6, 0.7])
    source = page(run, tmp_path, second=second)
    start = source.index("Rows where second is worse than run: predictions of the seed with the largest difference")
    rows = source[start : source.index("</table>", start)]
    assert rows.count("<tr>") == 2 and rows.index(">test-9<") < rows.index(">4<")


def test_chart_needs_three_points():
    points = [{"step": step, "loss": 1.0, "eval_f1": 0.5} for step in (1, 2, 3)]
    assert _validation_chart("t", "l", {"a": points[:2]}, "eval_f1") is None and _loss_chart("t", points[:2]) is None
    assert _validation_chart("t", "l", {"a": points}, "eval_f1") is not None and _loss_chart("t", points) is not None


def test_page_of_a_subset_has_its_content_and_its_command(task, corpus_rows, tmp_path):
    corpus = load_corpus(Dataset.from_list(corpus_rows), max_words=5)
    subset = retrieve(task, corpus, top_k=5, settings=Bm25Settings(k1=0.9, stopwords=None), decontaminate=False)
    subset.save(tmp_path / "subset")
    source = page(tmp_path / "subset", tmp_path, task=task)
    command = (
        "hf-tlm retrieve --task toy --corpus in-memory --passage_words 5 --k1 0.9 --top_k 5 --keep_stopwords true "
        "--decontaminate false"
    )
    assert command in source and "Size against K" in source and "share of the corpus /%" in source
    classes = (TaskArguments, PassageArguments, RetrievalArguments)
    _, of_corpus, of_retrieval = parse(*classes, recipe="retrieve", description="", args=shlex.split(command)[2:])
    assert (of_corpus.passage_words, of_retrieval.k1, of_retrieval.decontaminate) == (5, 0.9, False)
    random = retrieve(task, corpus, retriever="random", num_passages=4, seed=3)
    expected = "hf-tlm retrieve --task toy --retriever random --corpus in-memory --passage_words 5 --num_passages 4 --seed 3"
    assert subset_command(random.manifest) == expected
    whole = retrieve(task, load_corpus(Dataset.from_list(corpus_rows)), retriever="random", num_passages=4, seed=3)
    assert subset_command(whole.manifest) == expected.replace("words 5", "words 0"), "the default is passages"
    chosen = subset_command(select(task, subset, method="dsir", fraction=0.5).manifest)
    assert chosen == f"{command}\nhf-tlm select-influence --task toy --subset SUBSET --method dsir --fraction 0.5"


def test_texts_shared_with_training_are_shown(run, tmp_path):
    assert "Texts also in the training split" not in page(run, tmp_path)
    record = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(record | {"texts_also_in_train": {"validation": 0, "test": 1234}}))
    source = page(run, tmp_path)
    assert "Texts also in the training split" in source and "test 1,234" in source and "validation 0" not in source


def test_sampled_splits_are_shown(run, tmp_path):
    record = json.loads((run / "results.json").read_text())
    for found, said in (({"examples": 1000, "of": 26006}, True), ({"examples": "<b>", "of": None}, False)):
        (run / "results.json").write_text(json.dumps(record | {"train_sampled": found}))
        assert ("1,000 of 26,006, stratified by class" in page(run, tmp_path)) is said
    chosen = {"validation_sampled": {"examples": 100, "of": 3343}}
    (run / "results.json").write_text(json.dumps(record | chosen))
    source = page(run, tmp_path)
    assert "Validation examples" in source and "100 of 3,343, stratified by class" in source


def test_dropped_and_repeated_rows_are_shown(run, tmp_path):
    """The page reads them from the run's record."""
    rows = {"text": ["gene", "gene", None, "cell"], "label": ["a", "a", "b", "b"]}
    other = {"text": ["drug", " "], "label": ["a", "b"]}
    splits = {"train": Dataset.from_dict(rows), "validation": Dataset.from_dict(other), "test": Dataset.from_dict(rows)}
    about = task_from_datasets(TaskSpec(name="toy", path="memory"), splits, drop_bad_rows=True).about_splits()
    record = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(record | about | {"dropped": {**about["dropped"], "made": "up"}}))
    source = page(run, tmp_path)
    assert "Texts repeated within the split" in source and "train 1, test 1" in source and "made up" not in source
    left_out = ", ".join(f"{split} {why} 1" for split, whys in about["dropped"].items() for why in whys)
    assert "Rows left out" in source and left_out.count(" 1") == 3 and left_out in source


def test_share_of_rare_words_is_shown(tmp_path):
    rows = {"train": [("The gene gene binds", "a"), ("the gene binds", "b"), ("the cell", "a")]}
    rows["validation"] = rows["test"] = [("The gene meets", "a"), ("cell THE the gene binds", "b")]
    task = text_task(rows)
    run, options = tlm_run(tmp_path / "run", task, {3: {1}}, [0.5]), ReportPageArguments(rare_below=2)
    source = page(run, tmp_path, task=task, options=options)
    facts = source[source.index("Kind of run") : source.index("</dl>", source.index("Kind of run"))]
    # Of the eight words of a test split, "cell" is in one training text and "meets" in none.
    assert "Words in fewer than 2 training texts" in facts and "test 25.0% (in none: 12.5%)" in facts
    assert "Words in fewer" not in page(run, tmp_path)  # The page has no task.


def test_command_of_a_selection_has_every_option_of_the_manifest(task, corpus_rows, tokenizer):
    subset = retrieve(task, load_corpus(Dataset.from_list(corpus_rows)), top_k=5)
    scorer = InfluenceScorer(
        [tiny("bert")], tokenizer, layer=1, mlm_probability=0.2, seed=3, projection_dim=4, mask_task_texts=True
    )
    options = {"task_split": "train", "group_loss": "tokens", "corpus_batch_size": 2, "task_batch_size": 8, "max_length": 16}
    manifest = select(task, subset, num_passages=3, scorer=scorer, score_model=["me/a", "me/b"], **options).manifest
    command = subset_command(manifest).splitlines()[-1]
    _, selection = parse(TaskArguments, SelectionArguments, recipe="s", description="", args=shlex.split(command)[2:])
    assert (selection.layer, selection.projection_dim, selection.selection_seed) == (1, 4, 3) and selection.mask_task_texts
    assert (selection.task_split, selection.group_loss, selection.score_model) == ("train", "tokens", ["me/a", "me/b"])
    assert (selection.corpus_batch_size, selection.task_batch_size, selection.num_passages) == (2, 8, 3)
    assert (selection.score_mlm_probability, selection.score_max_length) == (0.2, 16)
    assert selection.scorer([tiny("bert")], tokenizer).fingerprint == manifest["selection"]["scorer_fingerprint"]
    manifest["selection"]["score_model"] = {"model": "bert", "rho2": 7.5, "learning_rate": 1e-5, "seed": 9}
    command = subset_command(manifest).splitlines()[-1]
    assert command.endswith("--rho2 7.5 --learning_rate 1e-05 --seed 9") and "--score_model" not in command
    manifest["selection"]["score_model"] = {"model": "bert", "mlm_probability_end": 0.05, "whole_word_mask": True}
    assert subset_command(manifest).endswith("--mlm_probability_end 0.05 --whole_word_mask true")


def test_wide_tables_have_a_scroll_shadow(run, tmp_path):
    """A fixed shadow is covered by a background that scrolls with the content."""
    source = page(run, tmp_path)
    rule = source[source.index(".scroll {") :].partition("}")[0]
    assert rule.count("no-repeat local") == rule.count("no-repeat scroll") == 2 and "overflow: auto" in rule
