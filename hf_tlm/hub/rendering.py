"""Cards from the jinja2 templates of this package, and what publishing adds to one."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from huggingface_hub import constants

from hf_tlm.utils.run_files import SEED, SPLIT, STAGE
from hf_tlm.utils.shown import as_code, as_literal, escape, figures, flat, for_terminal

if TYPE_CHECKING:
    import jinja2
    from huggingface_hub import CardData

# In the code blocks of a card, until it is published.
PLACEHOLDER = "path/or/repo-id"
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
# A checkpoint's folder, and those that it is in within the folder of a run.
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_IN_A_RUN = re.compile(rf"training|({STAGE}|{SEED}|{SPLIT}|round-)\d+")
_HUB_DATASET = re.compile(rf"{_HUB_NAME.pattern}(@[\w./-]+)?")
_HUB_CORPUS = re.compile(r"[\w][\w.-]*/[\w][\w.-]*@[0-9a-f]{40}\b")


def render(template: str, data: CardData, **values: Any) -> str:
    """A card: the metadata as YAML between two lines of dashes, and the text under them.

    Args:
        template: file name in `hf_tlm/hub/templates`.
        values: what it is filled with. Texts among them are shown as they are, whatever they look like: a template says
            `| code` or `| literal` where they are code, and `| safe` of markdown.
    """
    text = _environment().get_template(template).render(card_data=for_terminal(data.to_yaml()), **values)
    return str(text).rstrip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    """What compiles the templates, each once."""
    import jinja2
    from markupsafe import Markup

    def shown(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(flat(str(value))))

    environment = jinja2.Environment(loader=jinja2.PackageLoader("hf_tlm.hub"), autoescape=True, finalize=shown)
    environment.globals["license_sentence"] = license_sentence(None)  # until one is chosen
    environment.filters["code"] = lambda value: Markup(as_code(str(value)))
    environment.filters["literal"] = lambda value: Markup(as_literal(str(value)))
    environment.filters["figures"] = figures
    return environment


def license_sentence(license: str | None) -> str:
    """What a card says of the licence, which is the publisher's to choose."""
    if license is None:
        return "No licence was chosen for this repository: ask its author before you use it. Those of the data apply too."
    return f"`{license}` for this repository. Those of the data apply too."


def dataset_sentence(dataset: str | None) -> str:
    """Where the data are on the Hub: repo id, with `@revision` if known; None: not there, as far as is known."""
    if dataset is None or not _HUB_DATASET.fullmatch(dataset):
        return "Whether these texts are on the Hub was not recorded."
    name, _, revision = dataset.partition("@")
    link = f"{constants.ENDPOINT}/datasets/{name}" + (f"/tree/{revision}" if revision else "")
    return f"The texts are the dataset [{name}]({link})" + (f" at revision `{revision}`." if revision else ".")


def published_card(
    text: str,
    repo_id: str,
    *,
    license: str | None = None,
    language: str | None = None,
    dataset: str | None = None,
    widget_texts: Sequence[str] | None = None,
) -> str:
    """A card as it is published: its code names the repo, its metadata what was chosen. Everything else stays.

    Args:
        text: a README.md, written by this package or by hand.
        license, language: of the metadata; None leaves what is there.
        dataset: see `dataset_sentence`; named in a model's metadata too.
        widget_texts: examples that the model's page on the Hub offers to try; they replace those that are there.

    Raises:
        ValueError: the metadata of the card cannot be read.
    """
    import yaml
    from huggingface_hub import RepoCard

    text = text.replace(PLACEHOLDER, repo_id)
    if license is not None:
        text = text.replace(license_sentence(None), license_sentence(license))
    if dataset is not None:
        text = text.replace(dataset_sentence(None), dataset_sentence(dataset))
    if license is language is dataset is widget_texts is None:
        return text
    try:
        card = RepoCard(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    for name, value in (("license", license), ("language", language)):
        if value is not None:
            card.data[name] = value
    if dataset is not None:
        before = card.data.get("datasets", [])
        before = [before] if isinstance(before, str) else before
        card.data["datasets"] = list(dict.fromkeys([*before, dataset.partition("@")[0]]))
    if widget_texts is not None:
        card.data["widget"] = [{"text": text} for text in widget_texts]
    return str(card)


def hub_name(name_or_path: str | None) -> str | None:
    """The repo id in `name_or_path`, without a revision; None for a path of this machine, and for what cannot be one."""
    if name_or_path is None or os.path.exists(name_or_path):
        return None
    name = name_or_path.partition("@")[0]
    return name if _HUB_NAME.fullmatch(name) else None


def hub_dataset(corpus: str) -> str | None:
    """The `owner/name@<commit>` that the name of a corpus of the Hub begins with; None for others.

    Without the commit, `folder/file.parquet` of some machine would be taken for a repository.
    """
    found = _HUB_CORPUS.match(corpus)
    return None if found is None else found[0]


def short_name(name_or_path: str | None) -> str | None:
    """A checkpoint as the settings of a run have it: its repo id, or the last two names of its path."""
    if name_or_path is None or hub_name(name_or_path):
        return name_or_path
    return "/".join(re.split(r"[\\/]+", name_or_path.rstrip("\\/"))[-2:])


def displayed_name(name_or_path: str | None) -> str | None:
    """A checkpoint as a card names it: its repo id, or the end of its path, without the folders of this machine.

    Of a checkpoint within a run (`training/checkpoint-50`, `seed-0/stage1/checkpoint-50`) the run's folder is named too.
    """
    parts = re.split(r"[\\/]+", (name_or_path or "").strip("\\/"))
    first = len(parts) - 2
    if name_or_path is None or hub_name(name_or_path) or not _CHECKPOINT.fullmatch(parts[-1]):
        return short_name(name_or_path)
    while first > 0 and _IN_A_RUN.fullmatch(parts[first]):
        first -= 1
    return "/".join(parts[max(first, 0) :])
