"""Tiny masked LMs, tokenizers and tasks that the tests of prompts share."""

import json

from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForMaskedLM, RobertaTokenizer, set_seed

from hf_tlm.data import train_wordpiece
from hf_tlm.runs import CheckpointArguments, FewShotArguments, run_few_shot
from support.toys import TINY_CONFIGS, sentences

TEMPLATE = "{text} It was {mask}."
WORDS = {"down": "bad", "none": "fine", "up": "good"}
LABEL_WORDS = [f"{name}={word}" for name, word in WORDS.items()]
TEXTS = [row["text"] for row in sentences(40)] + ["It was good. It was bad. It was fine. Yes or no? Maybe, yes. No."] * 40
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAST = {
    "k": 4,
    "splits": 2,
    "learning_rates": [3e-2, 1e-3],
    "batch_sizes": [4],
    "max_steps": 4,
    "eval_steps": 2,
    "max_length": 32,
    "logging_steps": 1,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}


def wordpiece():
    return train_wordpiece(TEXTS, 200, max_length=32)


def byte_level():
    """Train a tokenizer of RoBERTa's kind: a word after a space is encoded differently from one without."""
    trainer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(TEXTS, vocab_size=400, min_frequency=2, special_tokens=special, show_progress=False)
    merges = json.loads(trainer.to_str())["model"]["merges"]
    return RobertaTokenizer(vocab=trainer.get_vocab(), merges=[tuple(pair) for pair in merges])


def masked_lm(model_type="bert", tokenizer=None, **changes):
    values = {**TINY_CONFIGS[model_type], **({"vocab_size": len(tokenizer)} if tokenizer else {}), **changes}
    set_seed(5)
    return AutoModelForMaskedLM.from_config(AutoConfig.for_model(model_type, **values)).eval()


def save(folder, tokenizer, **changes):
    masked_lm(tokenizer=tokenizer, **{**NO_DROPOUT, **changes}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def go(output_dir, task, checkpoint, **changes):
    own = {} if changes.get("method") == "finetune" else {"template": TEMPLATE, "label_words": LABEL_WORDS}
    if changes.get("method") == "zero_shot":
        trained = ("learning_rates", "batch_sizes", "max_steps", "eval_steps")
        own |= {name: value for name, value in FAST.items() if name not in trained}
    else:
        own |= FAST
    args = FewShotArguments(output_dir=str(output_dir), **{**own, **changes})
    return run_few_shot(task, CheckpointArguments(model_name_or_path=checkpoint), args)
