"""Per-text gradients for each kind of parameter: the form in which they are stored, and their inner products.

The gradient of a linear layer's weight W is the sum over tokens s of b_s a_s^T, with a_s the input and b_s the gradient of
the output; the gradient of its bias is the sum of b_s. The inner product of two weight gradients is
sum_su (a_s . a_u) (b_s . b_u), which needs no gradient of W at all: inputs and output gradients are captured token by token.

The gradient classes below share one interface. Task batches' gradients are computed once (`plan`, `start`, `add`, `finish`)
and stored as named tensors. `of_passages` brings the gradients of passages into the form that `products` expects
(`numbers_of_a_passage` numbers in memory for each), and `products` returns the inner products, float [N, T].

Shapes: A tokens, M masked tokens, K tokens of the vocabulary, N passages, T task batches, I and O inputs and outputs, E
width of the output embedding, H width of an embedding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import xxhash
from torch import nn

Tensors = dict[str, torch.Tensor]
# Numbers in the largest intermediate result: 64 MiB of float32.
MAX_NUMBERS = 1 << 24
# Assumed minimum of a passage's tokens that take part in its gradient. A task batch stored as factors costs this many times
# the size of its factors, a complete gradient its size once.
_TOKENS = 8


@dataclass
class Tokens:
    """A module's inputs and output gradients at the A tokens whose output has a nonzero gradient, ordered by text.

    text: int64 [A], the index of each token's text. inputs: float [A, I], or int64 [A] for an embedding. gradients: float
    [A, O], of the loss with respect to the module's output. Floats are float32 or wider.
    """

    text: torch.Tensor
    inputs: torch.Tensor
    gradients: torch.Tensor

    def of_texts(self, text: torch.Tensor) -> Tokens:
        """Return the same tokens assigned to other texts, int64 [A], and ordered by them."""
        order = torch.argsort(text, stable=True)
        return Tokens(text[order], self.inputs[order], self.gradients[order])


@dataclass
class Decoded:
    """The factors of the output embedding's gradient.

    Row k of a text's gradient is the sum over its masked tokens m of errors[m, k] hidden[m].

    vocabulary: int64 [K], token ids, ascending. text: int64 [M], ascending. hidden: float [M, E]. errors: float [M, K],
    softmax minus one-hot at the vocabulary's tokens, divided by the number of masked tokens of the text. Floats are float32
    or wider.
    """

    vocabulary: torch.Tensor
    text: torch.Tensor
    hidden: torch.Tensor
    errors: torch.Tensor


class Capture:
    """A context manager that records the inputs and outputs of modules in a forward pass without parameter gradients.

    The outputs are set to require a gradient, so autograd's graph begins at them and everything before them is a plain
    forward pass. The first dimension of inputs and outputs is the text.

    Args:
        num_texts: number of texts; an output that is computed once for all texts, such as position embeddings, is expanded
            to a row for each.
        tail: modules that see the tokens of all texts concatenated, [1, M, ...] (see `Tail`).
        tail_text: int64 [M], the texts of these tokens.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        num_texts: int,
        tail: Collection[nn.Module] = (),
        tail_text: torch.Tensor | None = None,
    ):
        self.modules, self.num_texts = list(modules), num_texts
        self._text = [tail_text if module in tail else None for module in self.modules]
        self._calls: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in self.modules]

    def __enter__(self) -> Capture:
        self._handles = [module.register_forward_hook(self._record_call) for module in self.modules]
        return self

    def __exit__(self, *error) -> None:
        for handle in self._handles:
            handle.remove()

    def _record_call(self, module: nn.Module, arguments: tuple, output: torch.Tensor) -> torch.Tensor:
        module_index, inputs = self.modules.index(module), arguments[0]
        if len(output) != self.num_texts and self._text[module_index] is None:
            inputs = inputs.expand(self.num_texts, *inputs.shape[1:])
            output = output.expand(self.num_texts, *output.shape[1:])
        # Has no effect on an output that requires a gradient already.
        output.requires_grad_()
        self._calls[module_index].append((inputs.detach(), output))
        return output

    def tokens(self, loss: torch.Tensor) -> list[Tokens]:
        """Return the tokens of each module, over all of its calls. Frees the autograd graph."""
        outputs = [output for calls in self._calls for _, output in calls]
        gradients = iter(torch.autograd.grad(loss, outputs, allow_unused=True))
        tokens = []
        for calls, text in zip(self._calls, self._text, strict=True):
            parts = [_select_active_tokens(inputs, output, next(gradients), text) for inputs, output in calls]
            calls.clear()
            tokens.append(parts[0] if len(parts) == 1 else _concatenate_tokens(parts))
        return tokens


