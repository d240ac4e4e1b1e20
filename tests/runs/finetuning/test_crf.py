"""The CRF compared with brute force over all sequences of tags."""

import itertools
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hf_tlm.errors import HfTlmError
from hf_tlm.runs.finetuning import tagging
from hf_tlm.runs.finetuning.tagging import CRF_FILE, CrfTagger, marginals, new_crf, to_words
from support.kind_toys import arguments, tiny_model

TAGS = 3


@pytest.fixture
def crf():
    torch.manual_seed(1)
    crf = new_crf(TAGS)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf


def brute_force(crf, emissions):
    """Return the score of every sequence of tags, as {tags: score}."""
    scores = {}
    for tags in itertools.product(range(TAGS), repeat=len(emissions)):
        score = crf.start_transitions[tags[0]] + crf.end_transitions[tags[-1]]
        score = score + sum(emissions[word, tag] for word, tag in enumerate(tags))
        scores[tags] = score + sum(crf.transitions[pair] for pair in itertools.pairwise(tags))
    return scores


def tagger_of(crf):
    tagger = CrfTagger(tiny_model("bert", tagging.AUTO_CLASS, num_labels=TAGS))
    tagger.crf = crf
    return tagger


def test_log_likelihood_equals_brute_force(crf):
    """Sentences of 1 to 5 words whose first tokens are at random positions; a sentence without words does not count."""
    torch.manual_seed(2)
    logits = torch.randn(6, 9, TAGS, requires_grad=True)
    labels = torch.full((6, 9), -100)
    expected = []
    for sentence, words in enumerate([5, 1, 3, 0, 4, 2]):
        positions = torch.randperm(9)[:words].sort().values
        labels[sentence, positions] = torch.randint(TAGS, (words,))
        if words:
            scores = brute_force(crf, logits[sentence, positions])
            total = torch.logsumexp(torch.stack(list(scores.values())), dim=0)
            expected.append(total - scores[tuple(labels[sentence, positions].tolist())])
    loss = tagger_of(crf)._loss(logits, labels)
    assert loss.item() == pytest.approx(torch.stack(expected).mean().item(), abs=1e-5)
    inputs = [logits, *crf.parameters()]
    for one, other in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(torch.stack(expected).mean(), inputs), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_best_tags_and_marginals_equal_brute_force(crf):
    torch.manual_seed(3)
    emissions, words = 2 * torch.randn(5, 5, TAGS), torch.zeros(5, 5, dtype=torch.bool)
    for sentence in range(5):
        words[sentence, : sentence + 1] = True
    best, probabilities = tagger_of(crf).best_tags(emissions.numpy(), words.numpy())
    greedy = emissions.argmax(dim=-1).numpy()
    for sentence in range(5):
        count = sentence + 1
        scores = brute_force(crf, emissions[sentence, :count])
        assert tuple(best[sentence, :count]) == max(scores, key=scores.get)
        shares = torch.stack(list(scores.values())).softmax(dim=0)
        for word in range(count):
            share = sum(p for tags, p in zip(scores, shares, strict=True) if tags[word] == best[sentence, word])
            assert probabilities[sentence, word] == pytest.approx(share.item(), abs=1e-5)
    assert (best != greedy)[words.numpy()].any()  # The transitions matter.
    assert words.sum() == 15  # Nothing was written into the mask.
    totals = marginals(crf, emissions, words).sum(dim=-1)
    torch.testing.assert_close(totals, torch.ones_like(totals))


def test_batch_without_labelled_words_has_zero_loss(crf):
    logits = torch.randn(2, 4, TAGS, requires_grad=True)
    loss = tagger_of(crf)._loss(logits, torch.full((2, 4), -100))
    loss.backward()
    assert loss.item() == 0 and logits.grad.abs().sum() == 0 and crf.transitions.grad is not None


def test_to_words_moves_first_tokens_to_the_left():
    labels = torch.tensor([[-100, 2, -100, 1], [-100, -100, 0, -100]])
    logits = torch.arange(16.0).view(2, 4, 2)
    emissions, tags, words = to_words(logits, labels)
    assert tags.tolist() == [[2, 1], [0, 0]] and words.tolist() == [[True, True], [True, False]]
    assert emissions[0].tolist() == [[2, 3], [6, 7]] and emissions[1, 0].tolist() == [12, 13]


def test_crf_is_saved_and_restored(crf, tmp_path):
    tagger = tagger_of(crf)
    tagger.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / CRF_FILE)) == {"start_transitions", "end_transitions", "transitions"}
    stock = type(tagger.tagger).from_pretrained(tmp_path)
    loaded = tagging.restore(stock, tmp_path, arguments())
    assert all(torch.equal(one, other) for one, other in zip(loaded.crf.parameters(), crf.parameters(), strict=True))
    assert loaded.num_parameters() == stock.num_parameters() + TAGS * (TAGS + 2) and loaded.config is stock.config
    with pytest.raises(HfTlmError, match="Cannot load crf.safetensors .* for 2 tags"):
        tagging.restore(tiny_model("bert", tagging.AUTO_CLASS, num_labels=2), tmp_path, arguments())
    (tmp_path / CRF_FILE).unlink()
    assert tagging.restore(stock, tmp_path, arguments()) is stock
    with pytest.raises(HfTlmError, match="Cannot load crf.safetensors"):
        tagging.restore(stock, tmp_path, arguments(crf=True))


def test_crf_without_pytorch_crf_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcrf", None)
    model = tiny_model("bert", tagging.AUTO_CLASS, num_labels=TAGS)
    assert tagging.wrap(model, arguments()) is model
    with pytest.raises(HfTlmError, match=r"extra \[crf\]"):
        tagging.wrap(model, arguments(crf=True))


def test_wrapper_has_the_outputs_of_the_model():
    model = tiny_model("bert", tagging.AUTO_CLASS, num_labels=TAGS)
    tagger = tagging.wrap(model, arguments(crf=True))
    ids, mask = torch.arange(5, 13).view(2, 4), torch.ones(2, 4, dtype=torch.long)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits
        output = tagger(input_ids=ids, attention_mask=mask)
    assert output.loss is None
    np.testing.assert_array_equal(output.logits, expected)
