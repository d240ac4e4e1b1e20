"""Ask a teacher, once and before training, for its answers on the task's texts and on the passages of a subset."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from datasets import Dataset, List, Value

from hf_tlm.corpora.tables import TABLE_BUILDERS, suffix_of
from hf_tlm.errors import ArgumentsError
from hf_tlm.influence import PassageScores
from hf_tlm.retrieval import Subset
from hf_tlm.retrieval.subset import check_replaceable, check_subset
from hf_tlm.runs.arguments import MACHINE_OPTIONS
from hf_tlm.runs.teachers.answers import Answers, TableTeacher, certainty, most_certain, progress, read_mapping, task_lengths
from hf_tlm.runs.teachers.marks import MarkedPhrases, marks_without_passages, read_marks
from hf_tlm.runs.teachers.models import LinearTeacher, ModelTeacher
from hf_tlm.tasks import Task
from hf_tlm.tasks.spec import check_task
from hf_tlm.training.run_arguments import training_options
from hf_tlm.training.teacher import Teacher, described, doubts, shortened
from hf_tlm.training.teacher_arguments import LINEAR, SELF, WITHOUT_PASSAGES
from hf_tlm.utils.arrow_files import cache_folder
from hf_tlm.utils.json_files import find_object
from hf_tlm.utils.locks import broadcast_decision, rank_and_size
from hf_tlm.utils.options import conditions_of
from hf_tlm.utils.process import uses_fsdp
from hf_tlm.utils.run_files import MANIFEST_FILE
from hf_tlm.utils.seals import keep_sealed, seal_problem

logger = logging.getLogger(__name__)

ANSWERS, REPORT = "answers.npz", "report.json"
# Number of example passages per class in the report, and of characters of each.
NUM_EXAMPLES, EXAMPLE_LENGTH = 3, 200
_FORMAT = 5
# Options of a teacher that only training uses, and selection ignores.
_TRAINING_ONLY = (
    *("teacher_weight", "teacher_temperature", "teacher_passages", "teacher_candidates", "teacher_share"),
    *("teacher_marks", "teacher_rounds", "teacher_output"),
)
_ARRAYS = ("train", "passages", "disagreement")
# Entries of a report that go into a subset's manifest, which contains no times.
_IDENTITY, _COST = ("model", "teachers", "earlier", "file"), ("parameters", "tokens", "flops")


def open_teacher(task: Task, args: Any) -> LinearTeacher | ModelTeacher | TableTeacher | None:
    """Open the teacher that the arguments name; return None without one, and if the run itself teaches its later rounds.

    Args:
        args: arguments of a run, with the fields of `TeacherArguments`.

    Raises:
        ArgumentsError: the task is neither classification nor regression; options cannot be combined; a file does not
            exist; or see the classes of teachers.
    """
    if not args.taught:
        return None
    if task.kind not in ("classification", "regression"):
        raise ArgumentsError(
            f"A teacher is only for classification and regression; {task.name} is a {task.kind.replace('_', ' ')} task. "
            "Remove --teacher."
        )
    if task.kind == "regression":
        for option, default in (("teacher_temperature", 1.0), ("teacher_trust", "confidence")):
            if (value := getattr(args, option)) != default:
                raise ArgumentsError(
                    f"{option} {value} has no effect for regression: it applies to probabilities. Remove it."
                )
    if args.teacher_marks:
        read_marks(args.teacher_marks)
        if args.teacher_passage_length == "task":
            raise ArgumentsError(
                "teacher_passage_length task shortens passages, but teacher_marks uses sentences as long as the task's "
                "texts instead. Remove one of these options."
            )
    mapping, name = read_mapping(args.teacher_labels), args.teacher[0]
    if mapping and (name in (LINEAR, SELF) or task.kind == "regression"):
        raise ArgumentsError("teacher_labels has no effect: this teacher has no class names of its own. Remove it.")
    if name == SELF:
        return None
    if name == LINEAR:
        return LinearTeacher(task)
    if files := [path for path in args.teacher if Path(path).is_file()]:
        return _open_table(task, args, files[0], mapping)
    if missing := [path for path in args.teacher if suffix_of(Path(path)) in TABLE_BUILDERS and not Path(path).exists()]:
        raise ArgumentsError(f"teacher {missing[0]}: this file does not exist. Pass the path of a file with answers.")
    return ModelTeacher(task, args.teacher, mapping, {option: getattr(args, option) for option in MACHINE_OPTIONS})


def _open_table(task: Task, args: Any, file: str, mapping: Mapping[str, str]) -> TableTeacher:
    """Open a file of answers.

    Raises:
        ArgumentsError: it is combined with other teachers, or with options that need a model; or see `TableTeacher`.
    """
    if len(args.teacher) > 1:
        raise ArgumentsError(
            f"teacher {file} is a file of answers, which cannot be combined with other teachers. Remove the others."
        )
    if args.teacher_passage_length == "task":
        raise ArgumentsError(
            "teacher_passage_length task asks about parts of passages, but a file has answers for complete passages. "
            "Remove it."
        )
    if args.teacher_marks:
        raise ArgumentsError(
            "teacher_marks asks about marked sentences, but a file has answers for unchanged passages. Remove it."
        )
    return TableTeacher(task, Path(file), mapping)


def check_passage_options(task: Task, has_passages: bool, args: Any) -> None:
    """Check the options about a teacher's passages.

    Args:
        has_passages: whether the run has a subset.
        args: arguments of a run, with the fields of `TeacherArguments`.

    Raises:
        ArgumentsError: such an option is given without a subset, or for pairs of texts, for which a teacher answers only on
            the task's texts; `teacher_output` is combined with `teacher_marks`, is the run's own folder, or contains a
            subset without a teacher's answers, which would be lost.
        RetrievalError: `teacher_output` contains something else than a subset.
    """
    if (output := getattr(args, "teacher_output", None)) is not None:
        if Path(output).resolve() == args.folder.resolve():
            raise ArgumentsError(f"teacher_output {output} is the folder of the run itself. Choose another folder.")
        if args.teacher_marks:
            raise ArgumentsError(
                "teacher_output saves answers for passages, but with teacher_marks the answers are for sentences. Remove "
                "one of these options."
            )
        check_replaceable(Path(output))
        if "teacher" not in (find_object(Path(output) / MANIFEST_FILE) or {"teacher": None}):
            raise ArgumentsError(
                f"teacher_output {output} contains a subset without a teacher's answers, and this subset would be lost. "
                "Choose another folder."
            )
    if not args.taught or (has_passages and not task.has_pairs):
        return
    reason = "for pairs of texts" if has_passages else "without a subset"
    for name, default, conditions in conditions_of(args.__class__):
        value = getattr(args, name)
        is_passage_option = WITHOUT_PASSAGES in conditions or (name == "teacher_passages" and value != 0)
        if is_passage_option and value != default:
            raise ArgumentsError(f"{name} {value} has no effect {reason}: it applies to a teacher's passages. Remove it.")


def digest_teacher(teacher: LinearTeacher | ModelTeacher | TableTeacher | None) -> str | None:
    """Return a digest of the files that a teacher's answers depend on; None if they depend on none."""
    if teacher is None or isinstance(teacher, LinearTeacher):
        return None
    return xxhash.xxh3_128_hexdigest(teacher.digest.encode())


