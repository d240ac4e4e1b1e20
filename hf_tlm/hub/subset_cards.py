"""Dataset cards of one subset, and of a repository that contains several subsets, each in its own folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hf_tlm.errors import HubError
from hf_tlm.hub.cards import PLACEHOLDER, license_sentence, published_card, render
from hf_tlm.hub.errors import UnansweredError, with_retries
from hf_tlm.hub.push import CARD
from hf_tlm.hub.repo_id import Repo, hub_dataset
from hf_tlm.utils.run_files import MANIFEST_FILE

Result = TypeVar("Result")
SIZES = (("1K", 1e3), ("10K", 1e4), ("100K", 1e5), ("1M", 1e6), ("10M", 1e7), ("100M", 1e8), ("1B", 1e9))
_NAMED_MANIFEST = re.compile(rf"(\w[\w.-]*)/{re.escape(MANIFEST_FILE)}")
# Metadata fields that the repository's card collects from the cards of its subsets, in order and without duplicates.
_MERGED_FIELDS = ("license", "language", "tags", "task_categories", "size_categories", "source_datasets")


def subset_card(
    manifest: Mapping[str, Any],
    report: str,
    info: Mapping[str, Any],
    *,
    engine: str = "",
    selection: str | None = None,
    config: str | None = None,
    data_files: str = "data/train-*.parquet",
    license: str | None = None,
) -> str:
    """Return the README.md of a subset.

    Args:
        manifest: the manifest of the subset.
        report: the report of the retrieval in markdown; its first two lines, a title, are left out.
        info: `dataset_info` for the metadata, see `describe_data`; empty if unknown.
        engine: the retrieval engine and its settings in words; not used for a random or released subset.
        selection: how the subset was reduced, in words.
        config: name of its configuration in the repository; None if the repository contains only this subset.
        data_files: glob of its parquet files in the repository.
        license: licence for the metadata and the text; None: none was chosen.
    """
    from huggingface_hub import DatasetCardData

    task, corpus, counts = manifest["task"], manifest["corpus"], manifest["counts"]
    random = manifest["retriever"] == "random"
    method = (manifest.get("selection") or {}).get("method")
    name, source = config or "default", hub_dataset(corpus["name"])
    title = f"{corpus['name']}: {'random passages' if random else 'passages retrieved'} for {task['name']}"
    data = DatasetCardData(
        pretty_name=title,
        license=license,
        tags=["hf_tlm", "tlm", "retrieval", "random" if random else "bm25", *([method] if method else [])],
        task_categories=["fill-mask"],
        size_categories=[size_category(counts["union"])],
        source_datasets=[source.partition("@")[0] if source else "extended|other"],
        configs=[{"config_name": name, "data_files": [{"split": "train", "path": data_files}]}],
        dataset_info={"config_name": name, **info} if info else None,
    )
    return render(
        "subset.md",
        data,
        title=title,
        manifest=manifest,
        method=method,
        engine=engine,
        selection=selection,
        config=config,
        found=re.sub("^#", "##", report.split("\n", 2)[2].strip(), flags=re.MULTILINE),
        license_sentence=license_sentence(license),
        citations=["tlm", *({method} & {"iss", "dsir"})],
    )


def describe_data(columns: Mapping[str, str | None], parquet: str | os.PathLike) -> dict[str, Any]:
    """Return the `dataset_info` of one parquet file: the numbers of rows and bytes, and the features.

    Args:
        columns: name -> dtype as `datasets` writes it; None for a column without a plain dtype.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(parquet)
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    split = {"name": "train", "num_bytes": size, "num_examples": metadata.num_rows}
    info = {"splits": [split], "download_size": os.path.getsize(parquet), "dataset_size": size}
    if None in columns.values():
        return info  # `datasets` reads the types from the file.
    return {"features": [{"name": name, "dtype": dtype} for name, dtype in columns.items()], **info}


def size_category(rows: int) -> str:
    """Return the Hub's size category for a number of rows."""
    lower_bound = ""
    for name, bound in SIZES:
        if rows < bound:
            return f"{lower_bound}n<{name}"
        lower_bound = f"{name}<"
    return "n>1B"


