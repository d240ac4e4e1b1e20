"""Templates and label words, label words as single tokens, and truncation of texts that keeps the mask."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from hf_tlm.runs.few_shot import PROMPTS, Prompt, PromptError, prompt_for
from hf_tlm.runs.few_shot.prompts import CHANGES, PromptEncoder, collate, kept_lengths, label_word_ids
from support.prompts import TEMPLATE, WORDS, byte_level, wordpiece


def parts_of(template):
    return [(part.kind, part.value, part.space) for part in Prompt(template, {}).parts]


def test_template_is_parsed_into_parts_with_leading_spaces():
    assert parts_of(" {text} It was {mask}.") == [
        ("text", "", False),
        ("words", "It was", True),
        ("mask", "", True),
        ("words", ".", False),
    ]
    assert parts_of("{mask}:{text:bare} {text_pair:lower}") == [
        ("mask", "", False),
        ("words", ":", False),
        ("text", "bare", False),
        ("text_pair", "lower", True),
    ]


def test_text_changes_bare_and_lower():
    assert CHANGES["bare"]("It rains. ") == "It rains" and CHANGES["bare"]("Why?!") == "Why"
    assert CHANGES["lower"]("The Dog") == "the Dog" and CHANGES["lower"]("") == ""


@pytest.mark.parametrize(
    "template,message",
    [
        ("{text} It was good.", "must have {mask} once"),
        ("{text} {mask} {mask}", "must have {mask} once"),
        ("It was {mask}.", "must have {mask} once"),
        ("{text} {label} {mask}", "field 'label'"),
        ("{text:upper} {mask}", "field 'text:upper'"),
        ("{text} {mask:bare}", "field 'mask:bare'"),
        ("{text} {mask", "cannot be read"),
    ],
)
def test_invalid_templates_are_refused(template, message):
    with pytest.raises(PromptError, match=message):
        Prompt(template, {})


def test_built_in_prompts_are_those_of_lm_bff():
    """Table 1 of the paper: a task's words by class name."""
    words = {
        "sst2": {"positive": "great", "negative": "terrible"},
        "cola": {"acceptable": "correct", "unacceptable": "incorrect"},
        "mnli": {"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"},
        "snli": {"entailment": "Yes", "neutral": "Maybe", "contradiction": "No"},
        "qnli": {"entailment": "Yes", "not_entailment": "No"},
        "rte": {"entailment": "Yes", "not_entailment": "No"},
        "mrpc": {"equivalent": "Yes", "not_equivalent": "No"},
        "qqp": {"duplicate": "Yes", "not_duplicate": "No"},
    }
    assert {name: dict(PROMPTS[name].label_words) for name in words} == words
    for name, classes in words.items():
        pairs = name not in ("sst2", "cola")
        prompt = prompt_for(f"glue_{name}", sorted(classes), pairs=pairs)
        assert prompt.template == PROMPTS[name].template and list(prompt.label_words) == sorted(classes)
    # Numbered classes have the order of GLUE.
    assert prompt_for("rte", ["0", "1"], pairs=True).label_words == {"0": "Yes", "1": "No"}
    assert prompt_for("sst2", ["0", "1"]).label_words == {"0": "terrible", "1": "great"}


def test_custom_template_and_label_words():
    prompt = prompt_for("reviews", ["neg", "pos"], "{text} {mask}", ["pos=good", "neg=bad"])
    assert list(prompt.label_words.items()) == [("neg", "bad"), ("pos", "good")]
    assert prompt_for("sst2", ["negative", "positive"], "{text} {mask}!").label_words == PROMPTS["sst2"].label_words


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("reviews", ["neg", "pos"]), "no built-in prompt"),
        (("reviews", ["neg", "pos"], "{text} {mask}"), "needs a label word for 'neg', 'pos'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad"]), "needs a label word for 'pos'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad", "good"]), "received 'good'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad", "po=good"]), "received 'po=good'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad", "pos="]), "empty label word"),
        (("reviews", ["neg", "pos"], "{text} {text_pair} {mask}", ["neg=bad", "pos=good"]), "single texts"),
        (("sst2", ["bad", "good"]), "needs a label word for 'bad'"),
    ],
)
def test_prompts_that_do_not_fit_the_task_are_refused(arguments, message):
    with pytest.raises(PromptError, match=message):
        prompt_for(*arguments)


def test_template_for_pairs_must_have_both_texts():
    with pytest.raises(PromptError, match="as its rows are pairs"):
        prompt_for("rte", ["entailment", "not_entailment"], "{text} {mask}", pairs=True)


TOKENIZERS = {"wordpiece": wordpiece(), "byte_level": byte_level()}
PAIR = "{text:bare}? {mask}, {text_pair:lower}"
YES_NO = {"entailment": "Yes", "not_entailment": "No"}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


def test_label_words_have_the_leading_space_of_the_mask(tokenizer):
    pieces = tokenizer.convert_ids_to_tokens(label_word_ids(Prompt(TEMPLATE, WORDS), tokenizer))
    mark = "Ġ" if tokenizer is TOKENIZERS["byte_level"] else ""
    assert pieces == [f"{mark}bad", f"{mark}fine", f"{mark}good"]


