"""The base class of trained models, and passes of their bodies, for all tokens or for those alone that a loss reads.

After the attention of the last layer tokens are independent: only tokens that a loss reads need to be computed there.

Shapes: R rows, S positions in a row, M chosen tokens, H hidden size, V vocabulary, E size of the input embedding.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.albert.modeling_albert import AlbertTransformer
from transformers.models.bert.modeling_bert import BertSelfOutput
from transformers.models.electra.modeling_electra import ElectraSelfOutput
from transformers.models.roberta.modeling_roberta import RobertaSelfOutput
from transformers.utils.generic import is_flash_attention_requested

from hf_tlm.errors import ModelError
from hf_tlm.models.families import EncodedTexts, family_of
from hf_tlm.models.linear_cross_entropy import MAX_LOGITS

# The modules that follow attention in a layer, called with the result of attention and the residual.
_AFTER_ATTENTION = (BertSelfOutput, ElectraSelfOutput, RobertaSelfOutput)


def body_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the `base_model` of a model, typed as a model; transformers types it as any module."""
    return getattr(model, model.base_model_prefix, model)


def embedding_weight(model: PreTrainedModel) -> torch.Tensor:
    """Return the weight of a model's input embedding, float [V, E]."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight


class TrainedModel(PreTrainedModel):
    """Base class of the models whose losses the objectives compute: `TlmModel`, `GeneratorDiscriminator`."""

    config_class = PreTrainedConfig
    main_input_name = "input_ids"
    # The loss is computed outside, by the objectives, and is already normalised over the optimizer step.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # Maximum number of vocabulary logits in memory at any time, see `linear_cross_entropy`.
    max_logits = MAX_LOGITS

    def _tie(self, ties: dict[str, str]) -> None:
        """Tie the parameters of `ties` (target -> source), also when checkpoints are written and read."""
        self._tied_weights_keys = ties
        self.all_tied_weights_keys = dict(ties)
        # Checkpoints hold a tied tensor under one name, and loading reports none of its other names as missing.
        self._keys_to_ignore_on_save = set(ties)
        self.tie_weights(recompute_mapping=False)

    @property
    def further_parameters(self) -> float:
        """Parameters that a step applies beyond one forward and backward pass of the model, as passes x parameters."""
        return 0.0

    @cached_property
    def _parameter_count(self) -> int:
        return applied_parameters(self)

    def floating_point_ops(self, inputs: dict, exclude_embeddings: bool = False) -> int:
        """Return 6 x tokens (padding included) x applied parameters: the formula of TLM, Table 2, at the real batch size.

        The Trainer sums it as `total_flos`. The paper's figure, at the nominal sequence length, is computed by
        `hf_tlm.training.cost`.
        """
        return 6 * inputs["input_ids"].numel() * self._parameter_count


def applied_parameters(model: nn.Module) -> int:
    """Return the number of parameters of a model, each counted as often as it is applied.

    Parameters that ALBERT shares between layers, and those of COCO-LM's further passes, are applied more than once.

    6 x tokens x parameters is the cost of a step because every weight takes part in one product per token; a layer that is
    applied twelve times takes part in twelve.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, TrainedModel):
            count += round(module.further_parameters)
        if isinstance(module, AlbertTransformer):
            groups = [sum(value.numel() for value in group.parameters()) for group in module.albert_layer_groups]
            layers = module.config.num_hidden_layers
            count += sum(groups[int(layer / (layers / len(groups)))] for layer in range(layers)) - sum(groups)
    return count


def default_attention_mask(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, text_ids: torch.Tensor | None
) -> torch.Tensor:
    """Return the attention mask of a batch, int64 [R, S]; default: all tokens, or in packed rows all but padding."""
    if attention_mask is not None:
        return attention_mask
    return torch.ones_like(input_ids) if text_ids is None else (text_ids > 0).to(input_ids.dtype)


