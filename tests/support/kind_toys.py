"""Tiny tokenizers, stock models and tasks of the kinds that work on tokens."""

from types import SimpleNamespace

import torch
import transformers
from datasets import Dataset
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, XLNetTokenizer

from hf_tlm.tasks import Task, TaskSpec
from support.toys import SUBJECTS, TINY_CONFIGS

TEXTS = [
    "the enzyme that Zoë found in café Müller raises the gene in the tumor",
    "which protein blocks the receptor ? It is called alpha-2 , and the drug lowers it .",
    "Where does the naïve cell meet the acid ? In 1990s Zürich , says the report of the group .",
] * 4
XLNET = {"vocab_size": 300, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
TAGS = ("DT", "NN", "VBZ")
ARGS = {"max_length": 48, "max_query_length": 12, "max_answer_length": 10, "doc_stride": 8, "n_best": 20}


def arguments(**changes):
    """Return the fine-tuning arguments that `encode` and `decode` read."""
    return SimpleNamespace(**{**ARGS, "null_threshold": None, "crf": False, "option_apart": False, **changes})


def wordpiece():
    from hf_tlm.data import train_wordpiece

    return train_wordpiece(TEXTS, 200, max_length=512)


def byte_level():
    """Train a tokenizer like ModernBERT's: offsets include the space before a word, and there are no token types."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer = trained._tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], model_max_length=512, **names
    )


def xlnet():
    """Train a tokenizer like XLNet's: [CLS] at the end, padding on the left, accents dropped."""
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eop>", "<eod>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    import json

    vocab = [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return XLNetTokenizer(vocab=vocab, unk_id=0, model_max_length=512, model_input_names=names)


TOKENIZERS = {"bert": wordpiece, "modernbert": byte_level, "xlnet": xlnet, "cocolm": wordpiece}


def tiny_model(family, auto_class, **values):
    """Build a stock model with random weights, larger than usual so that logits differ, in evaluation mode."""
    from transformers import AutoConfig

    from hf_tlm import models  # noqa: F401  registers cocolm

    config = XLNET if family == "xlnet" else {**TINY_CONFIGS[family], "vocab_size": 300, "max_position_embeddings": 128}
    config = {name: value for name, value in config.items() if name != "num_labels"}
    torch.manual_seed(0)
    model = getattr(transformers, auto_class).from_config(AutoConfig.for_model(family, **config, **values))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    return model.eval()


def predict(model, features, collate, batch_size=3):
    """Return what the Trainer's `predict` returns: outputs of all batches, padded on the right with -100."""
    import numpy as np
    from transformers.trainer_pt_utils import nested_concat

    outputs = None
    for start in range(0, len(features), batch_size):
        batch = collate([features[row] for row in range(start, min(start + batch_size, len(features)))])
        batch = {
            name: values for name, values in batch.items() if name not in ("labels", "start_positions", "end_positions")
        }
        with torch.no_grad():
            output = model(**batch)
        found = (output.start_logits, output.end_logits) if "start_logits" in output else (output.logits,)
        found = tuple(part.numpy() for part in found)
        outputs = found if outputs is None else nested_concat(outputs, found, padding_index=-100)
    return tuple(map(np.asarray, outputs)) if len(outputs) > 1 else outputs[0]


def task_of(kind, rows, label_names=(), train=None, **values):
    """Build a task whose train and validation splits have the same rows, unless `train` is given."""
    rows = rows if isinstance(rows, Dataset) else Dataset.from_list(rows)
    train = rows if train is None else Dataset.from_list(train)
    spec = TaskSpec(name="toy", path="memory", kind=kind, **values)
    return Task(spec, {"train": train, "validation": rows}, tuple(label_names))


def rows_of(kind, count):
    """Return rows with a learnable rule; every third question has no answer."""
    rows = []
    for index in range(count):
        subject, other = SUBJECTS[index % 8], SUBJECTS[(3 * index + 1) % 8]
        row = {"id": str(index)}
        if kind == "tagging":
            row |= {"tokens": ["the", subject, "blocks", "the", other], "tags": [0, 1, 2, 0, 1]}
        elif kind == "multiple_choice":
            options = [subject, "meets", "and", "lowers"]
            row |= {"context": f"the {other} blocks the {subject}", "question": f"the {other} blocks the _"}
            row |= {"options": options[-index % 4 :] + options[: -index % 4], "label": index % 4}
        else:
            context = f"{'the cell meets the acid and ' * 4}the {other} blocks the {subject}"
            answers = [] if index % 3 == 0 else [subject]
            row |= {"context": context, "question": f"the {other} blocks", "answers": answers}
            row |= {"starts": [context.rindex(subject) for _ in answers]}
        rows.append(row)
    return rows


def labels_of(kind):
    return {"tagging": TAGS, "multiple_choice": ("A", "B", "C", "D")}.get(kind, ())
