import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_tlm.data import TlmCollator, TokenizerError
from hf_tlm.data.masking import choose_spans, mask_tokens, uniforms, word_continuations, word_starts
from support.kind_toys import TOKENIZERS

MASK, V = 4, 1000


def corrupt(ids, draws, seed=0, probability=0.15, maskable=None, **options):
    """Corrupt texts of equal length, [B, S]."""
    maskable = np.ones_like(ids, dtype=bool) if maskable is None else maskable
    tokens = [values.ravel() for values in (ids, maskable, *tokens_of(draws, ids.shape[1]))]
    pair = mask_tokens(*tokens, seed=seed, mlm_probability=probability, mask_token_id=MASK, vocab_size=V, **options)
    return tuple(values.reshape(ids.shape) for values in pair)


def tokens_of(draws, length):
    """Return the visit and position of every token, [B, S]."""
    return np.repeat(draws[:, None], length, axis=1), np.tile(np.arange(length), (len(draws), 1))


def table(seed, draws, length, stream):
    return uniforms(seed, *tokens_of(draws, length), stream=stream)


def test_uniforms_are_uniform_and_uncorrelated():
    values = table(0, np.arange(300), 200, stream=0)
    histogram, _ = np.histogram(values, bins=10, range=(0, 1))
    assert values.min() >= 0 and values.max() < 1
    assert abs(histogram / values.size - 0.1).max() < 0.005
    # Neighbouring positions, texts, tables and seeds are uncorrelated.
    for other in (
        np.roll(values, 1, axis=0),
        np.roll(values, 1, axis=1),
        table(0, np.arange(300), 200, stream=1),
        table(1, np.arange(300), 200, stream=0),
    ):
        assert abs(np.corrcoef(values.ravel(), other.ravel())[0, 1]) < 0.015


def test_masking_shares_are_15_80_10_10():
    ids = np.random.default_rng(0).integers(5, V, (500, 120))
    corrupted, labels = corrupt(ids, np.arange(500))
    chosen = labels != -100
    assert abs(chosen.mean() - 0.15) < 0.005
    masked, kept = (corrupted == MASK) & chosen, (corrupted == ids) & chosen
    assert abs(masked.sum() / chosen.sum() - 0.8) < 0.015
    assert abs(kept.sum() / chosen.sum() - 0.1) < 0.015
    assert (corrupted == ids)[~chosen].all()
    assert (labels[chosen] == ids[chosen]).all()
    replaced = corrupted[chosen & ~masked & ~kept]
    assert replaced.min() < 50 and replaced.max() > V - 50


def test_special_tokens_are_never_chosen():
    ids = np.random.default_rng(0).integers(5, V, (50, 40))
    maskable = np.random.default_rng(1).random(ids.shape) < 0.5
    _, labels = corrupt(ids, np.arange(50), probability=0.9, maskable=maskable)
    assert (labels[~maskable] == -100).all() and (labels[maskable] != -100).mean() > 0.8


def test_masks_depend_on_the_visit_and_not_on_the_batch():
    ids = np.random.default_rng(0).integers(5, V, (8, 30))
    draws = np.array([3, 1, 4, 1000003, 59, 26, 53, 58])
    whole, _ = corrupt(ids, draws)
    for i in range(8):
        alone, _ = corrupt(ids[i : i + 1, :], draws[i : i + 1])
        padded, _ = corrupt(np.pad(ids[i : i + 1], ((0, 0), (0, 9))), draws[i : i + 1])
        assert (alone[0] == whole[i]).all() and (padded[0, :30] == whole[i]).all()
    other_visit, _ = corrupt(ids, draws + 77)
    other_seed, _ = corrupt(ids, draws, seed=1)
    assert (other_visit != whole).any(axis=1).all() and (other_seed != whole).any(axis=1).all()


def spans_of(draw, length, seed, probability):
    """Return a text's spans one by one: each position may start a span of geometric length, at most 10 tokens."""
    chances = [0.2 * 0.8**k for k in range(10)]
    lasts = [sum(chances[k:]) / sum(chances) for k in range(10)]  # P(l > k)
    candidates = np.linspace(0, 1, 100_001)  # Such that a token is in no span with probability 1 - `probability`.
    begins = candidates[np.prod([1 - candidates * share for share in lasts], axis=0) <= 1 - probability][0]
    spans = []
    for start in range(-9, length):
        number = uniforms(seed, np.array([draw]), np.array([start]), stream=0)[0]
        if number < begins:
            spans.append((start, start + sum(number < begins * share for share in lasts)))
    return spans


def test_spans_equal_a_plain_loop():
    draws, length, seed, probability = np.arange(40), 50, 3, 0.2
    chosen = choose_spans(*(values.ravel() for values in tokens_of(draws, length)), seed, probability).reshape(40, length)
    different = 0
    for draw in draws:
        expected = np.zeros(length, dtype=bool)
        for start, end in spans_of(draw, length, seed, probability):
            expected[max(0, start) : max(0, end)] = True
        different += (expected != chosen[draw]).sum()
    assert different <= 1  # The loop's probability is accurate to 1e-5.
    lengths = [end - start for draw in range(500) for start, end in spans_of(draw, 20, 1, probability)]
    assert max(lengths) == 10 and min(lengths) == 1
    assert abs(np.mean(lengths) - 3.8) < 0.1  # SpanBERT, section 3.1.


def test_every_position_is_in_a_span_with_equal_probability():
    for probability in (0.15, 0.3):
        chosen = choose_spans(*(values.ravel() for values in tokens_of(np.arange(20_000), 24)), 0, probability)
        assert abs(chosen.reshape(20_000, 24).mean(axis=0) - probability).max() < 0.013