def ask_teacher(task: Task, passages: Dataset | None, args: Any) -> Teacher | None:
    """Ask the teacher of `args`, or read its answers from the cache of `datasets`; return None without a teacher.

    The answers are cached for every run that asks the same. If the answer on a text of the task is wrong, it is replaced by
    the text's label, because mistakes would be learned too (see benchmarks/results/plateau.md for their cost). From the
    first `teacher_candidates` passages, at most `teacher_passages` are used: for each class those on which the teacher is
    most certain, in proportion to the class's training texts. With `teacher_marks`, marked sentences of these passages are
    used instead, and chosen in the same way. For pairs of texts the teacher answers only on the task's texts. All processes
    must call this; the first one writes the files.

    Args:
        passages: columns `text`, and `id` if a file of answers uses ids, in the subset's order, by rank; None without
            passages.
        args: arguments of a run, with the fields of `TeacherArguments`.

    Raises:
        ArgumentsError, ModelError, TaskError, HubError: see `open_teacher` and the teachers.
    """
    teacher = open_teacher(task, args)
    if teacher is None:
        return None
    rank, processes = rank_and_size()
    passages = asked_passages(task, passages, args)
    ends = _passage_ends(task, passages, args)
    answers = _get_answers(teacher, task, passages, ends, args)
    result = broadcast_decision(answers and _create_teacher(task, passages, ends, args, answers, teacher.about), processes)
    if rank == 0:
        _log_report(result.report)
    return result


