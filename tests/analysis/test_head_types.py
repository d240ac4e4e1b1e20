"""Kinds of attention heads on constructed maps, and the counts against a row-by-row transcription of the definitions."""

import pytest
import torch

from hf_tlm.analysis import AnalysisError, AttentionHead, LayerShares, count_maxima, layer_shares


def map_attending_to(columns):
    """Return a map [1, 1, S, S] whose rows attend only to the given columns."""
    return torch.nn.functional.one_hot(torch.tensor(columns), len(columns)).float()[None, None]


def head_of(maps, separators=(), mask=None):
    """Return the single head of maps [B, 1, S, S]."""
    mask = torch.ones(len(maps), maps.shape[-1], dtype=torch.int64) if mask is None else torch.tensor(mask)
    special = torch.zeros_like(mask, dtype=torch.bool)
    special[:, list(separators)] = True
    return AttentionHead(1, 1, int(mask.sum()), *count_maxima(maps, mask, special)[0].tolist())


def counts_by_definition(maps, mask, special):
    counts = [[0] * 4 for _ in range(maps.shape[1])]
    for text in range(len(maps)):
        columns = [column for column in range(maps.shape[-1]) if mask[text, column]]
        for head in range(maps.shape[1]):
            for row in columns:
                best = max(float(maps[text, head, row, column]) for column in columns)
                tops = {column for column in columns if float(maps[text, head, row, column]) == best}
                counts[head][0] += tops == {row - 1}
                counts[head][1] += tops == {row + 1}
                counts[head][2] += tops <= {row - 1, row + 1}
                counts[head][3] += tops <= {column for column in columns if special[text, column]}
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_counts_follow_the_definitions(seed):
    generator = torch.Generator().manual_seed(seed)
    # Few distinct values, so that a third of the rows have ties.
    maps = torch.randint(1, 6, (4, 3, 9, 9), generator=generator).float()
    special = torch.rand(4, 9, generator=generator) < 0.4
    mask = torch.ones(4, 9, dtype=torch.int64)
    mask[1, 6:], mask[2, :3], mask[3, 1:] = 0, 0, 0  # Padding on the right, on the left, and all but one token.
    assert count_maxima(maps, mask, special).tolist() == counts_by_definition(maps, mask, special)


def test_head_that_attends_to_neighbours_is_positional():
    left = head_of(map_attending_to([0, *range(19)]))
    assert (left.previous, left.next, left.adjacent, left.kind) == (19, 0, 19, "positional")
    right = head_of(map_attending_to([*range(1, 20), 19]))
    assert (right.previous, right.next, right.kind) == (0, 19, "positional")
    mixed = head_of(map_attending_to([row + 1 if row % 2 == 0 else row - 1 for row in range(20)]))
    assert (mixed.previous, mixed.next, mixed.adjacent, mixed.kind) == (10, 10, 20, "positional")
    assert head_of(map_attending_to(list(range(20)))).kind == "other"


def test_head_that_attends_to_separators_is_vertical():
    assert head_of(map_attending_to([19] * 20), separators=[0, 19]).kind == "vertical"
    assert head_of(map_attending_to([0, 7, 19, 0] * 5), separators=[0, 7, 19]).kind == "vertical"
    assert head_of(map_attending_to([7] * 20), separators=[0, 19]).kind == "other"


@pytest.mark.parametrize(("hits", "kind"), [(89, "other"), (90, "x"), (91, "x")])
def test_ninety_percent_of_the_rows_suffice(hits, kind):
    expected = "positional" if kind == "x" else kind
    assert head_of(map_attending_to([row + 1 if row < hits else row for row in range(100)])).kind == expected
    expected = "vertical" if kind == "x" else kind
    assert head_of(map_attending_to([50 if row < hits else 51 for row in range(100)]), separators=[50]).kind == expected


def test_padding_is_ignored():
    maps = torch.full((1, 1, 30, 30), 0.9)  # The rows and columns of padding.
    maps[0, 0, :20, :20] = map_attending_to([0, *range(19)])[0, 0] * 0.5
    mask = [[1] * 20 + [0] * 10]
    assert head_of(maps, mask=mask).kind == "positional"
    assert head_of(maps.flip(2, 3), mask=[mask[0][::-1]]).next == 19
    maps[0, 0, 25] = torch.nan  # Rows of padding may be NaN.
    assert head_of(maps, mask=mask).rows == 20 and head_of(maps, mask=mask).kind == "positional"


def test_tied_maxima_must_all_be_of_the_kind():
    even = torch.full((1, 1, 20, 20), 0.05)
    head = head_of(even, separators=[0, 19])
    assert (head.adjacent, head.separators, head.kind) == (0, 0, "other")
    both = torch.zeros(1, 1, 20, 20)
    for row in range(20):
        both[0, 0, row, [column for column in (row - 1, row + 1) if 0 <= column < 20]] = 0.5
    head = head_of(both)
    assert (head.previous, head.next, head.adjacent, head.kind) == (1, 1, 20, "positional")
    ends = torch.zeros(1, 1, 20, 20)
    ends[..., [0, 19]] = 0.5
    assert head_of(ends, separators=[0, 19]).separators == 20 and head_of(ends, separators=[0]).separators == 0


def test_head_that_is_positional_and_vertical_is_positional():
    head = head_of(map_attending_to([1, 0]), separators=[0, 1])
    assert (head.adjacent, head.separators, head.kind) == (2, 2, "positional")


def test_nan_attention_weights_are_refused():
    maps = map_attending_to([0, 0, 1])
    maps[0, 0, 1, 2] = torch.nan
    with pytest.raises(AnalysisError, match="the model has diverged"):
        head_of(maps)


def test_shares_of_kinds_per_layer_and_overall():
    counts = {"positional": (9, 0, 9, 0), "vertical": (0, 0, 0, 9), "other": (0, 0, 0, 0)}
    kinds = [(1, "positional"), (1, "other"), (2, "vertical"), (2, "vertical"), (2, "other"), (2, "other")]
    heads = [AttentionHead(layer, head, 10, *counts[kind]) for head, (layer, kind) in enumerate(kinds, 1)]
    assert [head.kind for head in heads] == [kind for _, kind in kinds]
    assert layer_shares(heads) == [
        LayerShares(1, 2, 50.0, 0.0, 50.0),
        LayerShares(2, 4, 0.0, 50.0, 50.0),
        LayerShares(None, 6, 100 / 6, 100 / 3, 50.0),
    ]
    assert layer_shares([]) == []