def _concatenate_tokens(parts: Sequence[Tokens]) -> Tokens:
    text = torch.cat([part.text for part in parts])
    inputs, gradients = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "gradients"))
    return Tokens(text, inputs, gradients).of_texts(text)


def _select_active_tokens(
    inputs: torch.Tensor, output: torch.Tensor, gradient: torch.Tensor | None, tail_text: torch.Tensor | None
) -> Tokens:
    if gradient is None:
        gradient = torch.zeros_like(output)
    active = (gradient != 0).any(dim=-1)
    gradients, inputs = gradient[active], inputs[active]
    wide = torch.promote_types(gradients.dtype, torch.float32)
    if inputs.is_floating_point():
        inputs = inputs.to(wide)
    text = active.nonzero()[:, 0] if tail_text is None else tail_text[active[0]]
    return Tokens(text, inputs, gradients.to(wide))


def _slices(length: int, width: int) -> Iterator[slice]:
    """Return slices of the rows of a [length, width] array, each of at most MAX_NUMBERS numbers or of one row."""
    step = max(1, MAX_NUMBERS // max(1, width))
    return (slice(start, start + step) for start in range(0, length, step))


def _membership(text: torch.Tensor, num_texts: int, like: torch.Tensor) -> torch.Tensor:
    """Return [num_texts, A], 1 where a token belongs to a text: a product with it sums over the tokens of each text."""
    table = like.new_zeros(num_texts, len(text))
    table[text, torch.arange(len(text), device=text.device)] = 1
    return table


def _sum_by(text: torch.Tensor, values: torch.Tensor, num_texts: int) -> torch.Tensor:
    """Return [num_texts, D], the sums of `values` [A, D] over the tokens of each text."""
    return values.new_zeros(num_texts, values.shape[1]).index_add_(0, text, values)


class VectorGradient:
    """The gradient of a bias or of a LayerNorm's weight: one number per output of the layer, stored as it is.

    LayerNorm's weight multiplies the normalised input, so its gradient is the sum of b_s times the normalised input.
    """

    def __init__(self, key: str, module: nn.Module, attribute: str):
        self.key, self.module, self.attribute = key, module, attribute
        self.numbers_of_a_passage = getattr(module, attribute).numel()

    def plan(self, tokens_per_task: float) -> int:
        """Return how many numbers are stored for a task batch."""
        return self.numbers_of_a_passage

    def start(self, num_tasks: int, like: torch.Tensor) -> Tensors:
        return {"sum": like.new_zeros(num_tasks, self.numbers_of_a_passage)}

    def add(self, store: Tensors, tokens: Tokens) -> None:
        store["sum"].index_add_(0, tokens.text, self._values(tokens))

    def finish(self, store: Tensors) -> Tensors:
        return store

    def of_passages(self, tokens: Tokens, num_passages: int, decoded: Decoded | None) -> torch.Tensor:
        return _sum_by(tokens.text, self._values(tokens), num_passages)

    def products(self, passages: torch.Tensor, tasks: Tensors, num_tasks: int) -> torch.Tensor:
        return passages @ tasks["sum"].T

    def _values(self, tokens: Tokens) -> torch.Tensor:
        if isinstance(self.module, nn.LayerNorm) and self.attribute == "weight":
            return tokens.gradients * F.layer_norm(tokens.inputs, self.module.normalized_shape, eps=self.module.eps)
        return tokens.gradients


class MatrixGradient:
    """The gradient of a linear layer's weight: stored as factors (the batch's tokens) or complete, whichever costs less.

    Args:
        projection_dim: project inputs and output gradients to this many dimensions with seeded Gaussian matrices, divided by
            the square root of `projection_dim`. This is a Kronecker product of two random projections and preserves inner
            products in expectation. A side that is not wider than `projection_dim` is not projected.
    """

    def __init__(self, key: str, module: nn.Linear, projection_dim: int | None = None, seed: int = 0):
        self.key, self.whole = key, False
        self.sides = [module.in_features, module.out_features]
        self._projections: list[torch.Tensor | None] = [None, None]
        for side, width in enumerate(self.sides):
            if projection_dim is not None and projection_dim < width:
                generator = torch.Generator().manual_seed(
                    xxhash.xxh3_64_intdigest(f"{key}/{side}".encode(), seed=seed % 2**64) >> 1
                )
                matrix = torch.randn(width, projection_dim, generator=generator, dtype=torch.float64)
                wide = torch.promote_types(module.weight.dtype, torch.float32)
                self._projections[side] = (matrix / projection_dim**0.5).to(wide).to(module.weight.device)
                self.sides[side] = projection_dim

    def plan(self, tokens_per_task: float) -> int:
        """Decide how task batches of `tokens_per_task` tokens are stored; return how many numbers one takes."""
        whole, factors = self.sides[0] * self.sides[1], round(tokens_per_task * sum(self.sides))
        self.whole = whole <= _TOKENS * factors
        return whole if self.whole else factors

    @property
    def numbers_of_a_passage(self) -> int:
        return self.sides[0] * self.sides[1] if self.whole else 0

    def start(self, num_tasks: int, like: torch.Tensor) -> dict:
        return {"whole": like.new_zeros(num_tasks, self.sides[1], self.sides[0])} if self.whole else {"tokens": []}

    def add(self, store: dict, tokens: Tokens) -> None:
        if self.whole:
            self._add_products(store["whole"], tokens)
        else:
            store["tokens"].append((tokens.text, *self._factors(tokens)))

    def finish(self, store: dict) -> Tensors:
        if self.whole:
            return {"whole": store["whole"].flatten(1)}
        return dict(zip(("task", "inputs", "gradients"), map(torch.cat, zip(*store["tokens"], strict=True)), strict=True))

    def of_passages(self, tokens: Tokens, num_passages: int, decoded: Decoded | None) -> tuple[torch.Tensor, ...]:
        if not self.whole:
            a, b = self._factors(tokens)
            return _membership(tokens.text, num_passages, b), a, b
        gradients = tokens.gradients.new_zeros(num_passages, self.sides[1], self.sides[0])
        self._add_products(gradients, tokens)
        return (gradients.flatten(1),)

    def products(self, passages: tuple[torch.Tensor, ...], tasks: Tensors, num_tasks: int) -> torch.Tensor:
        if self.whole:
            return passages[0] @ tasks["whole"].T
        membership, a, b = passages
        result = a.new_zeros(num_tasks, len(membership))
        for task_rows in _slices(len(tasks["task"]), len(a)):
            products = (a @ tasks["inputs"][task_rows].T).mul_(b @ tasks["gradients"][task_rows].T)
            result.index_add_(0, tasks["task"][task_rows], (membership @ products).T)
        return result.T

    def _factors(self, tokens: Tokens) -> list[torch.Tensor]:
        factors = (tokens.inputs, tokens.gradients)
        return [x if p is None else x @ p for x, p in zip(factors, self._projections, strict=True)]

    def _add_products(self, gradients: torch.Tensor, tokens: Tokens) -> None:
        """Add each text's sum of b_s a_s^T to `gradients`, [N, O, I]."""
        a, b = self._factors(tokens)
        texts, counts = torch.unique_consecutive(tokens.text, return_counts=True)
        stop = 0
        for text, count in zip(texts.tolist(), counts.tolist(), strict=True):
            start, stop = stop, stop + count
            gradients[text].addmm_(b[start:stop].T, a[start:stop])


class EmbeddingGradient:
    """The gradient of an embedding: a row for each token id of a text, the sum of its b_s. The padding token has none.

    If the output embedding is tied to this parameter, it adds to every row of a passage's gradient; only the rows that occur
    in some task batch are computed.
    """

    def __init__(self, key: str, module: nn.Embedding, tied: bool):
        self.key, self.module, self.tied = key, module, tied

    def plan(self, tokens_per_task: float) -> int:
        """Return the largest number of numbers that are stored for a task batch."""
        return round(tokens_per_task * self.module.embedding_dim)

    numbers_of_a_passage = 0

    def start(self, num_tasks: int, like: torch.Tensor) -> dict:
        return {"rows": [], "count": num_tasks}

    def add(self, store: dict, tokens: Tokens) -> None:
        store["rows"].append(self._rows(tokens.inputs, tokens.text, tokens.gradients, store["count"]))

    def finish(self, store: dict) -> Tensors:
        ids, tasks, rows = map(torch.cat, zip(*store["rows"], strict=True))
        return dict(zip(("id", "task", "rows"), self._rows(ids, tasks, rows, store["count"]), strict=True))

    def of_passages(self, tokens: Tokens, num_passages: int, decoded: Decoded | None) -> tuple:
        rows = self._rows(tokens.inputs, tokens.text, tokens.gradients, num_passages)
        return (*rows, num_passages, decoded if self.tied else None)

    def products(self, passages: tuple, tasks: Tensors, num_tasks: int) -> torch.Tensor:
        ids, text, rows, num_passages, decoded = passages
        result = rows.new_zeros(num_passages, num_tasks)
        passage_ids, task_ids = (torch.unique_consecutive(x, return_counts=True) for x in (ids, tasks["id"]))
        _, passage_positions, task_positions = np.intersect1d(
            passage_ids[0].cpu(), task_ids[0].cpu(), assume_unique=True, return_indices=True
        )
        passage_starts, task_starts = (
            np.concatenate([[0], counts.cpu().numpy().cumsum()]) for _, counts in (passage_ids, task_ids)
        )
        for i, j in zip(passage_positions.tolist(), task_positions.tolist(), strict=True):
            p, t = slice(passage_starts[i], passage_starts[i + 1]), slice(task_starts[j], task_starts[j + 1])
            # Each text and each task batch has at most one row per token id, so no index repeats.
            result[text[p, None], tasks["task"][t]] += rows[p] @ tasks["rows"][t].T
        if decoded is not None:
            result += self._decoded_products(decoded, tasks, num_passages, num_tasks)
        return result

    def _decoded_products(self, decoded: Decoded, tasks: Tensors, num_passages: int, num_tasks: int) -> torch.Tensor:
        membership = _membership(decoded.text, num_passages, decoded.hidden)
        result = decoded.hidden.new_zeros(num_tasks, num_passages)
        column = torch.searchsorted(decoded.vocabulary, tasks["id"])
        for task_rows in _slices(len(column), len(decoded.text)):
            products = (decoded.hidden @ tasks["rows"][task_rows].T).mul_(decoded.errors[:, column[task_rows]])
            result.index_add_(0, tasks["task"][task_rows], (membership @ products).T)
        return result.T

    def _rows(
        self, ids: torch.Tensor, text: torch.Tensor, rows: torch.Tensor, num_texts: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sum rows [A, H] that have the same token id and text; return ids, texts and sums, ordered by id, then by text."""
        if self.module.padding_idx is not None:
            real = ids != self.module.padding_idx
            ids, text, rows = ids[real], text[real], rows[real]
        pairs, pair_index = torch.unique(ids * num_texts + text, return_inverse=True)
        return pairs // num_texts, pairs % num_texts, _sum_by(pair_index, rows, len(pairs))
