"""Tiny trainings that the tests of this folder share."""

from datasets import Dataset
from toys import TINY_CONFIGS, make_task
from transformers import AutoConfig, set_seed

from hf_tlm.data import tokenize
from hf_tlm.evaluation import compute_metrics_for
from hf_tlm.models import TlmModel
from hf_tlm.training import TlmArguments, TlmTrainer

QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def trainer(tmp_path, data, tokenizer, model_type="bert", config=NO_DROPOUT, objectives=None, callbacks=None, **changes):
    args = TlmArguments(output_dir=str(tmp_path), **{**QUIET, "max_steps": 4, "learning_rate": 1e-2, **changes})
    set_seed(7)
    model = TlmModel.from_config(
        AutoConfig.for_model(model_type, **{**TINY_CONFIGS[model_type], "vocab_size": len(tokenizer), **config})
    )
    return TlmTrainer(
        model,
        args,
        train_dataset=data["train"],
        corpus_dataset=data["corpus"] if args.rho1 > 0 else None,
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        compute_metrics=compute_metrics_for("macro_f1"),
        objectives=objectives,
        callbacks=callbacks,
    )


def history(run, *names):
    return [[entry[name] for name in names if name in entry] for entry in run.state.log_history if "loss" in entry]


def weights(run):
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def tokenized(tokenizer, corpus_rows):
    task = make_task()
    corpus = Dataset.from_list(corpus_rows).select_columns(["text"])
    return {
        "train": tokenize(task.train, tokenizer, 32),
        "validation": tokenize(task.validation, tokenizer, 32),
        "corpus": tokenize(corpus, tokenizer, 32),
    }