def asked_passages(task: Task, passages: Dataset | None, args: Any) -> Dataset | None:
    """Return the passages to ask a teacher about, or marked sentences of them (column `text`); None without any.

    All processes must call this. The arguments are those of `ask_teacher`.

    Raises:
        ArgumentsError: no training text has the marks, or no sentence can be marked.
    """
    if passages is None or not len(passages) or not args.teacher_passages or task.has_pairs:
        return None
    if args.teacher_candidates is not None:
        passages = passages.select(range(min(args.teacher_candidates, len(passages))))
    if not args.teacher_marks:
        return passages
    rank, processes = rank_and_size()
    return broadcast_decision(rank == 0 and _mark_sentences(task, passages, args), processes)


def teacher_scores(task: Task, subset: Subset, method: str, args: Any) -> PassageScores:
    """Score all passages of a subset by the answers of the teachers of `args`, for `hf_tlm.select` with the same `method`.

    The answers are cached and shared with `ask_teacher`. All processes must call this.

    Args:
        method: "confidence": the probability of the most probable class, or with `teacher_trust` entropy the negative
            entropy in nats. "disagreement": the divergence of several teachers from their average, see `Answers`.
        args: arguments of a run, with the fields of `TeacherArguments`.

    Raises:
        ArgumentsError: there is no teacher, or only one for disagreement; the task has pairs of texts; or see
            `ask_teacher`.
    """
    check_task(task)
    check_subset(subset)
    teacher = open_teacher(task, args)
    if teacher is None or task.has_pairs:
        reason = (
            f"received {' '.join(args.teacher)}"
            if teacher is None
            else f"no teacher answers for passages with pairs of texts, as {task.name} has"
        )
        raise ArgumentsError(f"Selection by {method} needs a --teacher that answers for passages; {reason}.")
    if method == "disagreement":
        if not isinstance(teacher, ModelTeacher) or len({model.digest for model in teacher.models}) < 2:
            raise ArgumentsError(
                "Disagreement needs several different teachers: expected the folders of two or more runs, as --teacher "
                f"runs/a runs/b; received {teacher.about['model']}."
            )
        if args.teacher_trust != "confidence":
            raise ArgumentsError("teacher_trust has no effect on disagreement. Remove it.")
    defaults = {field.name: field.default for field in fields(args) if field.name in _TRAINING_ONLY}
    ignored = [f"{name} {value}" for name, default in defaults.items() if (value := getattr(args, name)) != default]
    if ignored := [*ignored, *training_options(args)]:
        logger.warning("With method %s these options have no effect: %s.", method, ", ".join(ignored))
    ends = _passage_ends(task, subset.dataset, args)
    answers, scores = _get_answers(teacher, task, subset.dataset, ends, args), None
    if answers is not None:
        probabilities = answers.passages
        values = answers.disagreement if method == "disagreement" else certainty(probabilities, args.teacher_trust)
        values = np.where(probabilities.sum(1) > 0, values, np.nan)
        report = {**teacher.about, **answers.report}
        description: dict[str, Any] = {"teacher": {name: report[name] for name in (*_IDENTITY, *_COST) if name in report}}
        description |= {"trust": args.teacher_trust} if method == "confidence" else {}
        description |= {"passage_length": "task"} if args.teacher_passage_length == "task" else {}
        scores = PassageScores(values, probabilities.argmax(1), description)
        marks = marks_without_passages(task.train["text"], subset.dataset["text"])
        _log_report({**report, "marks_without_passages": marks})
    return broadcast_decision(scores, rank_and_size()[1])


