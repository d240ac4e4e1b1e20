import math
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from hf_tlm.runs import FinetuneArguments
from hf_tlm.training import (
    ArgumentsError,
    ModelArguments,
    PretrainArguments,
    ScoreModelArguments,
    TlmArguments,
    base_arguments,
    check_model,
    check_tlm,
)
from hf_tlm.training.prepare import tell_of_long_evaluations, tell_of_no_saving, tell_of_other_stage
from hf_tlm.training.run_arguments import other_stage_options
from hf_tlm.training.run_folder import local_files, settings

BASE = {"output_dir": "unused", "use_cpu": True, "report_to": "none"}
PUSHING = {"push_to_hub": True, "hub_model_id": "alice/toy", "hub_strategy": "checkpoint"}


def test_folder_that_cannot_be_written_is_refused_before_data_are_read(tmp_path):
    (tmp_path / "file").write_text("a thesis")
    with pytest.raises(ArgumentsError, match=f"--output_dir {tmp_path}/file/run: {tmp_path}/file is not a writable folder"):
        TlmArguments(**BASE | {"output_dir": str(tmp_path / "file/run")})


def test_folder_of_a_finished_run_may_be_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ArgumentsError, match="is not a writable folder"):
        TlmArguments(**BASE | {"output_dir": str(tmp_path)})
    (tmp_path / "results.json").write_text("{}")
    assert TlmArguments(**BASE | {"output_dir": str(tmp_path)}).folder == tmp_path


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"rho1": -1}, "rho1(: expected| must be)"),
        ({"rho1": 1.5}, "rho1(: expected| must be)"),
        ({"rho1": math.nan}, "rho1(: expected| must be)"),
        ({"rho2": -1}, "rho2: expected"),
        ({"rho2": math.inf}, "rho2: expected"),
        ({"mlm_probability": 0.0}, "mlm_probability"),
        ({"mlm_probability": 1.0}, "mlm_probability"),
        ({"mlm_probability_end": 0.0}, "mlm_probability_end"),
        (
            {"whole_word_mask": True, "objective": "span"},
            "whole_word_mask True has no effect with objective span: it is for",
        ),
        ({"max_length": 2}, "max_length: expected"),
        ({"corpus_max_length": 1}, "corpus_max_length: expected"),
        ({"seeds": [1, 2, 1]}, "contains a seed twice"),
        ({"push_to_hub": True}, "push_to_hub needs --hub_model_id owner/name"),
        ({"hub_model_id": "me/model"}, "hub_model_id has no effect without push_to_hub"),
        ({"hub_model_id": "me/a", "hub_revision": "b"}, "hub_model_id and hub_revision have no effect"),
        ({"hub_strategy": "every_save"}, "hub_strategy must be end or checkpoint, .*; received every_save and False"),
        ({"hub_private_repo": True}, "hub_private_repo has no effect without push_to_hub"),
        ({"hub_strategy": "checkpoint"}, "hub_strategy has no effect without push_to_hub"),
        ({"hub_always_push": True}, "received end and True"),
        ({"resume_from_checkpoint": "somewhere"}, "resumes by itself"),
        ({"enable_jit_checkpoint": True}, "saves a checkpoint at SIGTERM by itself"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size is not supported: batches are drawn before the first step"),
        ({"restore_callback_states_from_checkpoint": True}, "restore_callback_states_from_checkpoint is not supported"),
        ({"batch_eval_metrics": True}, "batch_eval_metrics is not supported"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last is not supported"),
        ({"prediction_loss_only": True}, "prediction_loss_only is not supported"),
        ({"num_train_epochs": 7}, "num_train_epochs 7 has no effect: max_steps ends the run"),
        ({"num_train_epochs": 7, "max_steps": -1, "max_flops": 1e9}, "num_train_epochs 7 .*: the budget ends the run"),
        ({"stage2_eval_steps": 0}, "stage2_eval_steps: expected"),
        ({"loss_normalization": "none"}, "loss_normalization: expected one of mean, sum; received 'none'"),
        ({"stage2_lr_scheduler_type": "sometimes"}, "stage2_lr_scheduler_type sometimes .*cannot be created: .*sometimes"),
        ({"optim": "Muon"}, "optim: unknown optimizer 'Muon'. Did you mean muon"),
        ({"optim": "none such"}, "optim: unknown optimizer 'none such'. Choose lamb, muon, adamw_torch"),
        ({"ddp_backend": "bogus"}, "ddp_backend: expected one of nccl, .*; received 'bogus'"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
        ({"rtd_weight": 7.0}, "rtd_weight 7.0 has no effect with objective mlm: it is for electra, ale, cocolm"),
        ({"crop_fraction": 0.5, "objective": "electra"}, "crop_fraction 0.5 has no effect .*: it is for cocolm"),
        ({"scl": False, "objective": "ale"}, "scl False has no effect"),
        ({"objective": "cocolm", "rtd_weight": 0.0}, "rtd_weight 0 leaves the copy head of clm full untrained"),
    ],
)
def test_invalid_arguments_are_refused(changes, message):
    with pytest.raises(ArgumentsError, match=message):
        TlmArguments(**BASE, **changes)


@pytest.mark.parametrize("name", ["bf16", "bf16_full_eval"])
def test_bfloat16_needs_hardware_or_use_cpu(name, monkeypatch):
    for check in ("is_torch_bf16_gpu_available", "is_torch_xla_available"):
        monkeypatch.setattr(base_arguments, check, lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    with pytest.raises(ArgumentsError, match=f"{name} needs a GPU .*--{name} false.*--use_cpu true"):
        TlmArguments(**{**BASE, "use_cpu": False}, **{name: True})
    assert getattr(TlmArguments(**{**BASE, "use_cpu": True}, **{name: True}), name)


@pytest.mark.parametrize("has", ["avx512_bf16", "amx_bf16"])
def test_bfloat16_on_a_processor_that_supports_it(has, monkeypatch):
    monkeypatch.setattr(base_arguments, "is_torch_bf16_gpu_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {has: True})
    args = TlmArguments(**{**BASE, "use_cpu": False}, bf16=True)
    assert args.use_cpu and args.bf16 and args.device.type == "cpu"
    # A GPU without bfloat16 is not silently ignored.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(ArgumentsError, match="bf16 needs a GPU"):
        TlmArguments(**{**BASE, "use_cpu": False}, bf16=True)


def test_total_batch_size_sets_gradient_accumulation():
    args = TlmArguments(**BASE, total_batch_size=96, per_device_train_batch_size=32, stage2_total_batch_size=8)
    stage1, stage2 = (args.for_stage(stage, "out", 5, "accuracy") for stage in (1, 2))
    assert (stage1.per_device_train_batch_size, stage1.gradient_accumulation_steps) == (32, 3)
    assert (stage2.per_device_train_batch_size, stage2.gradient_accumulation_steps) == (8, 1)
    with pytest.raises(ArgumentsError, match="not a multiple of per_device_train_batch_size 32"):
        TlmArguments(**BASE, total_batch_size=40, per_device_train_batch_size=32).for_stage(1, "out", 0, "accuracy")
    with pytest.raises(ArgumentsError, match="^--total_batch_size: expected .*; received 0"):
        TlmArguments(**BASE, total_batch_size=0).for_stage(1, "out", 0, "accuracy")


def test_stage_two_uses_the_largest_micro_batch_that_fits():
    """The default batch of stage 2 is 32; the micro-batch size was chosen for stage 1."""
    for per_device, expected in ((24, (16, 2)), (5, (4, 8)), (64, (32, 1))):
        two = TlmArguments(**BASE, per_device_train_batch_size=per_device).for_stage(2, "out", 0, "accuracy")
        assert (two.per_device_train_batch_size, two.gradient_accumulation_steps) == expected


def test_invalid_options_of_stage_two_are_refused_before_stage_one():
    check = partial(check_tlm, False, model_args=ModelArguments())
    check(TlmArguments(**BASE, rho1=0))
    for changes, message in (({"metric_for_best_model": "f1"}, "remove metric_for_best_model f1"),):
        with pytest.raises(ArgumentsError, match=message):
            check(TlmArguments(**BASE, rho1=0, **changes))
    args = TlmArguments(**BASE, rho1=0)
    args.__class__ = type("Three", (TlmArguments,), {"world_size": 3})
    with pytest.raises(ArgumentsError, match="stage2_total_batch_size: a batch of 32 texts cannot be split .* 3 processes"):
        check(args)


def test_several_gpus_need_a_process_each(monkeypatch):
    monkeypatch.setattr(TlmArguments, "n_gpu", 2)
    with pytest.raises(
        ArgumentsError, match="sees 2 GPUs, .*DataParallel, which is not supported. Start one process per GPU"
    ):
        TlmArguments(**BASE)


def test_data_seed_sets_the_order_of_texts():
    assert TlmArguments(**BASE).for_stage(2, "out", 5, "accuracy").data_seed == 5
    two = TlmArguments(**BASE, data_seed=7).for_stage(2, "out", 5, "accuracy")
    assert (two.seed, two.data_seed) == (5, 7)


def test_precision_of_the_accelerate_config_is_used(monkeypatch):
    """It is also in the settings by which a folder is recognised."""
    plain, explicit = TlmArguments(**BASE), TlmArguments(**BASE, bf16=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    launched = TlmArguments(**BASE)
    assert (plain.bf16, explicit.bf16, launched.bf16, launched.fp16) == (False, True, True, False)
    assert settings(launched) == settings(explicit) != settings(plain)


def test_micro_batch_size_is_a_setting_with_contrastive_losses():
    def texts_per_micro_batch(**changes):
        args = TlmArguments(**BASE, **{"objective": "cocolm", "total_batch_size": 32, **changes})
        return settings(args).get("texts_per_micro_batch")

    tokens = {"objective": "cocolm", "max_length": 32, "per_device_train_batch_size": 4}
    by_tokens = settings(TlmArguments(**BASE, **tokens, total_batch_tokens=256))
    assert by_tokens["tokens_per_micro_batch"] == 128 and "texts_per_micro_batch" not in by_tokens
    assert [
        texts_per_micro_batch(),
        texts_per_micro_batch(per_device_train_batch_size=4),
        texts_per_micro_batch(scl=False),
        texts_per_micro_batch(objective="electra"),
    ] == [
        32,
        4,
        None,
        None,
    ]


@pytest.mark.parametrize(
    "stage,changes,idle",
    [
        ("2", {"learning_rate": 5e-5, "rho1": 7, "stage2_learning_rate": 1e-3}, ["rho1 7", "learning_rate 5e-05"]),
        ("1", {"learning_rate": 5e-5, "stage2_max_steps": 9}, ["stage2_max_steps 9"]),
        ("2", {"mlm_probability": 0.3, "whole_word_mask": True}, ["mlm_probability 0.3", "whole_word_mask True"]),
        ("2", {"mlm_probability": 0.3, "whole_word_mask": True, "stage2_rho2": 1.0}, []),
        ("both", {"learning_rate": 5e-5, "stage2_max_steps": 9}, []),
    ],
)
def test_options_of_a_stage_that_is_not_run_are_warned_about(stage, changes, idle, caplog):
    args = TlmArguments(**BASE, stage=stage, **changes)
    assert sorted(other_stage_options(args)) == sorted(idle)
    check_tlm(True, args, ModelArguments(model_config={"model_type": "bert"}))
    tell_of_other_stage(args)
    assert all(name in caplog.text for name in idle) and ("have no effect" in caplog.text) == bool(idle)


def test_options_of_task_batches_that_stage_1_lacks(caplog):
    tell_of_other_stage(TlmArguments(**BASE, rho1=float("inf"), rho2=7.0))
    assert "rho2 7 has no effect with rho1 inf: stage 1 has no task batches." in caplog.text
    with pytest.raises(ArgumentsError, match="teacher has no effect with stage 1 and rho1 inf"):
        TlmArguments(**BASE, rho1=float("inf"), stage="1", teacher=["linear"])


@pytest.mark.parametrize(
    "cls,changes,said",
    [
        (TlmArguments, {"save_strategy": "no", "save_steps": 10}, "save_steps 10 has no effect.*stage 1 begins again"),
        (
            PretrainArguments,
            {"save_strategy": "no", "save_steps": 0.1},
            "save_steps 0.1 has no effect.*the run begins again",
        ),
        (TlmArguments, {"save_strategy": "no"}, None),
        (TlmArguments, {"save_strategy": "no", **PUSHING}, "hub_strategy checkpoint pushes nothing before stage 1 ends"),
        (PretrainArguments, {"save_strategy": "no", **PUSHING}, "pushes nothing before the run ends"),
        (TlmArguments, {"save_strategy": "steps", **PUSHING}, None),
        (TlmArguments, {"save_steps": 10}, None),
        (TlmArguments, {"save_strategy": "no", "save_steps": 10, "stage": "2"}, None),
    ],
)
def test_save_steps_without_saving_are_warned_about(cls, changes, said, caplog):
    """A preset may set save_strategy no, and users who pass save_steps expect checkpoints."""
    tell_of_no_saving(cls(**BASE, **changes))
    assert re.search(said, caplog.text) if said else not caplog.text


@pytest.mark.parametrize(
    "train,validation,changes,said",
    [
        (120_000, 15_000, {}, "20 times 15,000 .*2,000 steps of 16 texts.*max_eval_samples 1600"),
        (120_000, 4_800, {}, None),  # 96,000 texts: as long as the training.
        (120_000, 4_801, {}, "20 times 4,801 .*max_eval_samples 1600"),
        (120_000, 15_000, {"stage2_eval_steps": 200}, "10 times .*max_eval_samples 3200"),
        (120_000, 15_000, {"stage2_eval_steps": 1000}, None),
        (1_000, 2_499, {"stage2_max_steps": 20}, None),  # No more than 50,000 texts.
        (1_000, 2_600, {"stage2_max_steps": 20}, "20 times .*20 steps of 16 .*max_eval_samples 1000"),
        (1_000, 15_000, {"stage2_max_steps": -1, "stage2_num_train_epochs": 2.0}, "20 times .*126 steps of 16"),
        (1_000, 900, {"stage2_eval_steps": 10}, "200 times 900 .* Evaluate less often"),
        (1_000, 60_000, {"stage2_max_steps": 20, "stage2_eval_steps": 20}, "1 times 60,000 "),
    ],
)
def test_evaluations_longer_than_the_training_are_warned_about(train, validation, changes, said, caplog):
    values = {"stage2_max_steps": 2000, "stage2_total_batch_size": 16, "stage2_eval_steps": 0.05, "max_steps": 10, **changes}
    args = TlmArguments(**BASE, **values)
    task = SimpleNamespace(validation=range(validation))
    tell_of_long_evaluations(args.for_stage(2, "unused", 0, "accuracy"), task, train, args.stage2_total_batch_size)
    assert re.search(said, caplog.text) if said else not caplog.text


@pytest.mark.parametrize("strategy,validation,said", [("epoch", 20_000, "3 times 20,000 "), ("no", 20_000, None)])
def test_evaluations_of_fine_tuning_are_counted_by_epochs(strategy, validation, said, caplog):
    args = FinetuneArguments(**BASE, eval_strategy=strategy, select_by="last", num_train_epochs=3)
    task = SimpleNamespace(validation=range(validation))
    tell_of_long_evaluations(args, task, 6_000, args.total_batch_size)
    assert said in caplog.text if said else not caplog.text


@pytest.mark.parametrize(
    "run,model,message",
    [
        ({}, {"spectral_scale": 2.0}, "spectral_scale 2.0 has no effect with embedding_init random"),
        ({"objective": "electra"}, {"replacements": "random", "temperature": 0.5}, "temperature 0.5 .* replacements random"),
        (
            {"objective": "cocolm", "clm": "all_token", "rtd_weight": 7.0},
            {},
            "rtd_weight 7.0 has no effect with clm all_tok",
        ),
    ],
)
def test_options_without_effect_are_refused(run, model, message):
    with pytest.raises(ArgumentsError, match=message):
        check_model(TlmArguments(**BASE, **run), ModelArguments(**model))


def test_settings_with_token_batches_have_no_texts_per_step():
    """The number of texts in a step is not fixed then, and would depend on the number of processes."""
    values = settings(TlmArguments(**BASE, total_batch_tokens=4096))
    assert values["total_batch_tokens"] == 4096 and "texts_per_step" not in values
    assert settings(TlmArguments(**BASE, total_batch_size=64))["texts_per_step"] == 64


@pytest.mark.parametrize("total", [{"total_batch_size": 64}, {"total_batch_tokens": 64 * 128}])
def test_accumulation_that_the_total_batch_overrides_is_refused(total):
    sizes = {**total, "per_device_train_batch_size": 16}
    for steps in (1, 4):
        args = TlmArguments(**BASE, **sizes, gradient_accumulation_steps=steps)
        assert args.for_stage(1, "out", 0, "accuracy").gradient_accumulation_steps == 4
    with pytest.raises(ArgumentsError, match="gradient_accumulation_steps 2 has no effect: total_batch_.* make it 4"):
        settings(TlmArguments(**BASE, **sizes, gradient_accumulation_steps=2))


def test_options_that_change_no_result_may_change_between_starts():
    """Such as those that help after a start ended without memory, or in a time limit of processes."""
    changes = {"eval_accumulation_steps": 4, "torch_empty_cache_steps": 10, "ddp_timeout": 7200, "trackio_space_id": "a/b"}
    changes |= {"per_device_eval_batch_size": 1, "dataloader_num_workers": 2, "logging_steps": 7}
    assert settings(TlmArguments(**BASE, **changes)) == settings(TlmArguments(**BASE))


def test_stage_two_uses_its_own_values():
    args = TlmArguments(
        **BASE,
        rho1=7,
        learning_rate=1e-4,
        stage2_learning_rate=3e-5,
        stage2_max_steps=11,
        stage2_weight_decay=0.5,
        stage2_warmup_steps=4,
        stage2_eval_steps=2,
    )
    stage2 = args.for_stage(2, "out/stage2", 3, "micro_f1")
    assert (stage2.learning_rate, stage2.max_steps, stage2.weight_decay, stage2.warmup_steps) == (3e-5, 11, 0.5, 4)
    assert (stage2.rho1, stage2.mlm_probability, stage2.seed, stage2.data_seed) == (0, 0.0, 3, 3)
    assert stage2.load_best_model_at_end and stage2.metric_for_best_model == "micro_f1" and stage2.eval_steps == 2
    assert (args.rho1, args.learning_rate, args.load_best_model_at_end) == (7, 1e-4, False)


@pytest.mark.parametrize("schedule", [None, "linear", "cosine_with_min_lr"])
def test_stage_two_may_have_its_own_schedule(schedule):
    args = TlmArguments(
        **BASE,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr": 1e-5},
        stage2_lr_scheduler_type=schedule,
    )
    stage1, stage2 = (args.for_stage(stage, "out", 3, "micro_f1") for stage in (1, 2))
    kept = ("cosine_with_min_lr", {"min_lr": 1e-5})
    assert (stage1.lr_scheduler_type, stage1.lr_scheduler_kwargs) == kept
    assert (stage2.lr_scheduler_type, stage2.lr_scheduler_kwargs) == (("linear", None) if schedule == "linear" else kept)


@pytest.mark.parametrize(("rho2", "last", "share"), [(0.0, 0.1, 0.0), (1.0, 0.1, 0.1), (1.0, None, 0.3)])
def test_stage_two_masks_at_the_final_rate_of_stage_one(rho2, last, share):
    args = TlmArguments(**BASE, mlm_probability=0.3, mlm_probability_end=last, stage2_rho2=rho2)
    two = args.for_stage(2, "out/stage2", 3, "micro_f1")
    assert (two.mlm_probability, two.mlm_probability_end) == (share, None)


def test_seeds_default_to_the_seed():
    assert TlmArguments(**BASE, seed=4).run_seeds == [4]
    assert TlmArguments(**BASE, seeds=[2, 1]).run_seeds == [2, 1]


@pytest.mark.parametrize(
    "option", [{"embedding_init": "spectral"}, {"attention_init": "neighbors"}, {"lm_head_init": "frequencies"}]
)
def test_initialization_of_a_checkpoint_is_refused(option):
    ((name, value),) = option.items()
    with pytest.raises(ArgumentsError, match=f"{name} {value} would replace learned.*: pass --{name} random.$"):
        ModelArguments(**option, model_name_or_path="some/model")


def test_spectral_scale_must_be_positive():
    with pytest.raises(ArgumentsError, match="spectral_scale: expected .*; received 0"):
        ModelArguments(spectral_scale=0)


def test_repr_hides_the_hub_token(tmp_path):
    args = TlmArguments(output_dir=str(tmp_path), report_to="none", hub_token="hf_secret")
    assert "hf_secret" not in repr(args) + str(args) and "rho1=3" in repr(args)


def test_models_and_datasets_have_separate_repository_options():
    args = {**BASE, "push_to_hub": True}
    assert TlmArguments(**args, hub_model_id="me/model").hub_strategy == "end"
    assert ScoreModelArguments(**args, hub_dataset_id="me/passages").hub_dataset_id == "me/passages"
    with pytest.raises(
        ArgumentsError, match="hub_model_id me/model has no effect: the repository is set by --hub_dataset_id"
    ):
        ScoreModelArguments(**args, hub_model_id="me/model", hub_dataset_id="me/passages")


def test_stages_never_push_and_hold_no_token():
    args = TlmArguments(**BASE, push_to_hub=True, hub_model_id="me/model", hub_token="hf_secret")
    for copy in (
        args.for_stage(1, "out", 0, "accuracy"),
        args.for_stage(2, "out", 0, "accuracy"),
        args.for_trainer("out", 0),
    ):
        assert not copy.push_to_hub and copy.hub_token is None
    assert args.push_to_hub and args.hub_token == "hf_secret"


def test_run_resumes_from_a_repository_or_by_itself(tmp_path, monkeypatch):
    assert TlmArguments(**BASE, resume_from_checkpoint="true").resume_from_checkpoint is None
    args = TlmArguments(**BASE, resume_from_checkpoint="me/model@main-checkpoints")
    assert args.resume_from_checkpoint == "me/model@main-checkpoints"
    assert args.for_stage(2, "out", 0, "accuracy").resume_from_checkpoint is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "checkpoint-5").mkdir(parents=True)
    with pytest.raises(ArgumentsError, match="received 'runs/checkpoint-5'"):
        TlmArguments(**BASE, resume_from_checkpoint="runs/checkpoint-5")
    with pytest.raises(ArgumentsError, match="hub_strategy must be end, and hub_always_push false; received checkpoint"):
        ScoreModelArguments(**BASE, push_to_hub=True, hub_dataset_id="me/passages", hub_strategy="checkpoint")
    with pytest.raises(ArgumentsError, match="resume_from_checkpoint has no effect on this command"):
        ScoreModelArguments(**BASE, resume_from_checkpoint="me/model@main-checkpoints")


def test_local_files_of_a_model_exclude_records(tmp_path):
    for name in ("config.json", "settings.json", "results.json", "seal.json", ".places.json", "README.md"):
        (tmp_path / name).write_text("{}")
    ((file, _),) = local_files({"model_name_or_path": str(tmp_path)})["model_name_or_path"]
    assert file == "config.json"


@pytest.mark.parametrize(("given", "stages"), [(1, (1,)), (2, (2,)), ("both", (1, 2))])
def test_stage_may_be_a_number(given, stages):
    args = TlmArguments(**BASE, stage=given)
    assert args.stages == stages and args.stage == str(given)