def test_label_word_without_a_leading_space_is_another_token():
    tokenizer, words = TOKENIZERS["byte_level"], {"up": "good"}
    assert tokenizer.convert_ids_to_tokens(label_word_ids(Prompt("{text} {mask}", words), tokenizer)) == ["Ġgood"]
    with pytest.raises(PromptError, match="'good' of class 'up' must be one piece .* received g ood"):
        label_word_ids(Prompt("{mask}: {text}", words), tokenizer)
    (yes,) = label_word_ids(Prompt("{mask}: {text}", {"up": "Yes"}), tokenizer)
    assert tokenizer.convert_ids_to_tokens(yes) == "Yes"


@pytest.mark.parametrize("word,advice", [("Goodly", "good"), ("GOOD", "good"), ("fines", "fine")])
def test_label_words_of_several_tokens_are_refused_with_advice(word, advice):
    for tokenizer in TOKENIZERS.values():
        if tokenizer is TOKENIZERS["wordpiece"] and word == "GOOD":
            assert label_word_ids(Prompt(TEMPLATE, {"up": word}), tokenizer)  # This tokenizer lower-cases it.
            continue
        with pytest.raises(PromptError, match=rf"label word {word!r} of class 'up' must be one piece") as refusal:
            label_word_ids(Prompt(TEMPLATE, {"up": word}), tokenizer)
        named = str(refusal.value).partition("Similar words that are one piece: ")[2].partition(". Pass")[0].split(", ")
        assert advice in named
        for other in named:
            assert label_word_ids(Prompt(TEMPLATE, {"up": other}), tokenizer)


def test_unknown_and_equal_label_words_are_refused():
    with pytest.raises(PromptError, match="must be one piece"):
        label_word_ids(Prompt(TEMPLATE, {"up": "漢"}), TOKENIZERS["wordpiece"])
    with pytest.raises(PromptError, match="'a' and 'b' have the same label word"):
        label_word_ids(Prompt(TEMPLATE, {"a": "Yes", "b": "yes"}), TOKENIZERS["wordpiece"])


def test_input_equals_the_tokenized_filled_template(tokenizer):
    encoder = PromptEncoder(tokenizer, Prompt(PAIR, YES_NO), 64)
    rows = Dataset.from_list([{"text": "the enzyme blocks the gene.", "text_pair": "It binds the cell."}])
    (texts,) = encoder.encode(rows)
    filled = encoder.fill(texts)
    expected = tokenizer("the enzyme blocks the gene? Yes, it binds the cell.")["input_ids"]
    expected[expected.index(encoder.word_ids[0])] = tokenizer.mask_token_id
    assert filled["input_ids"] == expected
    assert filled["input_ids"][filled["mask_position"]] == tokenizer.mask_token_id


def test_special_tokens_in_a_text_are_plain_text(tokenizer):
    encoder = PromptEncoder(tokenizer, Prompt(TEMPLATE, WORDS), 64)
    rows = Dataset.from_list([{"text": f"{tokenizer.mask_token} {tokenizer.sep_token} the gene"}])
    filled = encoder.fill(encoder.encode(rows)[0])
    assert filled["input_ids"].count(tokenizer.mask_token_id) == filled["input_ids"].count(tokenizer.sep_token_id) == 1


def test_longest_texts_are_truncated_first():
    assert kept_lengths([10, 3], 8) == [5, 3]
    assert kept_lengths([10, 9], 7) == [4, 3] or kept_lengths([10, 9], 7) == [3, 4]
    assert kept_lengths([0, 20, 5], 12) == [0, 7, 5]
    generator = random.Random(0)
    for _ in range(300):
        lengths = [generator.randint(0, 30) for _ in range(generator.randint(1, 8))]
        capacity = generator.randint(len(lengths), 60)
        kept = kept_lengths(lengths, capacity)
        assert sum(kept) == min(capacity, sum(lengths)) and all(a <= b for a, b in zip(kept, lengths, strict=True))
        cut = [a for a, b in zip(kept, lengths, strict=True) if a < b]
        assert not cut or max(kept) - min(cut) <= 1, "what is cut is as long as the longest that is left"


@pytest.mark.parametrize("shown", [0, 2])
def test_truncation_keeps_the_mask_template_and_label_words(tokenizer, shown):
    """At any lengths the input has one mask at the stated position, between the template's words, and is full."""
    encoder = PromptEncoder(tokenizer, Prompt(PAIR, YES_NO), 40, examples=shown)
    lengths = [(1, 1), (1, 60), (60, 1), (60, 60), (3, 200)]
    rows = Dataset.from_list([{"text": "gene " * a, "text_pair": "cell " * b} for a, b in lengths])
    encoded = encoder.encode(rows)
    shape = [part for part in encoder._part_ids if part is not None]
    for texts in encoded:
        filled = encoder.fill(texts, [(encoded[3], 1), (encoded[4], 0)][:shown])
        ids, position = filled["input_ids"], filled["mask_position"]
        assert ids.count(tokenizer.mask_token_id) == 1 and ids[position] == tokenizer.mask_token_id
        assert len(ids) <= 40 and (len(ids) == 40 or sum(map(len, texts)) < 30)
        assert ids[position - len(shape[0]) : position] == shape[0]
        assert ids[position + 1 : position + 1 + len(shape[1])] == shape[1]
        assert [i for i in ids if i in encoder.word_ids] == [encoder.word_ids[1], encoder.word_ids[0]][:shown]
        assert ids.count(tokenizer.sep_token_id) == 1 + shown


