"""Check whether two checkouts produce the same bits: run tiny commands of every recipe in both, and compare the results.

    python benchmarks/compare_checkouts.py BEFORE AFTER
    python benchmarks/compare_checkouts.py main . --only train_tlm retrieve-bm25 --keep runs/compared

BEFORE and AFTER are folders or git revisions of this repository, such as before and after a redesign. Prints one line per
command: `identical`, or the first differences; the exit status is 0 if all are identical, else 1. Tensors and table columns
are compared bit by bit, JSON exactly and all other files byte by byte, except for KEYS and NOT_READ of compare_folders.py. A
command that uses another's output uses that of its own checkout, so a difference in a subset propagates to what is trained
on it. Seconds exclude the import of torch, transformers and datasets, which the commands of a side share.

Everything takes about 5 minutes of one core. Elasticsearch, the Hub, several processes, GPUs and tables of runs
(recipes/reproduce.py) are not covered.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from compare_folders import compare_folders

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(r"@([\w-]+)")
SHOWN = 5

TASK = "--task @data/classification"
QUIET = "--report_to none --use_cpu true --disable_tqdm true"
RETRIEVE = f"retrieve.py {TASK} --corpus @data/corpus.parquet --passage_words 0"  # As the defaults of checkouts differ.
# Defaults are kept wherever they cost no time, so that a changed default is found.
STEPS = f"--max_steps 8 --learning_rate 1e-2 --max_length 32 --per_device_train_batch_size 4 --logging_steps 2 {QUIET}"
TLM = f"train_tlm.py {TASK} --subset @retrieve-bm25 --vocab_size 150 --stage2_max_steps 6 --stage2_eval_steps 2 {STEPS}"
TLM += " --stage2_learning_rate 1e-2 --stage2_total_batch_size 8"
PRETRAIN = f"pretrain.py --corpus @data/corpus.parquet --vocab_size 150 --validation_share 0.2 {STEPS}"
FINETUNE = f"--model_name_or_path @pretrain-mlm --learning_rate 1e-2 --total_batch_size 8 --max_length 40 {QUIET}"
SELECT = f"select_influence.py {TASK} --subset @retrieve-bm25 --fraction 0.4 {QUIET}"
STAGE2 = (
    "--stage2_rho2 1 --stage2_class_balance 0.5 --stage2_dropout 0.2 --stage2_label_smoothing 0.1 --stage2_ema_decay 0.8"
)
STAGE2 += " --stage2_reset_classifier true --stage2_layerwise_lr_decay 0.9 --stage2_max_length 24 --stage2_weight_decay 0.1"
STARTS = "--embedding_init spectral --weight_init width --attention_init neighbors --lm_head_init frequencies"
# Name -> recipe and arguments. @data is the folder of the data, @name the output of the command of that name.
COMMANDS = {
    "retrieve-bm25": f"{RETRIEVE} --top_k 6",
    "retrieve-bm25s": f"{RETRIEVE} --top_k 6 --retriever bm25s",
    "retrieve-rank_bm25": f"{RETRIEVE} --top_k 6 --retriever rank_bm25 --bm25_variant okapi",
    "retrieve-sharded": f"{RETRIEVE} --top_k 6 --retriever sharded",
    "retrieve-random": f"{RETRIEVE} --retriever random --num_passages 30",
    "retrieve-rake": f"{RETRIEVE} --top_k 6 --query_mode rake --stemmer english --deduplicate 0.5 --bm25_variant bm25+",
    "train_tlm-mlm": f"{TLM} --model_config @data/bert.json --seeds 0 1",
    "train_tlm-electra": f"{TLM} --model_config @data/electra.json --objective electra",
    "train_tlm-ale": f"{TLM} --model_config @data/albert.json --objective ale",
    "train_tlm-cocolm": f"{TLM} --model_config @data/cocolm.json --objective cocolm",
    "train_tlm-modernbert": f"{TLM} --model_config @data/modernbert.json --stage2_classifier_pooling mean --packing pack",
    "train_tlm-stage2": f"{TLM} --model_config @data/bert.json {STAGE2}",
    "train_tlm-rdrop": f"{TLM} --model_config @data/bert.json --stage2_rdrop 1",
    "train_tlm-teacher": f"{TLM} --model_config @data/bert.json --teacher linear --teacher_passages 20",
    "train_tlm-starts": f"{TLM} --model_config @data/bert.json {STARTS} --optim muon",
    "train_tlm-lora": f"{TLM} --model_config @data/bert.json --use_peft true --lora_r 2",
    "train_tlm-resumed": f"{TLM} --model_config @data/bert.json --save_steps 4",
    "select_influence-iss": f"{SELECT} --score_model @train_tlm-mlm",
    "select_influence-scratch": f"{SELECT} --model_config @data/bert.json --num_train_epochs 1 --max_length 32",
    "select_influence-dsir": f"{SELECT} --method dsir",
    "pretrain-mlm": f"{PRETRAIN} --model_config @data/bert.json",
    "pretrain-electra": f"{PRETRAIN} --model_config @data/electra.json --objective electra",
    "pretrain-ale": f"{PRETRAIN} --model_config @data/albert.json --objective ale --blocks sentences",
    "pretrain-cocolm": f"{PRETRAIN} --model_config @data/cocolm.json --objective cocolm",
    "pretrain-streaming": f"{PRETRAIN} --model_config @data/bert.json --streaming_blocks true --shard_size 4",
    "finetune-classification": f"finetune.py {TASK} {FINETUNE} --predict @data/classification/test.jsonl",
    "finetune-pairs": f"finetune.py --task @data/pairs --text_pair_column second {FINETUNE}",
    "finetune-regression": f"finetune.py --task @data/regression --task_kind regression {FINETUNE}",
    "finetune-tagging": f"finetune.py --task @data/tagging {FINETUNE} --crf true",
    "finetune-question_answering": f"finetune.py --task @data/question_answering {FINETUNE} --doc_stride 8",
    "finetune-multiple_choice": f"finetune.py --task @data/multiple_choice {FINETUNE}",
    "few_shot": f"few_shot.py {TASK} --model_name_or_path @pretrain-mlm --template '{{text}} It was {{mask}}.' "
    "--label_words down=bad none=fine up=good --k 4 --splits 1 --learning_rates 1e-2 --batch_sizes 4 --max_steps 4 "
    f"--eval_steps 2 --max_length 32 {QUIET}",
    "baseline": f"baseline.py {TASK}",
    "analyze": f"analyze.py --what heads words subsets embeddings curves cost tables report --run @train_tlm-mlm {TASK} "
    "--subsets BM25=@retrieve-bm25 ISS=@select_influence-iss --min_count 1 --max_length 32 --table_rows rho1",
}
SUBJECTS = ("enzyme", "protein", "drug", "gene", "cell", "tumor", "receptor", "acid")
VERBS = {"down": ("inhibits", "blocks", "lowers"), "none": ("meets", "binds"), "up": ("activates", "raises", "induces")}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
MODELS = {
    "bert": {},
    "electra": {"embedding_size": 8},
    "albert": {"embedding_size": 8},
    "cocolm": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8},
}
# Imports the packages that recipes need once, and forks for each line of arguments, because importing takes longer than a
# command. The child runs to this program's end, so that a recipe exits as it does when a user starts it.
STARTER = """
import json, os, runpy, sys
from importlib.util import find_spec
import datasets, numba, scipy.stats, sklearn.linear_model, torch
from transformers import Trainer
assert find_spec("hf_tlm").origin.startswith(os.getcwd() + os.sep), find_spec("hf_tlm")
print("ready", flush=True)
for line in sys.stdin:
    if (child := os.fork()) == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