def test_spans_are_masked_replaced_or_kept_as_a_unit():
    """All tokens of a span are masked, random or kept, with 80, 10 and 10%; special tokens end a span."""
    ids = np.random.default_rng(0).integers(5, V, (3000, 60))
    maskable = np.ones_like(ids, dtype=bool)
    maskable[:, [0, 30, 59]] = False
    corrupted, labels = corrupt(ids, np.arange(3000), maskable=maskable, spans=True)
    chosen = labels != -100
    assert not chosen[:, [0, 30, 59]].any() and (corrupted == ids)[~chosen].all() and (labels[chosen] == ids[chosen]).all()
    masked, kept, counts = corrupted == MASK, corrupted == ids, {"masked": 0, "kept": 0, "random": 0}
    for row in range(3000):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen[row].astype(int), [0]])))
        for start, end in edges.reshape(-1, 2):
            span = slice(start, end)
            outcomes = [name for name, at in (("masked", masked), ("kept", kept)) if at[row, span].all()]
            if not outcomes:  # A random token may happen to be the mask token, or the original one.
                assert masked[row, span].sum() <= 1
            counts[(outcomes or ["random"])[0]] += 1
    shares = np.array(list(counts.values())) / sum(counts.values())
    assert abs(shares - [0.8, 0.1, 0.1]).max() < 0.02


def test_spans_do_not_depend_on_the_batch():
    ids = np.random.default_rng(0).integers(5, V, (8, 30))
    draws = np.array([3, 1, 4, 1000003, 59, 26, 53, 58])
    whole, _ = corrupt(ids, draws, spans=True)
    for i in range(8):
        alone, _ = corrupt(ids[i : i + 1, :], draws[i : i + 1], spans=True)
        assert (alone[0] == whole[i]).all()


SENTENCES = ("the unseen gene rebinds, 42 cells", "acid", "unbelievably binding co-receptors")


def words_of(tokenizer, ids):
    """Return the word index of each token, derived from the token strings; special tokens are words of their own."""
    words, texts = [], [tokenizer.convert_ids_to_tokens(int(token)) for token in ids]
    for position, text in enumerate(texts):
        special = ids[position] in tokenizer.all_special_ids or (position and ids[position - 1] in tokenizer.all_special_ids)
        continues = text.startswith("##") if "##e" in tokenizer.get_vocab() else text[0] not in "\u0120\u2581"
        words.append(words[-1] if continues and not special else position)
    return words


@pytest.mark.parametrize(("name", "kind"), [("bert", "WordPiece"), ("modernbert", "BPE"), ("xlnet", "Unigram")])
def test_tokens_of_a_word_are_masked_together(name, kind):
    tokenizer, several = TOKENIZERS[name](), 0
    assert type(tokenizer.backend_tokenizer.model).__name__ == kind
    texts = [{"input_ids": tokenizer(text)["input_ids"]} for text in SENTENCES]
    visits = [{**text, "draw": 3 * visit + index} for visit in range(700) for index, text in enumerate(texts)]
    collate = TlmCollator(tokenizer, mlm_probability=0.2, whole_word_mask=True)
    chosen = (collate(visits)["mlm_labels"] != -100).numpy()
    for index, text in enumerate(texts):
        words = words_of(tokenizer, text["input_ids"])
        several += len(words) - len(set(words))
        masked = chosen[index::3, : len(words)]
        for token, word in enumerate(words):
            assert (masked[:, token] == masked[:, word]).all()
        inner = [token for token, one in enumerate(text["input_ids"]) if one not in tokenizer.all_special_ids]
        assert abs(masked[:, inner].mean(axis=0) - 0.2).max() < 0.06
        heads = sorted({words[token] for token in inner})
        if len(heads) > 2:  # Words are chosen independently of each other.
            assert abs(np.corrcoef(masked[:, heads].T)[np.triu_indices(len(heads), 1)]).max() < 0.15
    assert several >= 5
    alone = collate(visits[7:8])["mlm_labels"][0].numpy()
    assert ((alone != -100) == chosen[7, : len(alone)]).all()


def test_letter_that_marks_spaces_elsewhere_changes_no_word_starts():
    tokenizer = TOKENIZERS["xlnet"]()
    before = word_continuations(tokenizer)
    tokenizer.add_tokens(["\u0120or\u0121"])  # A Maltese word, as in multilingual vocabularies.
    assert before.any() and not before.all()
    assert word_continuations(tokenizer)[: len(before)].tolist() == before.tolist()


def test_word_starts():
    continues = np.array([False, False, True, True, True, False, True, True, True])
    maskable = np.array([False, True, True, True, True, False, True, True, True])
    positions = np.array([0, 1, 2, 3, 4, 5, 6, 0, 1])  # The second text is a block that starts within a word.
    assert word_starts(continues, maskable, positions).tolist() == [0, 1, 1, 1, 1, 5, 6, 0, 0]


def test_tokenizer_without_word_starts_is_refused():
    plain = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "[MASK]": 1, "a": 2, "b": 3}, unk_token="[PAD]")),
        pad_token="[PAD]",
        mask_token="[MASK]",
    )
    # Byte pairs that mark the ends of words; one begins with a Maltese letter, the mark of spaces in other vocabularies.
    pieces = {piece: index for index, piece in enumerate(["[PAD]", "[MASK]", "a", "b</w>", "\u0120</w>"])}
    ends = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(pieces, [], end_of_word_suffix="</w>")), pad_token="[PAD]", mask_token="[MASK]"
    )
    for tokenizer in (plain, ends):
        with pytest.raises(TokenizerError, match="whole_word_mask needs tokens that show where words begin"):
            word_continuations(tokenizer)