@pytest.mark.parametrize("limits", [(None, None), (20, None), (None, 4), (7, 3)])
@pytest.mark.parametrize("shown", [0, 2])
def test_truncation_equals_that_of_lm_bff(tokenizer, limits, shown):
    """As in its `tokenize_multipart_input`: each text is truncated at its limit, all are concatenated, and the end is
    cut off.

    Texts are numbered from the first of the queried row to the last of the demonstrations; number 0 has its own limit.
    """
    first, other = limits
    encoder = PromptEncoder(tokenizer, Prompt(PAIR, YES_NO), 40, shown, first, other, tail=True)
    lengths = [(1, 1), (1, 60), (10, 60), (20, 3), (3, 200)]
    encoded = encoder.encode(Dataset.from_list([{"text": "gene " * a, "text_pair": "cell " * b} for a, b in lengths]))
    for texts in encoded:
        answered = [(encoded[3], 1), (encoded[1], 0)][:shown]
        whole, rows = list(encoder._prefix), [(texts, tokenizer.mask_token_id)]
        rows += [(shown_texts, encoder.word_ids[label]) for shown_texts, label in answered]
        for number, (row, answer) in enumerate(rows):
            for part, words in zip(encoder.prompt.parts, encoder._part_ids, strict=True):
                if words is not None:
                    whole += words
                elif part.kind == "mask":
                    whole.append(answer)
                else:
                    text_index = int(part.kind == "text_pair")
                    whole += row[text_index][: first if 2 * number + text_index == 0 else other]
            whole += encoder._suffix
        filled = encoder.fill(texts, answered)
        assert filled["input_ids"] == whole[:40] and whole[filled["mask_position"]] == tokenizer.mask_token_id
    # LM-BFF's assertion fails here; this encoder truncates the text before the mask so that the mask is the last token.
    (long,) = encoder.encode(Dataset.from_list([{"text": "gene " * 90, "text_pair": "cell"}]))
    filled = encoder.fill(long, [(encoded[3], 1), (encoded[1], 0)][:shown])
    assert filled["input_ids"][filled["mask_position"]] == tokenizer.mask_token_id
    assert first is not None or filled["mask_position"] == 39 == len(filled["input_ids"]) - 1


def test_limits_apply_before_the_longest_are_truncated(tokenizer):
    encoder = PromptEncoder(tokenizer, Prompt(PAIR, YES_NO), 40, 0, 5, None)
    (texts,) = encoder.encode(Dataset.from_list([{"text": "gene " * 30, "text_pair": "cell " * 30}]))
    ids = encoder.fill(texts)["input_ids"]
    assert len(ids) == 40 and ids[1:6] == texts[0][:5] and ids[6] == encoder._part_ids[1][0]
    longest = PromptEncoder(tokenizer, Prompt(PAIR, YES_NO), 40).fill(texts)["input_ids"]
    assert longest[1:15] == texts[0][:14], "without a limit both texts are cut to one length"


def test_template_longer_than_max_length_is_refused(tokenizer):
    PromptEncoder(tokenizer, Prompt(TEMPLATE, WORDS), 7)  # [CLS], a token of text, It was, mask, full stop, [SEP]
    with pytest.raises(PromptError, match="need 7. Raise --max_length"):
        PromptEncoder(tokenizer, Prompt(TEMPLATE, WORDS), 6)
    with pytest.raises(PromptError, match="4 times with the demonstrations, and one token of every text need 25"):
        PromptEncoder(tokenizer, Prompt(TEMPLATE, WORDS), 24, examples=3)


def test_batch_is_padded():
    rows = [
        {"input_ids": [2, 17, 40, 4, 9, 3], "mask_position": 3, "label": 1},
        {"input_ids": [2, 40, 4, 9, 3], "mask_position": 2, "label": 0},
    ]
    batch = collate(SimpleNamespace(pad_token_id=0, pad_token_type_id=0), rows)
    assert {name: value.tolist() for name, value in batch.items()} == {
        "labels": [1, 0],
        "input_ids": [[2, 17, 40, 4, 9, 3], [2, 40, 4, 9, 3, 0]],
        "attention_mask": [[1] * 6, [1] * 5 + [0]],
        "mask_positions": [3, 2],
    }
    unlabelled = collate(
        SimpleNamespace(pad_token_id=1, pad_token_type_id=0),
        [{"input_ids": row["input_ids"], "mask_position": 1} for row in rows],
    )
    assert "labels" not in unlabelled and np.all(unlabelled["input_ids"][1].numpy() == [2, 40, 4, 9, 3, 1])