log, *sys.argv = json.loads(line)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for stream in (1, 2):
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def rows_of(kind: str, count: int, seed: int) -> list[dict]:
    """Return labelled examples for a kind of task, with a learnable rule."""
    rng, rows = random.Random(f"{kind} {seed}"), []
    for number in range(count):
        label = sorted(VERBS)[number % 3]
        nouns = SUBJECTS[2 * (number % 3) :][:4]
        subject, verb, objects = rng.choice(nouns), rng.choice(VERBS[label]), rng.choices(nouns, k=rng.randint(1, 6))
        first, second = f"the {subject} {verb}", f"the {' and the '.join(objects)}"
        text = f"{first} {second}"
        if kind == "classification":
            row = {"text": text, "label": label}
        elif kind == "pairs":
            row = {"text": first, "second": second, "label": label}
        elif kind == "regression":
            row = {"text": text, "label": len(objects) / 2}
        elif kind == "tagging":
            tags = ["O" if word in ("the", "and") else "B-S" if word in SUBJECTS else "B-V" for word in text.split()]
            row = {"tokens": text.split(), "tags": tags}
        elif kind == "multiple_choice":
            options = ["meets", "and", "of"]
            options.insert(number % 4, subject)
            row = {"context": text, "question": f"the _ {verb} {second}", "options": options, "label": "ABCD"[number % 4]}
        else:
            context = f"the cell meets the acid and the gene and {text} and the drug meets the acid and the cell"
            starts = [] if number % 4 == 0 else [context.index(text) + len("the ")]
            answers = {"text": [subject for _ in starts], "answer_start": starts}
            row = {"context": context, "question": f"what {verb} {second}", "answers": answers}
        rows.append({"id": f"{seed}-{number}", **row})
    return rows


