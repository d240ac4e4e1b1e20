"""ONNX graphs of stock models, by torch's own exporter, and 8-bit and half-precision versions of them.

Graphs use only ONNX's own operators and contain their weights. Their bytes are equal for equal weights and versions: the
exporter's notes, which name files and lines of this machine, are removed. Attention is traced to few operators, none of
which is slow on processors. `hf_tlm.models.onnx_session` runs the graphs.

Shapes: B texts, S tokens, C choices of a question, H heads, D dimensions of a head.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, eager_mask
from transformers.models.modernbert import modeling_modernbert

from hf_tlm.errors import ModelError
from hf_tlm.models.families import FAMILIES

# Masked scores are clamped to this much below the largest of their row. exp(-60) = 9e-27 is nothing beside 1 in float32;
# much lower scores give denormal numbers, with which the softmax of onnxruntime, and the product after it, are many times
# slower.
DEPTH = 60.0
ROTARY_OPSET = 23  # The first with an operator for rotary positions.
_ATTENTION_NAME = "hf_tlm_onnx"
_LOCK = threading.RLock()  # Guards names that are replaced in modules of transformers for the time of an export.
OPSET = ROTARY_OPSET  # The default. From 20 on there is an operator for GELU, too.
MAX_BYTES = 2 << 30  # Maximum bytes of a protobuf, which holds a graph and its weights.
PARTS = ("embeddings", "head")
MIN_PROB = 1e-30  # Minimum probability of a class, before its logarithm.
_MAX_DIM = 1 << 20


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return softmax(query key^T scaling + mask) value, float [B, S, H, D], of inputs float [B, H, S, D] each."""
    scores = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
        scores = torch.maximum(scores, scores.amax(-1, keepdim=True) - DEPTH)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def _mask(
    *,
    kv_length: int,
    mask_function: Callable,
    attention_mask: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return the additive attention mask: 0 for a token that is seen, else the lowest number, float [B, 1, 1 or S, S].

    transformers' own function looks up every pair of positions in the padding: a tenth of the operators of a small graph,
    each with a cost of its own even for a single text.
    """
    if attention_mask is None or any(kwargs.get(name) for name in ("use_vmap", "q_offset", "kv_offset")):
        kwargs |= {"kv_length": kv_length, "mask_function": mask_function, "dtype": dtype, "device": device}
        return eager_mask(attention_mask=attention_mask, **kwargs)
    least = torch.finfo(dtype).min
    padding = (1.0 - attention_mask[:, None, None, :].to(dtype)) * least
    if mask_function is bidirectional_mask_function:
        return padding
    positions = torch.arange(kv_length, device=device)
    is_visible = mask_function(positions, positions, positions[:, None], positions[None, :])
    return torch.minimum(padding, torch.where(is_visible, torch.zeros((), dtype=dtype, device=device), least))


AttentionInterface.register(_ATTENTION_NAME, _attention)
AttentionMaskInterface.register(_ATTENTION_NAME, _mask)


@contextlib.contextmanager
def exportable_attention(model: Any, opset: int) -> Iterator[None]:
    """Trace attention, within the block, as products and a softmax; torch's fused one would test every weight for NaN.

    That test is for rows that are masked completely, which a padded text does not have. A body of another family (heads may
    share keys, or scores be capped), or one that does not use transformers' attention functions (COCO-LM's own), has the
    eager attention of its class.
    """
    previous = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if previous is None:
        yield
        return
    is_supported = model._supports_attention_backend and model.config.model_type in FAMILIES
    model.set_attn_implementation(_ATTENTION_NAME if is_supported else "eager")
    try:
        with _rotary_operator(model) if opset >= ROTARY_OPSET and _is_rope_fixed(model.config) else contextlib.nullcontext():
            yield
    finally:
        model.set_attn_implementation(previous)


def _is_rope_fixed(config: Any) -> bool:
    """Return whether the angles of rotary positions are the same at any length."""
    kinds = (getattr(config, "rope_parameters", None) or {}).values()
    return not any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds if isinstance(kind, dict))


class _SortedSet(set):
    """A set that iterates in sorted order if its elements can be sorted, not in the order of hashes."""

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(sorted(super().__iter__()))
        except TypeError:
            return super().__iter__()


@contextlib.contextmanager
def _sorted_sets(model: nn.Module) -> Iterator[None]:
    """Let `set` in the module of the model iterate in sorted order within the block, so that graphs are reproducible.

    ModernBERT, for instance, iterates over a set of its types of layers.
    """
    names = vars(sys.modules[type(model).__module__])
    with _LOCK:
        original = names.get("set")
        names["set"] = _SortedSet
        try:
            yield
        finally:
            if original is None:
                del names["set"]
            else:
                names["set"] = original


@contextlib.contextmanager
def _rotary_operator(model: nn.Module) -> Iterator[None]:
    """Trace ModernBERT's rotary positions within the block as one operator; stock code has seven each for queries and keys.

    Only the modules of `model` are changed, so that another thread's model of the class computes as before.
    """

    def angles(self: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, float [1, S, D / 2]; stock code has them twice, side by side."""
        radians = position_ids[..., None].float() * getattr(self, f"{layer_type}_inv_freq")
        scaling = getattr(self, f"{layer_type}_attention_scaling")
        return radians.cos() * scaling, radians.sin() * scaling

    def attend(
        self: Any,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Transpose queries, keys and values together, rotate queries and keys together; stock code does each separately."""
        batch, length, _ = hidden_states.shape
        heads = self.config.num_attention_heads
        states = self.Wqkv(hidden_states).view(batch, length, 3 * heads, self.head_dim).transpose(1, 2)
        queries_and_keys, value = states.split([2 * heads, heads], dim=1)
        cos, sin = (values.expand(batch, -1, -1) for values in position_embeddings)
        query, key = torch.onnx.ops.rotary_embedding(queries_and_keys, cos, sin).split(heads, dim=1)
        output, _ = _attention(self, query, key, value, attention_mask, scaling=self.head_dim**-0.5)
        return self.Wo(output.reshape(batch, length, -1)), None

    forwards: dict[type[nn.Module], Callable[..., Any]] = {
        modeling_modernbert.ModernBertRotaryEmbedding: angles,
        modeling_modernbert.ModernBertAttention: attend,
    }
    changed = [
        (module, forward) for module in model.modules() for kind, forward in forwards.items() if isinstance(module, kind)
    ]
    try:
        for module, function in changed:
            vars(module)["forward"] = MethodType(function, module)
        yield
    finally:
        for module, _ in changed:
            del vars(module)["forward"]


def check_installed() -> None:
    """Raise a ModelError if a package that exporting needs is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"Exporting needs the package {error.name}, which is not installed. Install the extra [onnx]: pip install "
            "'hf-tlm[onnx]'."
        ) from error