def _get_answers(
    teacher: LinearTeacher | ModelTeacher | TableTeacher, task: Task, passages: Dataset | None, ends: np.ndarray, args: Any
) -> Answers | None:
    """Return the teacher's answers, from the cache or by asking it with all processes; None on all but the first process."""
    rank, processes = rank_and_size()
    folder = cache_folder() / f"teacher-{_cache_key(teacher.digest, task, passages, ends)}"
    chunk_folder = folder.with_name(f"{folder.name}.parts")
    if broadcast_decision(rank == 0 and seal_problem(folder, ANSWERS, REPORT) is not None, processes):
        start_time, answers = time.monotonic(), None
        if isinstance(teacher, ModelTeacher):
            if uses_fsdp(args):
                raise ArgumentsError(
                    "A teacher that is a model does not work with FSDP. First run the same command in one process until "
                    "training starts: the teacher's answers are saved in the cache."
                )
            answers = teacher(task, None if passages is None else shortened(passages, ends), chunk_folder)
        elif rank == 0:
            answers = teacher(task, None if passages is None else shortened(passages, ends))
        if rank == 0:
            assert answers is not None
            answers.report.setdefault("seconds", round(time.monotonic() - start_time, 1))
            keep_sealed(folder, partial(_write, answers), ANSWERS, REPORT)
            shutil.rmtree(chunk_folder, ignore_errors=True)
    return _read(folder) if rank == 0 else None


def _log_report(report: Mapping[str, Any]) -> None:
    logger.info("The teacher: %s", described(report))
    for warning in doubts(report):
        logger.warning(warning)


def answered_subset(subset: Subset, teacher: Teacher, label_names: Sequence[str]) -> Subset:
    """Add a column `teacher_probs` to a subset: float32 [C] for passages that the teacher answers for, null for others.

    The manifest then describes the teacher and names the classes of these probabilities.
    """
    answers: list[list[float] | None] = [None] * len(subset)
    for row, probabilities in zip(teacher.rows.tolist(), teacher.passages.tolist(), strict=True):
        answers[row] = probabilities
    rows = subset.dataset
    rows = rows.remove_columns("teacher_probs") if "teacher_probs" in rows.column_names else rows
    description: dict[str, Any] = {name: teacher.report[name] for name in (*_IDENTITY, "passages") if name in teacher.report}
    num_cut = int(sum(end < len(text) for end, text in zip(teacher.ends, rows.select(teacher.rows)["text"], strict=True)))
    manifest = {**subset.manifest, "teacher": {**description, "label_names": list(label_names), "cut_passages": num_cut}}
    return Subset(rows.add_column("teacher_probs", answers, feature=List(Value("float32"))), manifest)


def _mark_sentences(task: Task, passages: Dataset, args: Any) -> Dataset:
    phrases = MarkedPhrases(task.train["text"][:], read_marks(args.teacher_marks))
    texts = phrases.texts_of(progress(passages["text"], "Marking sentences", " passages"))
    if not texts:
        raise ArgumentsError(
            f"teacher_marks: no sentence of the {len(passages):,} passages contains a phrase of every kind that the task's "
            "texts mark. Remove teacher_marks; --teacher_passages 0 uses the teacher only on the task's texts."
        )
    return Dataset.from_dict({"text": texts})


def _passage_ends(task: Task, passages: Dataset | None, args: Any) -> np.ndarray:
    """Return the number of characters of each passage, int64 [M], that teacher and student see."""
    if passages is None:
        return np.zeros(0, dtype=np.int64)
    if args.teacher_passage_length == "task":
        return task_lengths(task.train["text"], passages["text"])
    return np.array([len(text) for text in passages["text"]], dtype=np.int64)


def _cache_key(digest: str, task: Task, passages: Dataset | None, ends: np.ndarray) -> str:
    key = xxhash.xxh3_128(json.dumps([_FORMAT, digest, task.kind, list(task.label_names)]).encode())
    splits = [task.train, task.validation, *([] if passages is None else [passages])]
    for rows in splits:
        columns = [name for name in ("id", "text", "text_pair", "label") if name in rows.column_names]
        for batch in rows.select_columns(columns).iter(1000):
            key.update(json.dumps(batch).encode("utf-8", "surrogatepass"))
    key.update(ends.tobytes())
    return key.hexdigest()


