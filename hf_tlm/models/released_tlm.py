"""Loading and conversion of the TLM paper's released checkpoints (yxchar/tlm-<task>-<scale>-scale) to stock ELECTRA.

They hold a BERT body without a pooler, BERT's masked-LM head, and a classifier on the first token's hidden state: linear,
GELU, linear (names and layout: github.com/yaoxingcheng/TLM, src/model.py). ELECTRA whose embeddings are as wide as its body
computes the same: its body is BERT's, its generator head is the masked-LM head with GELU, its classifier is the same.

`convert_legacy` converts the checkpoints of both papers: TLM's and COCO-LM's.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import BertConfig, ElectraConfig, PreTrainedTokenizerBase

from hf_tlm.data import load_tokenizer
from hf_tlm.errors import ModelError
from hf_tlm.hub.cards import converted_card
from hf_tlm.hub.repo import TOKENIZER_FILES, local_folder
from hf_tlm.models.coco_lm.modeling_coco_lm import CocoLmForMaskedLM
from hf_tlm.models.export import check_replaceable, export_stock
from hf_tlm.models.loading import SAFE_WEIGHTS, WEIGHTS, read_weights, weight_problems, weights_file
from hf_tlm.models.released_coco_lm import CONFIG, Released, convert_released
from hf_tlm.models.tlm import TlmModel
from hf_tlm.tasks.spec import TaskSpec, registered_task, released_length
from hf_tlm.utils.files import atomic_write
from hf_tlm.utils.options import named

# Errors that configs raise for invalid values.
CONFIG_ERRORS = (TypeError, ValueError, StrictDataclassError)
# A folder with one of these files has a BERT tokenizer.
BERT_TOKENIZERS = ("tokenizer.json", "vocab.txt")
ADVICE = "Pass the folder of a checkpoint that the TLM paper released."
# One name of each part of the model; the prefix before it in a file depends on how the model was wrapped.
PARTS = ("embeddings.position_embeddings.weight", "predictions.transform.dense.weight", "cls_layer.0.weight")
BODY, MLM_HEAD, CLASSIFIER = PARTS
# Prefixes of names: ours -> (theirs, the part that they belong to).
RENAMED = {
    "electra.": ("", BODY),
    "mlm_head.generator_predictions.": ("predictions.transform.", MLM_HEAD),
    "mlm_head.generator_lm_head.weight": ("predictions.decoder.weight", MLM_HEAD),
    "mlm_head.generator_lm_head.bias": ("predictions.bias", MLM_HEAD),
    "classifier.dense.": ("cls_layer.0.", CLASSIFIER),
    "classifier.out_proj.": ("cls_layer.2.", CLASSIFIER),
}
DECODER_BIAS = "predictions.decoder.bias"
# Pairs of weights, (part, name) each, that are tied unless both are in a file and differ; a file may have either.
TIED_WEIGHTS = (
    ((BODY, "embeddings.word_embeddings.weight"), (MLM_HEAD, "predictions.decoder.weight")),
    ((MLM_HEAD, "predictions.bias"), (MLM_HEAD, DECODER_BIAS)),
)
# What the parts may hold beyond our model's weights: position ids, zeros, and a layer that the classifier does not read.
UNUSED = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.")
SHARED_FIELDS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act hidden_dropout_prob "
    "attention_probs_dropout_prob max_position_embeddings type_vocab_size initializer_range layer_norm_eps pad_token_id"
).split()
# The files that are fetched of a release of either paper.
FILES = [*TOKENIZER_FILES, WEIGHTS, SAFE_WEIGHTS]
RELEASED_NAME = re.compile(r"tlm-(.+)-(?:small|medium|large)-scale")


class ReleasedTlm(NamedTuple):
    """A released TLM checkpoint as our model.

    Attributes:
        model: in float32 and evaluation mode, of type `electra`.
        tokenizer: the tokenizer of the checkpoint, or the one named instead.
        left_out: names of weights that the model does not use.
    """

    model: TlmModel
    tokenizer: PreTrainedTokenizerBase
    left_out: list[str]


def load_released_tlm(
    folder: str | os.PathLike, *, label_names: Sequence[str] | None = None, tokenizer_name: str | None = None
) -> ReleasedTlm:
    """Load model and tokenizer from a folder with `pytorch_model.bin`, `config.json` and a BERT tokenizer.

    Logits of both heads equal those of the published code, to rounding. Pickled code in the weights is not run.

    Args:
        label_names: the classes in the order of their indices; None names them "0" .. "n-1".
        tokenizer_name: Hub id or folder, for a checkpoint that comes without a tokenizer.

    Raises:
        ModelError: a file is missing or damaged; weights are missing, unexpected or of another shape than config.json
            says; the numbers of labels and classes differ; or the model computes what ELECTRA cannot.
        TokenizerError: see `load_tokenizer`.
    """
    folder = Path(named("folder", folder, ModelError, needed=True, what="a folder"))
    bert = _read_config(folder)
    file = weights_file(folder)
    state = read_weights(file, ADVICE)
    prefixes = {part: _find_prefix(state, part, file) for part in PARTS}
    names = _check_label_names(state, prefixes, label_names)
    (embedding, output), (bias, decoder_bias) = _complete_tied_weights(state, prefixes)
    try:
        config = ElectraConfig(
            **{name: getattr(bert, name) for name in SHARED_FIELDS},
            embedding_size=bert.hidden_size,
            classifier_dropout=0.0,  # Theirs has no dropout.
            tie_word_embeddings=_are_equal(state, embedding, output),
            id2label=dict(enumerate(names)),
            label2id={name: index for index, name in enumerate(names)},
        )
        model = TlmModel.from_config(config)
    except CONFIG_ERRORS as error:
        raise ModelError(f"{folder / CONFIG} cannot be used: {error}") from error
    if not _are_equal(state, bias, decoder_bias):
        raise ModelError(f"{bias} and {decoder_bias} in {file} must be equal, but differ. {ADVICE}")
    left_out = _load_weights(model, state, prefixes, file)
    return ReleasedTlm(model.eval(), _load_tokenizer(folder, tokenizer_name, config), left_out)


def convert_released_tlm(
    folder: str | os.PathLike,
    output_dir: str | os.PathLike,
    *,
    label_names: Sequence[str] | None = None,
    tokenizer_name: str | None = None,
) -> ReleasedTlm:
    """Convert a released checkpoint to a folder of stock models, which appears atomically, see `export_stock`.

    `output_dir` holds a stock `ElectraForSequenceClassification`, `output_dir/mlm` the `ElectraForMaskedLM` of its body.

    Raises:
        HfTlmError: see `load_released_tlm`; `output_dir` is `folder`, or holds anything other than a model; or the disk
            cannot be written, and an existing folder stays intact.
    """
    folder = named("folder", folder, ModelError, needed=True, what="a folder")
    check_replaceable(output_dir, folder)
    released = load_released_tlm(folder, label_names=label_names, tokenizer_name=tokenizer_name)
    export_stock(released.model, released.tokenizer, output_dir)
    return released


def convert_legacy(
    checkpoint: str,
    output_dir: str | os.PathLike,
    *,
    task: str | None = None,
    label_names: Sequence[str] | None = None,
    tokenizer_name: str | None = None,
) -> Released | ReleasedTlm:
    """Convert a checkpoint of the TLM paper (`convert_released_tlm`) or of COCO-LM (`convert_released`), by its config.json.

    Args:
        checkpoint: its folder, or its Hub id, optionally with `@revision`; its weights are pickled, and only tensors are
            read from them.
        task: for a TLM checkpoint, the registered task whose classes it predicts, by our name or that of the release.
            None: the task in a name such as `tlm-sciie-small-scale`, if there is one.
        label_names: its classes in the order of their indices, instead of the task's.
        tokenizer_name: see `load_released_tlm`.

    The release numbers the classes and does not name them: the registry's names are used in alphabetical order.

    Raises:
        HubError: the repository cannot be fetched.
        ModelError: the task is not registered; options for TLM are given for a COCO-LM checkpoint; or see the two functions.
    """
    folder = local_folder(checkpoint, "model", allow_patterns=FILES, allow_pickle=True)
    if not _is_bert(folder):
        options = {"task": task, "label_names": label_names, "tokenizer_name": tokenizer_name}
        if others := [name for name, value in options.items() if value is not None]:
            raise ModelError(
                f"{', '.join(others)}: only for checkpoints of TLM, whose {CONFIG} has model_type bert. {checkpoint} is "
                f"read as COCO-LM's, which has a tokenizer and no classes. Remove {', '.join(others)}."
            )
        return _write_card(convert_released(folder, output_dir), checkpoint, output_dir, None)
    spec = _find_task(checkpoint, task)
    if label_names is None:
        if task is not None and spec is None:
            raise ModelError(
                f"There is no registered task {task!r}, which would name the classes of the checkpoint. Pass --label_names."
            )
        label_names = spec.classes if spec else None
    released = convert_released_tlm(folder, output_dir, label_names=label_names, tokenizer_name=tokenizer_name)
    classes = released.model.config.id2label or {}
    return _write_card(released, checkpoint, output_dir, list(classes.values()))


def legacy_length(checkpoint: str, task: str | None = None) -> int | None:
    """Return the length in tokens to which a TLM checkpoint's texts were truncated; None if its task is not known.

    Args:
        checkpoint, task: as in `convert_legacy`.
    """
    spec = _find_task(checkpoint, task)
    return None if spec is None else released_length(spec.name)


def _read_config(folder: Path) -> BertConfig:
    path = folder / CONFIG
    try:
        config = BertConfig.from_json_file(path)
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}. {ADVICE}") from error
    except (*CONFIG_ERRORS, AttributeError) as error:  # AttributeError for JSON that is not an object.
        raise ModelError(f"{path} cannot be used: {error}. Download it again.") from error
    positions = getattr(config, "position_embedding_type", "absolute")
    if config.hidden_act != "gelu" or positions != "absolute" or config.is_decoder:
        raise ModelError(
            f"{path} must describe an encoder with GELU and absolute positions, as ELECTRA is; found "
            f"hidden_act {config.hidden_act!r}, position_embedding_type {positions!r}, is_decoder {config.is_decoder}."
        )
    return config


def _find_prefix(state: dict[str, torch.Tensor], part: str, file: Path) -> str:
    """Return the prefix of the names of a part in a file."""
    matches = [name for name in state if name == part or name.endswith(f".{part}")]
    if len(matches) != 1:
        raise ModelError(f"{file} must contain one weight named [...]{part}; found {', '.join(matches) or 'none'}. {ADVICE}")
    return matches[0].removesuffix(part)


def _complete_tied_weights(state: dict[str, torch.Tensor], prefixes: dict[str, str]) -> list[tuple[str, str]]:
    """Return the names of `TIED_WEIGHTS` in this file; if it has only one of a pair, add the other to `state`."""
    pairs = [(prefixes[part] + name, prefixes[other_part] + other) for (part, name), (other_part, other) in TIED_WEIGHTS]
    for first, second in pairs:
        for name, other in ((first, second), (second, first)):
            if other in state:
                state.setdefault(name, state[other])
    return pairs


def _are_equal(state: dict[str, torch.Tensor], name: str, other: str) -> bool:
    return name not in state or torch.equal(state[name], state[other])


def _check_label_names(
    state: dict[str, torch.Tensor], prefixes: dict[str, str], label_names: Sequence[str] | None
) -> Sequence[str]:
    name = f"{prefixes[CLASSIFIER]}cls_layer.2.weight"
    if name not in state:
        raise ModelError(f"The classifier lacks {name}. {ADVICE}")
    classes = len(state[name])
    if label_names is None:
        return [str(index) for index in range(classes)]
    if len(label_names) != classes:
        raise ModelError(
            f"The classifier has {classes} classes; received {len(label_names)} labels ({', '.join(label_names)}). Pass the "
            "task or the labels that this checkpoint was trained with."
        )
    return label_names


@torch.no_grad()
def _load_weights(model: TlmModel, state: dict[str, torch.Tensor], prefixes: dict[str, str], file: Path) -> list[str]:
    """Copy the weights into the model, and return the names of those that it does not use."""
    values = {_released_name(name, prefixes): tensor for name, tensor in model.state_dict().items()}
    left_out = [name for name in state if name not in values and name != prefixes[MLM_HEAD] + DECODER_BIAS]
    own_prefixes = [prefixes[BODY] + name for name in ("embeddings.", "encoder.")]
    own_prefixes += [prefixes[MLM_HEAD] + "predictions.", prefixes[CLASSIFIER] + "cls_layer."]
    unused = tuple(prefixes[BODY] + name for name in UNUSED)
    unexpected = [name for name in left_out if name.startswith(tuple(own_prefixes)) and not name.startswith(unused)]
    if problems := weight_problems(state, {name: tuple(value.shape) for name, value in values.items()}, unexpected):
        raise ModelError(f"The weights in {file} do not fit the model in {CONFIG}. {problems}. {ADVICE}")
    for name, value in values.items():
        value.copy_(state[name])
    return left_out


def _released_name(name: str, prefixes: dict[str, str]) -> str:
    """Return the name of the released weight that corresponds to our weight `name`."""
    ours = next(ours for ours in RENAMED if name.startswith(ours))
    theirs, part = RENAMED[ours]
    return prefixes[part] + theirs + name.removeprefix(ours)


def _load_tokenizer(folder: Path, name: str | None, config: ElectraConfig) -> PreTrainedTokenizerBase:
    if name is None and not any((folder / file).is_file() for file in BERT_TOKENIZERS):
        raise ModelError(
            f"{folder} has no tokenizer ({' or '.join(BERT_TOKENIZERS)}). Pass one as --tokenizer_name; the paper's models "
            "with BERT's vocabulary use bert-base-uncased."
        )
    tokenizer = load_tokenizer(name or str(folder))
    if len(tokenizer) > config.vocab_size:
        raise ModelError(
            f"The tokenizer {name or folder} has {len(tokenizer)} tokens, and the model's vocabulary has "
            f"{config.vocab_size}. Both must belong to the same model."
        )
    tokenizer.model_max_length = min(tokenizer.model_max_length, config.max_position_embeddings)
    return tokenizer


def _write_card(
    released: Released | ReleasedTlm, checkpoint: str, output_dir: str | os.PathLike, classes: list[str] | None
) -> Released | ReleasedTlm:
    model = released.model
    fills_masks = isinstance(model, CocoLmForMaskedLM)
    card = converted_card(checkpoint, model.num_parameters(), released.left_out, classes=classes, fills_masks=fills_masks)
    atomic_write(Path(output_dir) / "README.md", card)
    return released


def _is_bert(folder: Path) -> bool:
    try:
        return json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model_type") == "bert"
    except (OSError, ValueError, AttributeError):
        return False  # The COCO-LM reader reports what is wrong with the file.


def _find_task(checkpoint: str, task: str | None) -> TaskSpec | None:
    if task is not None:
        return registered_task(task)
    match = RELEASED_NAME.fullmatch(Path(checkpoint.partition("@")[0]).name)
    return registered_task(match[1]) if match else None