def write_data(folder: Path) -> None:
    """Write a task of each kind, a corpus and model configs, always the same."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = ("classification", "pairs", "regression", "tagging", "question_answering", "multiple_choice")
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
        for seed, (split, count) in enumerate({"train": 32, "validation": 12, "test": 12}.items()):
            lines = [json.dumps(row) + "\n" for row in rows_of(kind, count, seed)]
            (folder / kind / f"{split}.jsonl").write_text("".join(lines))
    texts = [f"{row['text']}. It was {('bad', 'fine', 'good')[i % 3]}." for i, row in enumerate(rows_of(kinds[0], 90, 9))]
    table = {"id": [f"p{i}" for i in range(90)], "text": texts, "source": [f"part{i % 2}" for i in range(90)]}
    pq.write_table(pa.table(table), folder / "corpus.parquet")
    for name, values in MODELS.items():
        config = {"model_type": name, **SIZES, "max_position_embeddings": 64, "initializer_range": 0.2, **values}
        (folder / f"{name}.json").write_text(json.dumps(config))


class Side:
    """One checkout: its commands, each in a process of its own, and their output folder."""

    def __init__(self, checkout: Path, folder: Path, data: Path):
        # Names of runs come from the last two parts of their paths, so both sides need the same.
        self.checkout, self.folder, self.data = checkout, folder / "results", data
        self.folder.mkdir(parents=True)
        # A cache of its own: one side's indexes and tokens must not be used by the other.
        environment = {**os.environ, "HF_HOME": str(folder / "cache"), "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
        for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE"):
            environment.pop(name, None)
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.starter = subprocess.Popen([sys.executable, "-c", STARTER], cwd=checkout, env=environment, **pipes)
        self._answer()

    def run(self, name: str) -> float | None:
        """Run a command; return its seconds, or None if it failed."""
        start, done = perf_counter(), self._once(name)
        if done and name.endswith("-resumed"):
            done = self._resume(name)
        return perf_counter() - start if done else None

    def _resume(self, name: str) -> bool:
        """Run a command again, after reducing its output to that of a run killed after stage 1's first checkpoint."""
        run, problem = self.folder / name, "There is no stage1/checkpoint-4 to continue from."
        if kept := next(run.rglob("stage1/checkpoint-4"), None):
            for path in sorted(run.rglob("*"), reverse=True):  # Contents of a folder before the folder.
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
                elif path.is_file() and kept not in path.parents and path != run / "settings.json":
                    path.unlink()
            weights = kept / "model.safetensors"
            written = weights.stat().st_mtime_ns
            if not self._once(name):
                return False
            if weights.is_file() and weights.stat().st_mtime_ns == written:
                return True
            problem = "It began anew instead of continuing."
        with self._log(name).open("a") as log:
            print(problem, file=log)
        return False

    def _once(self, name: str) -> bool:
        places = {"data": self.data}
        recipe, *arguments = shlex.split(PLACE.sub(lambda m: str(places.get(m[1], self.folder / m[1])), COMMANDS[name]))
        arguments += ["--output_dir", str(self.folder / name)]
        print(json.dumps([str(self._log(name)), f"recipes/{recipe}", *arguments]), file=self.starter.stdin, flush=True)
        return self._answer() == "0"

    def _answer(self) -> str:
        if not (line := self.starter.stdout.readline()):
            raise SystemExit(f"Python does not start commands in {self.checkout}; what it wrote is above.")
        return line.strip()

    def _log(self, name: str) -> Path:
        return self.folder.parent / f"{name}.log"

    def last_lines(self, name: str) -> list[str]:
        log = self._log(name)
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        return [line for line in lines if line.strip()][-6:]

    def close(self) -> None:
        self.starter.stdin.close()
        self.starter.wait()


