"""Generated values of options, rows, files and settings are used, or refused with an error of the package.

The tables of the other modules check the messages; here nobody chose the input. Cases are the same in every run;
`HYPOTHESIS_PROFILE=long` draws more, and others each time.
"""

import contextlib
import io
import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attacks.bad_input.recipe_classes import CLASSES
from hf_tlm import config as parser
from hf_tlm.config import parse, typed_values
from hf_tlm.corpora import load_corpus
from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval import Subset
from hf_tlm.tasks import load_task
from hf_tlm.utils.options import RANGES

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
CHECKS = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": not LONG, "database": None}


def examples(number):
    return settings(max_examples=10 * number if LONG else number, **CHECKS)


TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", " ", "nan", "-inf", "1e999", "0x10", "1_000", "٣", "null", "[]", "{}", "{", "~", "~root", "a=b", "-"]
    ),
    st.integers().map(str),
    st.floats().map(str),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
NAMES = {
    cls: sorted(parser._actions(made, [cls]))
    for cls in {cls for found in CLASSES.values() for cls in found}
    for made in [parser._hf_argument_parser()(cls)]
}


def assert_plain_message(error):
    message = str(error)
    assert message.strip() and "Traceback" not in message and len(message) < 2000, message


@pytest.mark.slow
@pytest.mark.parametrize("cls", sorted(NAMES, key=str), ids=lambda cls: cls.__name__)
@examples(150)
@given(data=st.data())
def test_any_value_in_a_config_is_converted_or_refused(cls, data):
    name, value = data.draw(st.sampled_from(NAMES[cls])), data.draw(JSON)
    try:
        (typed,) = typed_values(cls, {name: [value]}, "the values")[name]
    except HfTlmError as error:
        assert_plain_message(error)
        assert name in str(error) and "\n" not in str(error)
        return
    for number in typed if isinstance(typed, list) else [typed]:
        if name in RANGES and number is not None and not isinstance(number, str):
            assert RANGES[name].holds(number), (name, value)


@pytest.mark.parametrize("recipe", sorted(CLASSES))
@examples(25)
@given(data=st.data())
def test_any_command_line_is_parsed_or_refused(recipe, data):
    names = sorted({name for cls in CLASSES[recipe] for name in NAMES[cls]} - {"config"})
    line = []
    for _ in range(data.draw(st.integers(1, 3))):
        line += ["--" + data.draw(st.sampled_from(names)), *data.draw(st.lists(TEXTS, max_size=2))]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parse(*CLASSES[recipe], recipe=recipe, description="", args=line)
    except HfTlmError as error:
        assert_plain_message(error)
    except SystemExit as end:
        assert end.code == 2 and errors.getvalue().startswith("Error: "), errors.getvalue()
        assert_plain_message(errors.getvalue())


WORDS = st.sampled_from(["the gene", "a cell", "\u00e9t\u00e9", "\u200b", "..."])
ODD_ROWS = st.dictionaries(st.sampled_from(["text", "label", "id", "text_pair"]), JSON, max_size=4)
LIKELY_ROWS = st.fixed_dictionaries(
    {"text": WORDS | TEXTS, "label": st.sampled_from(["a", "b"]) | SCALARS}, optional={"id": st.integers(0, 3) | TEXTS}
)
ROWS = st.lists(ODD_ROWS, max_size=6) | st.lists(LIKELY_ROWS, min_size=1, max_size=6)


@pytest.mark.slow
@examples(60)
@given(train=ROWS, validation=ROWS)
def test_any_rows_are_read_as_a_task_or_refused(tmp_path_factory, train, validation):
    folder = tmp_path_factory.mktemp("task")
    for name, rows in (("train", train), ("validation", validation)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        task = load_task(str(folder))
    except HfTlmError as error:
        assert_plain_message(error)
    else:
        assert all(isinstance(text, str) and text.strip() for text in task.train["text"])
        assert len(task.train) == len(train) and len(task.validation) == len(validation)


BYTES = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(max_size=30).map(lambda text: text.encode("utf-16", "surrogatepass")),
    ROWS.map(lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
)
ENDINGS = [".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet", ".jsonl.gz", ".txt.zst", ".csv.bz2", ".txt.xz"]


@pytest.mark.parametrize("ending", ENDINGS)
@examples(20)
@given(content=BYTES)
def test_any_bytes_are_read_as_a_corpus_or_refused(tmp_path_factory, ending, content):
    file = tmp_path_factory.mktemp("corpus") / f"corpus{ending}"
    file.write_bytes(content)
    try:
        rows = load_corpus(str(file)).to_dataset()
    except HfTlmError as error:
        assert_plain_message(error)
    else:
        assert len(rows) and all(isinstance(text, str) and text.strip() for text in rows["text"])


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
@examples(20)
@given(content=BYTES)
def test_any_bytes_are_read_as_a_task_or_refused(tmp_path_factory, ending, content):
    folder = tmp_path_factory.mktemp("task")
    (folder / f"train{ending}").write_bytes(content)
    (folder / "validation.jsonl").write_text('{"text": "the gene", "label": "a"}\n')
    with contextlib.suppress(HfTlmError):
        task = load_task(str(folder))
        assert all(isinstance(text, str) and text.strip() for text in task.train["text"])


@examples(60)
@given(data=st.data())
def test_any_manifest_is_read_as_a_subset_or_refused(made_toys, tmp_path_factory, data):
    """Some values of a valid manifest are replaced."""
    folder = tmp_path_factory.mktemp("subset")
    manifest = json.loads((made_toys.subset / "manifest.json").read_text())
    for name in data.draw(st.lists(st.sampled_from(sorted(manifest)), min_size=1, max_size=3)):
        manifest[name] = data.draw(JSON)
    shutil.copytree(made_toys.subset, folder, dirs_exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    try:
        subset = Subset.load(folder)
        subset.save(folder / "again")
    except HfTlmError as error:
        assert_plain_message(error)
    else:
        assert len(subset) == len(Subset.load(made_toys.subset))