def packed_attention_mask(
    text_ids: torch.Tensor, config: PreTrainedConfig, dtype: torch.dtype
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the block-diagonal mask that keeps the packed texts of a row apart, in the form that the body expects.

    BERT and similar models attend across the texts of a row if only `position_ids` restart; they use a mask with four
    dimensions as it is. Padding attends to padding, so that no row of the attention is empty.

    Args:
        text_ids: int64 [R, S]; dtype: that of the model's weights.

    Returns:
        [R, 1, S, S]: bool, True where a token (third dimension) attends to another; for eager attention 0 instead of True,
        and the smallest number elsewhere. For bodies with layers of local attention, one mask per kind of layer, by name.
    """
    same_text = text_ids[:, None, :, None] == text_ids[:, None, None, :]
    masks = {"full_attention": same_text}
    window = getattr(config, "sliding_window", None)
    if window is not None:
        positions = torch.arange(text_ids.shape[1], device=text_ids.device)
        masks["sliding_attention"] = same_text & ((positions[:, None] - positions[None, :]).abs() <= window)
    if config._attn_implementation == "eager":
        lowest = torch.finfo(dtype).min
        masks = {
            name: torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, lowest)
            for name, mask in masks.items()
        }
    return masks if window is not None else masks["full_attention"]


def encode(
    body: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    text_ids: torch.Tensor | None = None,
    first_tokens: torch.Tensor | None = None,
) -> EncodedTexts:
    """Run a body once over a padded or packed batch, see `TlmCollator`; shapes as in `TlmModel.forward`.

    Raises:
        ModelError: only some of the inputs that mark a packed batch are given.
    """
    config = body.config
    if not (position_ids is None) == (text_ids is None) == (first_tokens is None):
        raise ModelError(
            "position_ids, text_ids and first_tokens together describe the texts of packed rows (TlmCollator): pass all of "
            "them, or none."
        )
    attention_mask = default_attention_mask(input_ids, attention_mask, text_ids)
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    # A trained WordPiece tokenizer gives the two texts of a pair token types; DistilBERT and ModernBERT use none.
    if token_type_ids is not None and getattr(config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = token_type_ids
    if text_ids is None:
        hidden = body(**inputs, return_dict=True).last_hidden_state
        return EncodedTexts(hidden, attention_mask, text_ids, first_tokens)
    assert position_ids is not None
    inputs["position_ids"] = position_ids + family_of(config).first_position(config)
    if is_flash_attention_requested(config):
        hidden = _encode_without_padding(body, inputs, text_ids > 0, position_ids)
    else:
        mask = packed_attention_mask(text_ids, config, body.dtype)
        hidden = body(**{**inputs, "attention_mask": mask}, return_dict=True).last_hidden_state
    return EncodedTexts(hidden, attention_mask, text_ids, first_tokens)


def _encode_without_padding(
    body: PreTrainedModel, inputs: dict[str, torch.Tensor], unpadded: torch.Tensor, position_ids: torch.Tensor
) -> torch.Tensor:
    """Return hidden states float [R, S, H], zero at padding, from attention kernels for texts of varying lengths.

    Instead of a mask, these kernels take all texts in one row and the offset of each text.

    Args:
        inputs: int64 [R, S] each; unpadded: bool [R, S], False at padding.
        position_ids: int64 [R, S], 0 where a text begins.
    """
    positions = position_ids[unpadded]
    total = positions.new_tensor([len(positions)])
    cumulative = torch.cat([(positions == 0).nonzero().flatten(), total]).to(torch.int32)
    longest = int(positions.max()) + 1
    row = {name: value[unpadded][None] for name, value in inputs.items() if name != "attention_mask"}
    if getattr(body.config, "type_vocab_size", 0) > 0:
        # Without them the body would cut them from a table that is only as long as the longest text.
        row.setdefault("token_type_ids", torch.zeros_like(row["input_ids"]))
    hidden = body(
        **row,
        cu_seq_lens_q=cumulative,
        cu_seq_lens_k=cumulative,
        max_length_q=longest,
        max_length_k=longest,
        return_dict=True,
    ).last_hidden_state[0]
    return hidden.new_zeros(*unpadded.shape, hidden.shape[-1]).index_put((unpadded,), hidden)


def layer_stack(body: nn.Module) -> nn.ModuleList:
    """Return the layers of a body in order, from the embeddings on; for ALBERT the groups that layers share."""
    return next(module for module in body.modules() if isinstance(module, nn.ModuleList))


def layer_classes(body: nn.Module) -> set[str]:
    """Return the class names of the body's layers, each of which FSDP shards as one unit."""
    return {type(layer).__name__ for layer in layer_stack(body)}


class Tail:
    """The modules after attention in the last layer of a body: two thirds of its products, forward and backward.

    Tokens can be left out only in layers that are built like BERT's; for other layers the tail is empty. It is also empty
    with flash attention, whose kernels for texts of varying lengths take all texts in one row, so that indices differ.

    Attributes:
        modules: the modules that see only the chosen tokens.
    """

    def __init__(self, body: PreTrainedModel):
        layer = layer_stack(body)[-1]
        outputs = [module for module in layer.modules() if isinstance(module, _AFTER_ATTENTION)]
        self._first = outputs[0] if len(outputs) == 1 and not is_flash_attention_requested(body.config) else None
        self.modules: set[nn.Module] = set()
        if self._first is not None:
            after = set(self._first.modules())
            attention = next(set(m.modules()) for m in layer.modules() if m is not layer and after < set(m.modules()))
            self.modules = set(layer.modules()) - attention | after

    @contextmanager
    def only(self, chosen: torch.Tensor) -> Iterator[None]:
        """Leave out the tokens that are not chosen, within the block: the modules see float [1, M, H].

        Args:
            chosen: int64 [M], indices in the flattened rows.
        """
        assert self._first is not None  # Else the tail is empty and cannot leave tokens out.

        def leave_out(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(x.flatten(0, 1)[chosen][None] for x in inputs)

        handle = self._first.register_forward_pre_hook(leave_out)
        try:
            yield
        finally:
            handle.remove()


# Not compiled: M differs from batch to batch, so that it would be compiled again and again.
@torch.compiler.disable
def true_indices(chosen: torch.Tensor) -> torch.Tensor:
    """Return the indices at which bool [R, S] is True in the flattened rows, int64 [M], ascending.

    Counting them makes the CPU wait for the GPU: this happens once, before a pass, and not wherever the tokens are read.
    """
    indices = chosen.flatten().nonzero().squeeze(1)
    torch._dynamo.maybe_mark_dynamic(indices, 0)  # Else code compiled for the first M is compiled once more.
    return indices


def encode_masked_positions(
    body: PreTrainedModel,
    chosen: torch.Tensor,
    input_ids: torch.Tensor,
    *inputs: torch.Tensor | None,
) -> torch.Tensor:
    """Return the hidden states of the M chosen tokens, float [M, H], for a loss that reads no others.

    `chosen` are the indices that `true_indices` returns, int64 [M]. The states are those of `encode` with the same
    arguments. Where the body allows it, its `Tail` is computed for the chosen tokens alone.
    """
    # Compiled code must not depend on M. Gradient checkpointing would recompute the layer in the backward pass with all
    # tokens. BERT's pooler needs a first token, whichever it is.
    all_tokens = torch.compiler.is_compiling() or (body.training and body.is_activation_checkpointing) or not len(chosen)
    if not all_tokens and (tail := Tail(body)).modules:
        with tail.only(chosen):
            return encode(body, input_ids, *inputs).hidden[0]
    return _select_tokens(encode(body, input_ids, *inputs).hidden, chosen)


@torch.compiler.disable
def _select_tokens(hidden: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return hidden.flatten(0, 1)[chosen]


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | os.PathLike, model_type: str) -> None:
    """Save a tokenizer for a model; for a model without token types, as a tokenizer that returns none.

    transformers 4.57 passes DistilBERT all that its tokenizer returns, and DistilBERT refuses `token_type_ids`.
    """
    if model_type == "distilbert":
        tokenizer = copy.copy(tokenizer)  # The caller's tokenizer stays unchanged.
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        tokenizer.init_kwargs = {**tokenizer.init_kwargs, "model_input_names": names}
        tokenizer.model_input_names = names  # Else the attribute of the class overwrites it.
    tokenizer.save_pretrained(folder)


@contextmanager
def building(config: PreTrainedConfig) -> Iterator[None]:
    """Raise a ModelError in place of errors that transformers raises within the block for a config it cannot build.

    It refuses an attention implementation that is not available, for instance.
    """
    try:
        yield
    except (ImportError, ValueError) as error:
        raise ModelError(f"transformers cannot create a {config.model_type} model from this config: {error}") from error
