"""Settings of stage 2 that depend on the task's texts."""

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.models.loading import read_config
from hf_tlm.tasks import TaskSpec, task_from_datasets
from hf_tlm.training import ArgumentsError, ModelArguments, TlmArguments, prepare
from hf_tlm.training.stages import check_stage_2, with_task_defaults
from hf_tlm.training.teacher import Teacher
from support.toys import TINY_CONFIGS

QUIET = {"report_to": "none", "use_cpu": True, "stage2_total_batch_size": 8}


def with_defaults_for(tmp_path, tokenizer, words, positions=None, **changes):
    """Return the arguments for training texts with these numbers of words; special tokens add two."""
    rows = Dataset.from_list([{"text": " ".join(["the"] * count), "label": 0} for count in words])
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, **changes)
    found = with_task_defaults(args, rows, tokenizer, positions, num_texts=len(rows))
    assert args.stage2_max_length == changes.get("stage2_max_length"), "the given arguments are left alone"
    return found


def test_length_is_chosen_from_the_texts(tmp_path, tokenizer):
    # 99 of 100 texts have at most 42 tokens; the longest are truncated.
    lengths = [10] * 300 + [40] * 97 + [200] * 3
    assert with_defaults_for(tmp_path, tokenizer, lengths, stage2_max_length=0).stage2_max_length == 64
    assert with_defaults_for(tmp_path, tokenizer, [30] * 10, stage2_max_length=0).stage2_max_length == 32
    assert with_defaults_for(tmp_path, tokenizer, [31] * 10, stage2_max_length=0).stage2_max_length == 64
    assert with_defaults_for(tmp_path, tokenizer, lengths, positions=40, stage2_max_length=0).stage2_max_length == 40
    assert with_defaults_for(tmp_path, tokenizer, [2000] * 10, stage2_max_length=0).stage2_max_length == 512


def test_given_length_is_kept(tmp_path, tokenizer):
    for given in (None, 70):
        found = with_defaults_for(tmp_path, tokenizer, [10] * 10, stage2_max_length=given)
        assert found.stage2_max_length == given
    length = {stage: found.for_stage(stage, tmp_path, 0, "macro_f1").max_length for stage in (1, 2)}
    assert length == {1: 128, 2: 70}


@pytest.mark.parametrize("epochs,texts,steps", [(2, 80, 30), (4, 80, -1), (3, 79, -1), (2.9, 80, 30)])
def test_minimum_number_of_steps(tmp_path, tokenizer, epochs, texts, steps):
    """An epoch of 80 texts, or of 79, is ten steps of 8."""
    changes = {"stage2_num_train_epochs": epochs, "stage2_min_steps": 30}
    assert with_defaults_for(tmp_path, tokenizer, [5] * texts, **changes).stage2_max_steps == steps


@pytest.mark.parametrize("passages, steps", [(True, -1), (False, 30)])
def test_minimum_number_of_steps_is_not_a_maximum_with_a_teacher(tmp_path, task, passages, steps):
    """An epoch is the task's 48 texts, six steps of 8, or these three times and 100 passages, 31 steps."""
    answers = np.full((100, 3), 1 / 3, np.float32)
    teacher = Teacher(answers[:48], np.arange(100), np.full(100, 1000), answers, {})
    options = {"teacher": ["linear"], "stage2_teacher_passages": passages, "teacher_share": 0.5}
    args = TlmArguments(
        output_dir=str(tmp_path), **QUIET, **options, rho1=1, max_length=16, stage2_num_train_epochs=1, stage2_min_steps=30
    )
    setup = prepare(task, Dataset.from_list([{"text": "a passage"}] * 100), args, ModelArguments(**MODEL), teacher)
    assert setup.args.stage2_max_steps == steps
    assert len(setup.data[2].train) == teacher.count_texts(48, 0.5, with_passages=passages) == (244 if passages else 48)


@pytest.mark.parametrize(
    "values,message",
    [
        (
            {"stage2_min_steps": 5, "stage2_max_steps": 10},
            "stage 2 whose length is set in epochs .* received 5 with stage2_max_steps 10",
        ),
        ({"stage2_max_steps": 0}, "stage2_max_steps: expected a whole number from 1 .* or -1; received 0"),
        ({"stage2_min_steps": -1}, "stage2_min_steps: expected a whole number from 0"),
        ({"stage2_max_length": 2}, "stage2_max_length: expected"),
        ({"stage2_dropout": 1.0}, r"stage2_dropout: expected"),
    ],
)
def test_invalid_values_are_refused(tmp_path, values, message):
    with pytest.raises(ArgumentsError, match=message):
        TlmArguments(output_dir=str(tmp_path), **QUIET, **values)


