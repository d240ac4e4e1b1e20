"""Templates and label words as data: what they are read as, whose defaults they are, and what is refused."""

import pytest

from hf_tlm.runs.few_shot import PROMPTS, Prompt, PromptError, prompt_for
from hf_tlm.runs.few_shot.prompts import CHANGES


def parts(template):
    return [(part.kind, part.value, part.space) for part in Prompt(template, {}).parts]


def test_a_template_is_read_in_parts_that_know_the_space_before_them():
    assert parts(" {text} It was {mask}.") == [
        ("text", "", False),
        ("words", "It was", True),
        ("mask", "", True),
        ("words", ".", False),
    ]
    assert parts("{mask}:{text:bare} {text_pair:lower}") == [
        ("mask", "", False),
        ("words", ":", False),
        ("text", "bare", False),
        ("text_pair", "lower", True),
    ]


def test_changes_of_texts():
    assert CHANGES["bare"]("It rains. ") == "It rains" and CHANGES["bare"]("Why?!") == "Why"
    assert CHANGES["lower"]("The Dog") == "the Dog" and CHANGES["lower"]("") == ""


@pytest.mark.parametrize(
    "template,message",
    [
        ("{text} It was good.", "has {mask} once"),
        ("{text} {mask} {mask}", "has {mask} once"),
        ("It was {mask}.", "has {mask} once"),
        ("{text} {label} {mask}", "field 'label'"),
        ("{text:upper} {mask}", "field 'text:upper'"),
        ("{text} {mask:bare}", "field 'mask:bare'"),
        ("{text} {mask", "cannot be read"),
    ],
)
def test_templates_that_are_none(template, message):
    with pytest.raises(PromptError, match=message):
        Prompt(template, {})


def test_the_prompts_of_lm_bff():
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
    for name, own in words.items():
        pairs = name not in ("sst2", "cola")
        prompt = prompt_for(f"glue_{name}", sorted(own), pairs=pairs)
        assert prompt.template == PROMPTS[name].template and list(prompt.label_words) == sorted(own)
    # Classes that are numbered have GLUE's numbers.
    assert prompt_for("rte", ["0", "1"], pairs=True).label_words == {"0": "Yes", "1": "No"}
    assert prompt_for("sst2", ["0", "1"]).label_words == {"0": "terrible", "1": "great"}


def test_ones_own_prompt():
    prompt = prompt_for("reviews", ["neg", "pos"], "{text} {mask}", ["pos=good", "neg=bad"])
    assert list(prompt.label_words.items()) == [("neg", "bad"), ("pos", "good")]
    assert prompt_for("sst2", ["negative", "positive"], "{text} {mask}!").label_words == PROMPTS["sst2"].label_words


@pytest.mark.parametrize(
    "arguments,message",
    [
        (("reviews", ["neg", "pos"]), "no prompt of its own"),
        (("reviews", ["neg", "pos"], "{text} {mask}"), "no label word for 'neg', 'pos'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad"]), "no label word for 'pos'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad", "good"]), "received 'good'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad", "po=good"]), "received 'po=good'"),
        (("reviews", ["neg", "pos"], "{text} {mask}", ["neg=bad", "pos="]), "empty label word"),
        (("reviews", ["neg", "pos"], "{text} {text_pair} {mask}", ["neg=bad", "pos=good"]), "single texts"),
        (("sst2", ["bad", "good"]), "no label word for 'bad'"),
    ],
)
def test_prompts_that_do_not_fit(arguments, message):
    with pytest.raises(PromptError, match=message):
        prompt_for(*arguments)


def test_a_template_for_pairs_shows_both_texts():
    with pytest.raises(PromptError, match="as its rows are pairs"):
        prompt_for("rte", ["entailment", "not_entailment"], "{text} {mask}", pairs=True)