def _create_teacher(
    task: Task, passages: Dataset | None, ends: np.ndarray, args: Any, answers: Answers, about: Mapping[str, Any]
) -> Teacher:
    train, passage_answers = answers.train, answers.passages
    report: dict[str, Any] = {**about, **answers.report}
    texts, rows = passages["text"][:] if passages is not None else [], np.zeros(0, dtype=np.int64)
    if task.kind == "regression":
        rows = np.flatnonzero(np.isfinite(passage_answers[:, 0]))[: args.teacher_passages]
        if passages is not None:
            report["passages"] = len(rows)
    else:
        labels, classes = np.asarray(task.train["label"][:]), task.num_labels
        shares = np.bincount(labels, minlength=classes) / len(labels)
        train = replace_wrong_answers(train, labels)
        if passages is not None:
            rows = most_certain(passage_answers, shares, args.teacher_passages, args.teacher_trust)
            report |= _describe_passages(task, texts, ends, passage_answers, rows, shares, args.teacher_trust)
    selected, marked_texts = passage_answers[rows].astype(np.float32), None
    if passages is not None and args.teacher_marks:
        report |= {"marks": args.teacher_marks, "marked_sentences": len(passages)}
        marked_texts = passages.select(rows)["text"][:]
    return Teacher(train.astype(np.float32), rows, ends[rows], selected, report, marked_texts)


def _describe_passages(
    task: Task,
    texts: Sequence[str],
    ends: np.ndarray,
    probabilities: np.ndarray,
    rows: np.ndarray,
    shares: np.ndarray,
    trust: str,
) -> dict[str, Any]:
    names, answered = task.label_names, probabilities.sum(1) > 0
    predictions, certainties = probabilities.argmax(1), certainty(probabilities, trust)

    def count_by_class(indices: np.ndarray) -> dict[str, int]:
        return dict(zip(names, np.bincount(predictions[indices], minlength=len(names)).tolist(), strict=True))

    is_selected, examples = np.isin(np.arange(len(probabilities)), rows), {}
    for label, name in enumerate(names):
        indices = np.flatnonzero((predictions == label) & answered)
        indices = indices[np.argsort(-certainties[indices], kind="stable")]
        # The most certain ones, and the least certain one.
        example_rows = [*indices[:NUM_EXAMPLES], *indices[NUM_EXAMPLES:][-1:]]
        examples[name] = [
            {
                "text": texts[row][: ends[row]][:EXAMPLE_LENGTH],
                "probability": round(float(probabilities[row, label]), 4),
                "taught": bool(is_selected[row]),
            }
            for row in example_rows
        ]
    confidence = (
        np.histogram(probabilities[answered].max(1), bins=10, range=(0, 1))[0].tolist() if answered.any() else [0] * 10
    )
    return {
        "passages": len(rows),
        "passages_by_class": count_by_class(rows),
        "subset_by_class": count_by_class(np.flatnonzero(answered)),
        "class_shares": dict(zip(names, shares.round(4).tolist(), strict=True)),
        "mean_confidence": round(float(probabilities[rows].max(1).mean()), 4) if len(rows) else None,
        "confidence_by_tenth": confidence,
        "marks_without_passages": marks_without_passages(task.train["text"], texts),
        "examples": examples,
    }


def replace_wrong_answers(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Replace rows of probabilities, float [N, C], in which the label is not the most probable class, by one-hot labels."""
    wrong = (probabilities.argmax(1) != labels) & (probabilities.sum(1) > 0)
    return np.where(wrong[:, None], np.eye(probabilities.shape[1])[labels], probabilities)


def _write(answers: Answers, folder: Path) -> None:
    np.savez(folder / ANSWERS, **{name: getattr(answers, name) for name in _ARRAYS})
    (folder / REPORT).write_text(json.dumps(answers.report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(folder: Path) -> Answers:
    with np.load(folder / ANSWERS) as file:
        arrays = {name: file[name] for name in _ARRAYS}
    return Answers(**arrays, report=json.loads((folder / REPORT).read_text(encoding="utf-8")))
