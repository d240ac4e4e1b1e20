"""Kinds of heads on constructed attention, and the counts against a transcription of the definitions, row by row."""

import pytest
import torch

from hf_tlm.analysis import AnalysisError, AttentionHead, LayerShares, count_maxima, layer_shares


def looking(columns):
    """A map [1, 1, S, S] whose rows look at these columns alone."""
    return torch.nn.functional.one_hot(torch.tensor(columns), len(columns)).float()[None, None]


def head_of(maps, separators=(), mask=None):
    """The single head of maps [B, 1, S, S]."""
    mask = torch.ones(len(maps), maps.shape[-1], dtype=torch.int64) if mask is None else torch.tensor(mask)
    special = torch.zeros_like(mask, dtype=torch.bool)
    special[:, list(separators)] = True
    return AttentionHead(1, 1, int(mask.sum()), *count_maxima(maps, mask, special)[0].tolist())


def plainly(maps, mask, special):
    counts = [[0] * 4 for _ in range(maps.shape[1])]
    for text in range(len(maps)):
        places = [place for place in range(maps.shape[-1]) if mask[text, place]]
        for head in range(maps.shape[1]):
            for row in places:
                best = max(float(maps[text, head, row, place]) for place in places)
                tops = {place for place in places if float(maps[text, head, row, place]) == best}
                counts[head][0] += tops == {row - 1}
                counts[head][1] += tops == {row + 1}
                counts[head][2] += tops <= {row - 1, row + 1}
                counts[head][3] += tops <= {place for place in places if special[text, place]}
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_the_definitions(seed):
    generator = torch.Generator().manual_seed(seed)
    # Few values: a third of the rows have ties.
    maps = torch.randint(1, 6, (4, 3, 9, 9), generator=generator).float()
    special = torch.rand(4, 9, generator=generator) < 0.4
    mask = torch.ones(4, 9, dtype=torch.int64)
    mask[1, 6:], mask[2, :3], mask[3, 1:] = 0, 0, 0  # Padding on the right, on the left, and all but one token.
    assert count_maxima(maps, mask, special).tolist() == plainly(maps, mask, special)


def test_a_head_that_looks_left_or_right_or_at_both_is_positional():
    left = head_of(looking([0, *range(19)]))
    assert (left.previous, left.next, left.adjacent, left.kind) == (19, 0, 19, "positional")
    right = head_of(looking([*range(1, 20), 19]))
    assert (right.previous, right.next, right.kind) == (0, 19, "positional")
    mixed = head_of(looking([row + 1 if row % 2 == 0 else row - 1 for row in range(20)]))
    assert (mixed.previous, mixed.next, mixed.adjacent, mixed.kind) == (10, 10, 20, "positional")
    assert head_of(looking(list(range(20)))).kind == "other"


def test_a_head_that_looks_at_separators_is_vertical():
    assert head_of(looking([19] * 20), separators=[0, 19]).kind == "vertical"
    assert head_of(looking([0, 7, 19, 0] * 5), separators=[0, 7, 19]).kind == "vertical"
    assert head_of(looking([7] * 20), separators=[0, 19]).kind == "other"


@pytest.mark.parametrize(("hits", "kind"), [(89, "other"), (90, "x"), (91, "x")])
def test_ninety_percent_is_enough(hits, kind):
    expected = "positional" if kind == "x" else kind
    assert head_of(looking([row + 1 if row < hits else row for row in range(100)])).kind == expected
    expected = "vertical" if kind == "x" else kind
    assert head_of(looking([50 if row < hits else 51 for row in range(100)]), separators=[50]).kind == expected


def test_padding_plays_no_part():
    maps = torch.full((1, 1, 30, 30), 0.9)  # Of padding, in rows and columns.
    maps[0, 0, :20, :20] = looking([0, *range(19)])[0, 0] * 0.5
    mask = [[1] * 20 + [0] * 10]
    assert head_of(maps, mask=mask).kind == "positional"
    assert head_of(maps.flip(2, 3), mask=[mask[0][::-1]]).next == 19
    maps[0, 0, 25] = torch.nan  # As rows of nothing but padding may be.
    assert head_of(maps, mask=mask).rows == 20 and head_of(maps, mask=mask).kind == "positional"


def test_ties():
    even = torch.full((1, 1, 20, 20), 0.05)
    found = head_of(even, separators=[0, 19])
    assert (found.adjacent, found.separators, found.kind) == (0, 0, "other")
    both = torch.zeros(1, 1, 20, 20)
    for row in range(20):
        both[0, 0, row, [place for place in (row - 1, row + 1) if 0 <= place < 20]] = 0.5
    found = head_of(both)
    assert (found.previous, found.next, found.adjacent, found.kind) == (1, 1, 20, "positional")
    ends = torch.zeros(1, 1, 20, 20)
    ends[..., [0, 19]] = 0.5
    assert head_of(ends, separators=[0, 19]).separators == 20 and head_of(ends, separators=[0]).separators == 0


def test_a_head_that_is_both_is_positional():
    found = head_of(looking([1, 0]), separators=[0, 1])
    assert (found.adjacent, found.separators, found.kind) == (2, 2, "positional")


def test_weights_that_are_not_numbers():
    maps = looking([0, 0, 1])
    maps[0, 0, 1, 2] = torch.nan
    with pytest.raises(AnalysisError, match="the model has diverged"):
        head_of(maps)


def test_shares_of_layers():
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