class _Logits(nn.Module):
    """A stock model as a function from input tensors in a fixed order to the named outputs alone."""

    def __init__(self, model: nn.Module, inputs: Sequence[str], outputs: Sequence[str]):
        super().__init__()
        self.model, self.inputs, self.outputs = model, tuple(inputs), tuple(outputs)

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output = self.model(**dict(zip(self.inputs, values, strict=True)), return_dict=True)
        return tuple(output[name] for name in self.outputs)


def check_size(models: Sequence[nn.Module]) -> None:
    """Raise a ModelError if the weights of the models together are too large for one graph."""
    if sum(parameter.numel() for model in models for parameter in model.parameters()) * 4 > MAX_BYTES:
        subject, hint = ("this model", "") if len(models) == 1 else ("these models together", " Pass fewer models.")
        raise ModelError(
            f"An ONNX file with its weights can have at most 2 GiB, and the weights of {subject} need more.{hint}"
        )


def to_onnx(
    model: nn.Module,
    inputs: Sequence[str],
    outputs: Sequence[str] = ("logits",),
    *,
    choices: bool = False,
    longest: int | None = None,
    opset: int = OPSET,
) -> Any:
    """Export a stock model in float32 as an ONNX graph (`onnx.ModelProto`).

    Args:
        model: of transformers; it is exported in evaluation mode.
        inputs: names of its arguments, int64 [B, S] each.
        outputs: names of the outputs.
        choices: inputs are int64 [B, C, S].
        longest: maximum of S; None: no limit.
        opset: of ONNX's own operators.

    Raises:
        ModelError: the exporter cannot trace the model or cannot write it in this opset; or it is too large for one file.
    """
    check_size([model])
    shape = (2, 3, 7) if choices else (2, 7)
    mask = torch.ones(shape, dtype=torch.int64)
    mask[..., -2:] = 0
    values = tuple(mask if name == "attention_mask" else torch.ones(shape, dtype=torch.int64) for name in inputs)
    dims = [("batch", _MAX_DIM), *([("choices", _MAX_DIM)] if choices else []), ("sequence", longest or _MAX_DIM)]
    dynamic = {axis: torch.export.Dim(name, min=1, max=maximum) for axis, (name, maximum) in enumerate(dims)}
    was_training = model.training
    try:
        with _silence_exporter(), _sorted_sets(model), exportable_attention(model, opset):
            program = torch.onnx.export(
                _Logits(model.eval(), inputs, outputs),
                values,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_shapes=(tuple(dynamic for _ in inputs),),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = " ".join(str(error.__cause__ or error).split())
        raise ModelError(f"torch cannot export this {type(model).__name__} to ONNX: {cause:.300}") from error
    finally:
        model.train(was_training)
    assert program is not None
    graph = program.model_proto
    _strip_notes(graph)
    check_plain(graph, opset)
    return graph


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter's logs and warnings, which are for its developers, within the block."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _strip_notes(model: Any) -> None:
    graph = model.graph
    for entry in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        entry.ClearField("doc_string")
        entry.ClearField("metadata_props")
    graph.ClearField("value_info")


def check_plain(model: Any, opset: int | None = None) -> None:
    """Raise a ModelError unless a graph uses only ONNX's own operators, of this `opset`, and contains all of its weights."""
    others = {f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in ("", "ai.onnx")}
    others |= {f"function {function.name}" for function in model.functions}
    others |= {f"{tensor.name} in another file" for tensor in model.graph.initializer if tensor.data_location}
    if others:
        raise ModelError(f"The graph would need other operators than ONNX's own: {', '.join(sorted(others)[:3])}.")
    opsets = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if opset is not None and opsets != [opset]:
        raise ModelError(
            f"The exporter cannot write this model in opset {opset} (it wrote {opsets[0]}). Choose another, such as {OPSET}."
        )


def save(model: Any, path: Path) -> None:
    """Write a graph to a file; equal graphs give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def quantized(model: Any, *, per_channel: bool = True, keep_float: Sequence[str] = ()) -> Any:
    """Return the graph with 8-bit weights; activations are quantised dynamically.

    Weights of matrix products use 7 of the 8 bits: with 8, 16-bit sums overflow on processors without VNNI, and results
    would depend on the machine.

    Args:
        model: of `to_onnx`.
        per_channel: one scale for every output of a matrix, instead of one for the matrix.
        keep_float: the `PARTS` that stay in float32.
    """
    import onnx

    # onnxruntime splits a Gemm, and names its product with this suffix.
    excluded = [name + suffix for part in keep_float for name in _find_nodes(model, part) for suffix in ("", "_MatMul")]
    with tempfile.TemporaryDirectory() as scratch, _restore_process():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = os.path.join(scratch, "model.onnx")
        quantize_dynamic(
            model,
            path,
            per_channel=per_channel,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=excluded,
        )
        graph = onnx.load(path)
    _strip_notes(graph)
    check_plain(graph)
    return graph


@contextlib.contextmanager
def _restore_process() -> Iterator[None]:
    """Undo, after the block, what onnxruntime's tools change for the process: logging, and `sys.path`.

    They log by the root logger, which gets a handler if it has none: a program's `logging.basicConfig` would then do
    nothing. Their advice to optimise the graph first, which the exporter has done, is not shown.
    """
    disabled, handlers, path = logging.root.manager.disable, list(logging.root.handlers), list(sys.path)
    logging.disable(max(disabled, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(disabled)  # Not only the attribute: loggers cache what is disabled until this call.
        for handler in set(logging.root.handlers).difference(handlers):
            logging.root.removeHandler(handler)
        sys.path[:] = path


def _find_nodes(model: Any, part: str) -> list[str]:
    """Return the names of the nodes of a part: the look-ups in embeddings, or the last product with weights, the head."""
    weights = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    if part == "embeddings":
        return [node.name for node in model.graph.node if node.op_type == "Gather" and node.input[0] in weights]
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm") and node.input[1] in weights]
    return [products[-1].name]


def half(model: Any) -> Any:
    """Return the graph with weights and activations in float16; its logits are float32."""
    with warnings.catch_warnings(), _restore_process():
        from onnxruntime.transformers.float16 import convert_float_to_float16

        warnings.simplefilter("ignore")  # About weights too small for float16.
        graph = convert_float_to_float16(model, keep_io_types=True)
    _strip_notes(graph)
    check_plain(graph)
    return graph


def averaged(models: Sequence[Any], *, shares: bool) -> Any:
    """Join several graphs with the same inputs to one, which returns the average of what each of them computes.

    Args:
        models: of `to_onnx`, `quantized` or `half`, with an output `logits`.
        shares: True for classes: the average is of probabilities, and `logits` are its logarithms. False: the average is of
            the values themselves.
    """
    import onnx
    from onnx import helper

    renamed_models = [
        onnx.compose.add_prefix(model, f"model_{index}/", rename_inputs=False, rename_outputs=True)
        for index, model in enumerate(models)
    ]
    joined = onnx.ModelProto()
    joined.CopyFrom(renamed_models[0])
    graph = joined.graph
    for renamed_model in renamed_models[1:]:
        graph.node.extend(renamed_model.graph.node)
        graph.initializer.extend(renamed_model.graph.initializer)
    output_names = [renamed_model.graph.output[0].name for renamed_model in renamed_models]
    if shares:
        graph.node.extend(
            helper.make_node("Softmax", [name], [f"{name}/shares"], f"{name}/softmax", axis=-1) for name in output_names
        )
        output_names = [f"{name}/shares" for name in output_names]
    output = "average" if shares else "logits"
    graph.node.append(helper.make_node("Mean", output_names, [output], "mean"))
    if shares:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(MIN_PROB, dtype=np.float32), "least"))
        graph.node.append(helper.make_node("Max", ["average", "least"], ["shares"], "no_zero"))
        graph.node.append(helper.make_node("Log", ["shares"], ["logits"], "log"))
    del graph.output[1:]
    graph.output[0].name = "logits"
    check_plain(joined)
    return joined