MODEL = {"model_config": {"model_type": "modernbert", **TINY_CONFIGS["modernbert"]}, "vocab_size": 100}


@pytest.mark.parametrize(
    "values,lengths",
    [
        # Options that would be wrong or costly, but belong to a stage that is not run.
        ({"stage": "2", "total_batch_size": 48, "per_device_train_batch_size": 32, "max_length": 32}, {2: 32}),
        ({"stage": "1", "stage2_max_length": 500, "max_length": 32}, {1: 32}),
        ({"stage": "1", "stage2_max_length": 0, "max_length": 32}, {1: 32}),
        ({"stage": "both", "stage2_max_length": 16, "max_length": 32}, {1: 32, 2: 16}),
    ],
)
@pytest.mark.parametrize("embedding_init", ["random", "spectral"])
def test_only_stages_that_run_are_prepared(tmp_path, task, values, lengths, embedding_init):
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, rho1=0, **values)
    body = {**MODEL["model_config"], "max_position_embeddings": 64}
    model_args = ModelArguments(model_config=body, vocab_size=100, embedding_init=embedding_init)
    setup = prepare(task, None, args, model_args)
    assert set(setup.data) == set(lengths)
    for stage, data in setup.data.items():
        assert max(map(len, data.train["input_ids"])) <= lengths[stage]
    assert setup.tokenizer.model_max_length == list(lengths.values())[-1]
    setup.make_model()


def test_rdrop_without_dropout_is_refused_before_stage_1(tmp_path, task):
    def prepared(**values):
        args = TlmArguments(output_dir=str(tmp_path), **QUIET, rho1=0, max_length=32, **values)
        return prepare(task, None, args, ModelArguments(**MODEL))

    with pytest.raises(ArgumentsError, match="stage2_rdrop 1.0 has no effect on a model without dropout"):
        prepared(stage2_rdrop=1.0)
    prepared(stage2_rdrop=1.0, stage2_dropout=0.1)
    prepared(stage2_rdrop=1.0, stage="1")
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, stage2_rdrop=1.0, stage2_dropout=0.0)
    config = read_config(MODEL["model_config"])
    check_stage_2(args, config, ModelArguments(use_peft=True, lora_dropout=0.1))
    with pytest.raises(ArgumentsError, match="no effect on a model without dropout"):
        check_stage_2(args, config, ModelArguments(use_peft=True, lora_dropout=0.0))


@pytest.mark.parametrize("values, told", [({}, True), ({"corpus_max_length": 64}, False), ({"stage": "2"}, False)])
def test_truncated_passages_are_warned_about(tmp_path, task, caplog, values, told):
    corpus = Dataset.from_list([{"text": "a passage of some words " * 6}] * 8)
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, **{"rho1": 1, "max_length": 16, **values})
    body = {**MODEL["model_config"], "max_position_embeddings": 64}
    prepare(task, corpus, args, ModelArguments(model_config=body, vocab_size=100))
    assert (
        "of the tokens of the subset's passages are cut off, as each text is truncated to 16 tokens" in caplog.text
    ) == told
    assert not told or "--passage_words" in caplog.text


@pytest.mark.parametrize(
    "values, told", [({}, True), ({"stage2_max_length": 64}, False), ({"stage": "1", "stage2_max_length": 64}, True)]
)
def test_truncated_task_texts_are_warned_about(tmp_path, caplog, values, told):
    """With the longest max_length of the stages that run."""
    rows = [{"text": f"{label} text of some words " * 6, "label": label} for label in "ab" * 4]
    splits = {split: Dataset.from_list(rows) for split in ("train", "validation")}
    task = task_from_datasets(TaskSpec(name="long", path="memory"), splits)
    args = TlmArguments(output_dir=str(tmp_path), **QUIET, **{"rho1": 0, "max_length": 16, **values})
    body = {**MODEL["model_config"], "max_position_embeddings": 64}
    prepare(task, None, args, ModelArguments(model_config=body, vocab_size=100))
    assert (
        "of the tokens of the task's training texts are cut off, as each text is truncated to 16 tokens" in caplog.text
    ) == told
    assert not told or ("--stage2_max_length" in caplog.text) == (args.stage == "both")