def repo_files(repo: Repo, token: str | None = None, dry_run: bool = False) -> list[str]:
    """Return the sorted files of a branch of a repository; an empty list if the repository does not exist yet.

    Args:
        dry_run: also return an empty list if the Hub gives no answer to a single first request.

    Raises:
        HubError: the Hub cannot be asked.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if dry_run:
        try:
            with_retries(partial(HfApi(token=token).repo_info, repo.id, repo_type=repo.type), repo, retries=0)
        except UnansweredError:
            return []
        except HubError:  # The repository does not exist, or this token has no access: the Hub did answer.
            pass

    def list_files() -> list[str]:
        try:
            return _call_at_branch(repo, partial(HfApi(token=token).list_repo_files, repo.id, repo_type=repo.type))
        except (RepositoryNotFoundError, RevisionNotFoundError):
            return []

    return sorted(with_retries(list_files, repo))


def _call_at_branch(repo: Repo, call: Callable[..., Result]) -> Result:
    """Return the result of a call for a branch; for the default branch if it does not exist, as it is created from that."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return call(revision=repo.revision)
    except RevisionNotFoundError:
        return call(revision=None)


def config_names(files: Sequence[str]) -> list[str]:
    """Return the names of the subsets in a repository, by the manifests among its files."""
    return [match[1] for file in files if (match := _NAMED_MANIFEST.fullmatch(file))]


def check_alone(repo: Repo, token: str | None = None, dry_run: bool = False) -> None:
    """Raise a HubError if a repository contains named subsets, before a subset without a name is published to it."""
    if names := config_names(repo_files(repo, token, dry_run)):
        raise HubError(
            f"{repo} has named subsets ({', '.join(names)}), which the card of an unnamed subset would hide. Name this "
            "subset too (--config_name), or choose another repository."
        )


def config_cards(repo: Repo, names: Sequence[str], token: str | None = None) -> dict[str, str]:
    """Download the cards of the named subsets of a repository."""
    from huggingface_hub import hf_hub_download

    def read(name: str) -> str:
        download = partial(hf_hub_download, repo.id, f"{name}/{CARD}", repo_type=repo.type, token=token)
        return Path(_call_at_branch(repo, download)).read_text(encoding="utf-8")

    return {name: with_retries(partial(read, name), repo) for name in names}


def configs_card(cards: Mapping[str, str], repo_id: str) -> str:
    """Return the README.md of a repository of several subsets, built from their cards.

    Args:
        cards: name of a subset -> its card.

    Raises:
        HubError: a card lacks the metadata that this needs.
    """
    from huggingface_hub import DatasetCardData, RepoCard

    metadata = {name: RepoCard(text).data.to_dict() for name, text in cards.items()}
    for name, data in metadata.items():
        if missing := [field for field in ("configs", "dataset_info") if not data.get(field)]:
            raise HubError(
                f"The metadata of {name}/{CARD} in {repo_id} lack {' and '.join(missing)}, which the card of the "
                "repository needs. Restore them, or publish that subset again."
            )
    merged: dict[str, Any] = {}
    for field in _MERGED_FIELDS:
        field_values = [data[field] for data in metadata.values() if data.get(field) is not None]
        values = [value for item in field_values for value in (item if isinstance(item, list) else [item])]
        merged[field] = list(dict.fromkeys(values)) or None
    for field in ("license", "language"):
        if merged[field] and len(merged[field]) == 1:
            merged[field] = merged[field][0]
    data = DatasetCardData(
        pretty_name=repo_id.partition("/")[2],
        **merged,
        configs=[entry for data in metadata.values() for entry in data["configs"]],
        dataset_info=[data["dataset_info"] for data in metadata.values()],
    )
    titles = {name: data.get("pretty_name", name) for name, data in metadata.items()}
    rows = {name: data["dataset_info"]["splits"][0]["num_examples"] for name, data in metadata.items()}
    text = render("subset_configs.md", data, name=data.pretty_name, titles=titles, rows=rows, repo=PLACEHOLDER)
    return published_card(text, repo_id)
