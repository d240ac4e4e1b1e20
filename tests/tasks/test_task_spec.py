import pytest
from datasets import Dataset

from hf_tlm.errors import HfTlmError
from hf_tlm.tasks import KINDS, METRICS, TASKS, TaskError, TaskSpec, task_from_datasets


def build(train, validation, **spec):
    splits = {"train": Dataset.from_list(train), "validation": Dataset.from_list(validation)}
    return task_from_datasets(TaskSpec(name="t", path="memory", **spec), splits)


ROWS = [{"text": "a b", "label": "x"}, {"text": "c d", "label": "y"}]


def test_unknown_metric_is_refused_with_the_known_ones():
    with pytest.raises(TaskError, match="macro_f1, micro_f1, accuracy, f1, matthews; received 'pearson'"):
        TaskSpec(name="t", path="memory", metric="pearson")
    with pytest.raises(TaskError, match="of a tagging task must be one of tag_accuracy, span_f1; received 'accuracy'"):
        TaskSpec(name="t", path="memory", kind="tagging", further_metrics=("accuracy",))


def test_every_kind_has_a_default_metric():
    usual = {kind: TaskSpec(name="t", path="memory", kind=kind) for kind in KINDS}
    assert {kind: (spec.metric, spec.further_metrics) for kind, spec in usual.items()} == {
        "classification": ("macro_f1", ()),
        "regression": ("pearson", ("spearman",)),
        "question_answering": ("squad_f1", ()),
        "multiple_choice": ("accuracy", ()),
        "tagging": ("tag_accuracy", ()),
    }


def test_unknown_kind_or_role_is_refused():
    with pytest.raises(TaskError, match="classification, regression, .*received 'parsing'"):
        TaskSpec(name="t", path="memory", kind="parsing")
    with pytest.raises(TaskError, match="are context, question, answers, starts; received title"):
        TaskSpec(name="t", path="memory", kind="question_answering", columns={"title": "t"})
    with pytest.raises(TaskError, match="options of their own"):
        TaskSpec(name="t", path="memory", columns={"text": "t"})


@pytest.mark.parametrize("columns", [(), ("a", "b", "c")])
def test_number_of_text_columns_is_one_or_two(columns):
    with pytest.raises(TaskError, match="one or two text columns"):
        TaskSpec(name="t", path="memory", text_columns=columns)


def test_task_error_is_an_error_of_the_package():
    assert issubclass(TaskError, HfTlmError)


def test_properties_of_a_task(task):
    assert (task.name, task.metric, task.num_labels) == ("toy", "macro_f1", 3)
    assert task.label2id == {name: index for index, name in task.id2label.items()}
    assert [len(task.train), len(task.validation), len(task.test)] == [48, 24, 24]
    assert task.train.column_names == ["id", "text", "label"]


def test_missing_test_split_is_none():
    assert build(ROWS, ROWS).test is None


def test_fingerprint_depends_on_data_and_labels():
    first, again = build(ROWS, ROWS), build(list(ROWS), list(ROWS), metric="micro_f1")
    assert first.fingerprint == again.fingerprint
    assert len(first.fingerprint) == 16
    text = [{"text": "a B", "label": "x"}, ROWS[1]]
    label = [{"text": "a b", "label": "y"}, {"text": "c d", "label": "x"}]
    name = [{"text": "a b", "label": "x"}, {"text": "c d", "label": "z"}]
    others = {build(text, ROWS).fingerprint, build(label, ROWS).fingerprint, build(name, name).fingerprint}
    others.add(build(ROWS, ROWS[:1]).fingerprint)
    assert len(others | {first.fingerprint}) == 5


def test_fingerprint_is_the_same_on_every_machine():
    """A golden value: the fingerprint is written into manifests, which are copied between machines."""
    assert build(ROWS, ROWS).fingerprint == "25d0790ad8663beb"


RELEASED = {name: spec for name, spec in TASKS.items() if spec.path.startswith("yxchar/")}


def test_registered_tasks_have_the_papers_sizes_and_metrics():
    """Gururangan et al. 2020, Table 2; micro-F1 for the two biomedical tasks (TLM, section 4.1)."""
    assert {name for name, spec in RELEASED.items() if spec.metric == "micro_f1"} == {"chemprot", "rct"}
    assert {name: spec.split_sizes for name, spec in RELEASED.items()} == {
        "chemprot": (4169, 2427, 3469),
        "rct": (180040, 30212, 30135),
        "acl_arc": (1688, 114, 139),
        "scierc": (3219, 455, 974),
        "hyperpartisan": (515, 65, 65),
        "agnews": (115000, 5000, 7600),
        "helpfulness": (115251, 5000, 25000),
        "imdb": (20000, 5000, 25000),
    }
    assert {name: len(spec.classes) for name, spec in RELEASED.items()} == {
        "chemprot": 13,
        "rct": 5,
        "acl_arc": 6,
        "scierc": 7,
        "hyperpartisan": 2,
        "agnews": 4,
        "helpfulness": 2,
        "imdb": 2,
    }


@pytest.mark.parametrize("name", RELEASED)
def test_registered_specs_are_consistent(name):
    spec = RELEASED[name]
    assert spec.name == name
    assert spec.metric in METRICS
    assert list(spec.classes) == sorted(spec.classes)
    assert spec.data_files == {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"}


def test_registered_tasks_have_the_released_hub_paths():
    assert {spec.path for spec in RELEASED.values()} == {
        f"yxchar/{name}-tlm" for name in ("ag", "hyp", "amazon", "imdb", "citation_intent", "sciie", "chemprot", "rct-20k")
    }


def test_check_kind_refuses_other_kinds(task):
    task.check_kind("TLM", "classification")
    with pytest.raises(
        TaskError, match="TLM supports regression and tagging tasks; toy is a classification task.*hf-tlm finetune"
    ):
        task.check_kind("TLM", "regression", "tagging")


def test_repr_is_one_line(task):
    sizes = ", ".join(f"{len(rows)} {split}" for split, rows in task.splits.items())
    names = ", ".join(task.label_names)
    assert repr(task) == f"Task('toy', classification: {sizes}; {task.num_labels} labels: {names}; {task.metric})"