def wanted(only: list[str] | None) -> list[str]:
    """Return the names of the chosen commands and those that they need, each after the ones that it needs."""
    chosen = [n for n in COMMANDS if not only or any(n == each or n.startswith(f"{each}-") for each in only)]
    ordered: dict[str, None] = {}

    def add(name: str) -> None:
        for needed in needs(name):
            add(needed)
        ordered[name] = None

    for name in chosen:
        add(name)
    return list(ordered)


def needs(name: str) -> list[str]:
    return [each for each in PLACE.findall(COMMANDS[name]) if each != "data"]


@contextlib.contextmanager
def checkout(place: str, worktree: Path) -> Iterator[Path]:
    """Yield the folder of a checkout; a revision is checked out into `worktree`, which is removed afterwards."""
    if Path(place).is_dir():
        if not (Path(place) / "recipes").is_dir():
            raise SystemExit(f"{place} is no checkout: it has no folder recipes.")
        yield Path(place).resolve()
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    if subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), place]).returncode:
        raise SystemExit(f"{place} is neither a folder nor a revision of {ROOT}.")
    try:
        yield worktree
    finally:
        subprocess.run([*git, "remove", "--force", str(worktree)], check=True)


def compare(sides: dict[str, Side], names: list[str]) -> bool:
    """Run the commands on both sides, printing a line for each; return whether all results are identical."""
    paths = {str(path): word for side in sides.values() for path, word in ((side.folder, "@"), (side.checkout, "."))}
    width, odd = max(map(len, names)), {}
    for name in names:
        if failed := [each for each in needs(name) if odd.get(each) == "failed"]:
            state, text, lines = "failed", f"not run: {failed[0]} failed", []
        else:
            state, text, lines = compare_command(name, sides, paths, [each for each in needs(name) if each in odd])
        if state != "identical":
            odd[name] = state
        print("\n    ".join([f"{name:{width}}  {text}", *lines]), flush=True)
    return not odd


def compare_command(
    name: str, sides: dict[str, Side], paths: dict[str, str], differing: list[str]
) -> tuple[str, str, list[str]]:
    """Run one command on both sides.

    Args:
        differing: commands whose results it uses, and which differ already.

    Returns:
        ("identical", "differs" or "failed"; a text about it; the lines to print below).
    """
    seconds = {label: side.run(name) for label, side in sides.items()}
    if bad := [label for label, taken in seconds.items() if taken is None]:
        lines = [f"{label}: {line}" for label in bad for line in sides[label].last_lines(name)]
        return "failed", f"FAILS {' and '.join(bad)}", lines
    counts, lines = compare_folders(*(side.folder / name for side in sides.values()), paths)
    taken = "   " + " / ".join(f"{each:.1f} s" for each in seconds.values())
    if counts and not lines:
        found = ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))
        return "identical", f"identical ({found}){taken}", []
    text = f"{len(lines):,} difference{'s' * (len(lines) != 1)}"
    if differing:
        text += f" (and {', '.join(differing)}, which it takes, differs)"
    return "differs", text + taken, lines[:SHOWN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="A folder with a checkout, or a git revision of this repository.")
    parser.add_argument("after", help="The same, to compare it with.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Commands, or recipes, to run with those that they need.")
    parser.add_argument("--keep", metavar="FOLDER", help="A new folder for data, results and logs. Default: none are kept.")
    options = parser.parse_args()
    if unknown := [each for each in options.only or () if not wanted([each])]:
        parser.error(f"no command is called {' or '.join(unknown)}; there are {' '.join(COMMANDS)}")
    names = wanted(options.only)
    with contextlib.ExitStack() as stack:
        work = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-"))).resolve()
        if options.keep and work.exists():
            parser.error(f"--keep {options.keep} is there already")
        write_data(work / "data")
        sides = {}
        for label in ("before", "after"):
            folder = stack.enter_context(checkout(getattr(options, label), work / f"{label}-checkout"))
            sides[label] = stack.enter_context(contextlib.closing(Side(folder, work / label, work / "data")))
        same = compare(sides, names)
        print("\nAll identical." if same else "\nNot all identical.")
    sys.exit(not same)


if __name__ == "__main__":
    main()
