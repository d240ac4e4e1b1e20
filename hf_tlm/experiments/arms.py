"""Arms of an experiment as data: what a model is trained on, how, and which published figures belong to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hf_tlm.errors import HfTlmError
from hf_tlm.experiments.published import PUBLISHED, PUBLISHED_BY_ARM
from hf_tlm.objective_specs import OBJECTIVES

# The recipes whose options an arm can set, under the recipe's name, as in a YAML file.
SECTIONS = ("retrieve", "select_influence", "train_tlm", "finetune")
PRETRAINED = "pretrained"
# Arms without a network, by their names.
BASELINES = ("majority class", "linear")
METHODS = {"bm25": "bm25-rank", **{name: name for name in ("iss", "dsir", "random", "confidence", "disagreement")}}
_SELECTION = re.compile(rf"(?:bm25 \+ )?({'|'.join(METHODS)}) (\d+(?:\.\d+)?)%", re.IGNORECASE)
# The vocabulary of an arm: the one that all arms of a task share, or one trained on its own texts.
TOKENIZERS = ("shared", "own")
_ARM_KEYS = ("name", "subset", "objective", PRETRAINED, "teacher", "tokenizer", "average", "published", *SECTIONS)
_TASK_KEYS = ("task", "seeds", *SECTIONS)

Settings = Mapping[str, Mapping[str, Any]]


class ReproductionError(HfTlmError):
    """Raised when a table cannot be planned, or existing runs do not belong to it."""


@dataclass(frozen=True)
class Selection:
    """The corpus data of an arm: passages retrieved by BM25 or at random, or a selection from those of BM25.

    retriever: bm25, random; None for task data only.
    method, fraction: arguments of `hf_tlm.influence.select`; None for the complete subset.
    """

    retriever: str | None
    method: str | None = None
    fraction: float | None = None

    @classmethod
    def read(cls, text: str) -> Selection:
        """Parse the name that tables use: none, random, BM25, BM25 + ISS 20%, DSIR 20%, BM25 20%, random 20%.

        `random` draws as many passages of the corpus as BM25 finds. `random 20%` and `BM25 20%` (the best ranked) are parts
        of what BM25 finds, and so are `confidence 20%` and `disagreement 20%`, by the teacher in the options of
        `select_influence`.

        Raises:
            ReproductionError: the text is none of these names.
        """
        simple = {"none": None, "task only": None, "random": "random", "bm25": "bm25"}
        if text.lower() in simple:
            return cls(simple[text.lower()])
        if match := _SELECTION.fullmatch(text):
            fraction = float(match[2]) / 100
            if 0 < fraction <= 1:
                return cls("bm25", METHODS[match[1].lower()], fraction)
        raise ReproductionError(
            f"A subset is none, random, BM25, or a share of BM25's such as 'BM25 + ISS 20%', 'DSIR 20%', 'BM25 20%', "
            f"'random 20%'; received {text!r}."
        )


@dataclass(frozen=True)
class Arm:
    """An arm: the settings that the runs of one line of a table share.

    subset: the corpus data; None if a pretrained encoder is fine-tuned, or for a baseline without a network.
    pretrained: folder or Hub id of the encoder; "" for the encoder that the whole table uses.
    objective: the language-modelling objective; None for the objectives of the table.
    baseline: one of `BASELINES`.
    teacher: the arm of the table whose model of the same task and seed teaches this arm's model. If that arm is an
        `average`, all of its models together teach the model of every seed.
    tokenizer: one of `TOKENIZERS`; "own" is trained by `hf-tlm train` on the task's texts and the subset.
    average: the arm of the table whose seeds' models are averaged; nothing is trained.
    settings: recipe -> options, which override the configuration files.
    published: keys of `PUBLISHED`, rows of the papers' tables to show beside this arm.
    """

    name: str
    subset: Selection | None = None
    pretrained: str | None = None
    objective: str | None = None
    baseline: str | None = None
    teacher: str | None = None
    tokenizer: str = "shared"
    average: str | None = None
    settings: Settings = field(default_factory=dict)
    published: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Arm:
        """Parse an arm from the name of its subset, or from a JSON object.

        Names are `task only`, `pretrained`, `majority class`, `linear`, and those that `Selection.read` accepts; they get
        the papers' figures in `PUBLISHED_BY_ARM`. An object has the keys name, subset (default: the name), objective,
        pretrained (true, or a checkpoint), teacher (the name of another arm), tokenizer (shared, own), published, and
        options under the names of their recipes: `{"name": "rho1 = 3", "subset": "BM25", "train_tlm": {"rho1": 3}}`. An
        average of the seeds of another arm has no other keys: `{"name": "BM25, averaged", "average": "BM25"}`.

        Raises:
            ReproductionError: an unknown key, subset or published row.
        """
        if text.lower() in BASELINES:
            return cls(text.lower(), baseline=text.lower())
        values = _read_object(text, "An arm", _ARM_KEYS)
        if values is None:
            values = {"name": text, PRETRAINED: text == PRETRAINED, "published": PUBLISHED_BY_ARM.get(text.lower())}
        name = str(values.get("name") or values.get("subset") or "")
        if not slug(name):
            raise ReproductionError(f"An arm needs a name; received {text}.")
        published = tuple(values.get("published") or ())
        if unknown := [row for row in published if row not in PUBLISHED]:
            raise ReproductionError(
                f"Arm {name}: unknown published row {unknown[0]!r}. Choose a row of hf_tlm.experiments.PUBLISHED."
            )
        if values.get("average") is not None:
            if others := sorted({*values} - {"name", "average"}):
                raise ReproductionError(
                    f"Arm {name} is the average of {values['average']!r:.60}: an average has only a name. Remove "
                    f"{', '.join(others)}."
                )
            return cls(name, average=str(values["average"]))
        pretrained = values.get(PRETRAINED) or None
        subset = None
        if pretrained is None:
            subset = Selection.read(str(values.get("subset") or name))
        elif {"subset", "objective", "teacher", "tokenizer"} & set(values):
            raise ReproductionError(
                f"Arm {name} fine-tunes a pretrained encoder, which has its own tokenizer and uses no subset, objective or "
                "teacher. Remove these keys."
            )
        tokenizer = values.get("tokenizer", "shared")
        if tokenizer not in TOKENIZERS:
            raise ReproductionError(
                f"Arm {name}: tokenizer must be one of {', '.join(TOKENIZERS)}; received {tokenizer!r:.60}."
            )
        return cls(
            name,
            subset,
            "" if pretrained is True else pretrained,
            values.get("objective"),
            teacher=None if values.get("teacher") is None else str(values["teacher"]),
            tokenizer=tokenizer,
            settings=_read_settings(values, f"Arm {name}"),
            published=published,
        )

    def with_objectives(self, objectives: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Arm]:
        """Return a copy of this arm for each objective of the table; with several objectives, the names contain them.

        An arm that sets its objective, or is not trained from scratch, is returned alone and unchanged. Published figures
        are kept for the masked LM only, with which the papers trained.

        Args:
            objectives: from `read_objective`.
        """
        if self.subset is None or self.objective is not None or not objectives:
            return [self]
        return [
            replace(
                self,
                name=self.name if len(objectives) == 1 else f"{self.name}, {OBJECTIVES[objective].title}",
                objective=objective,
                published=self.published if objective == "mlm" else (),
                settings={**self.settings, "train_tlm": {**options, **self.settings.get("train_tlm", {})}},
            )
            for objective, options in objectives
        ]


def check_arms(arms: Sequence[Arm]) -> dict[str, Arm]:
    """Return the arms of a table by name; raise a ReproductionError if a teacher or an averaged arm is not one of them."""
    by_name = {arm.name: arm for arm in arms}
    for arm in arms:
        teacher = by_name.get(arm.teacher or "")
        averaged = by_name.get(arm.average or "")
        if arm.average is not None and (averaged is None or averaged.baseline is not None or averaged.average is not None):
            raise ReproductionError(
                f"Arm {arm.name}: average must name another arm of the table with a network; received {arm.average!r:.60}. "
                f"The arms of the table are {', '.join(by_name)}."
            )
        network = teacher if teacher is None or teacher.average is None else by_name.get(teacher.average)
        untaught = network is not None and (network.baseline, network.teacher, network.average) == (None, None, None)
        if arm.teacher is not None and not untaught:
            raise ReproductionError(
                f"Arm {arm.name}: teacher must name another arm of the table with a network and without such a teacher, or "
                f"the average of one; received {arm.teacher!r:.60}. The arms of the table are {', '.join(by_name)}; for a "
                "linear teacher set the option train_tlm: {teacher: linear}."
            )
    return by_name


@dataclass(frozen=True)
class TaskEntry:
    """A task of a table. seeds: None for the table's seeds. settings: recipe -> options; an arm's options override them."""

    task: str
    seeds: tuple[int, ...] | None = None
    settings: Settings = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> TaskEntry:
        """Parse a task as recipes accept it, or a JSON object: `{"task": "imdb", "seeds": [0], "train_tlm": {"rho1": 19}}`.

        Raises:
            ReproductionError: a key is unknown, the task is missing, or seeds are not valid.
        """
        values = _read_object(text, "A task", _TASK_KEYS)
        if values is None:
            return cls(text)
        if not isinstance(values.get("task"), str) or not values["task"]:
            raise ReproductionError(f"A task of a table needs its name or folder under 'task'; received {text}.")
        seeds = values.get("seeds")
        if seeds is not None and not (
            isinstance(seeds, list) and seeds and all(type(seed) is int and 0 <= seed < 2**32 for seed in seeds)
        ):
            raise ReproductionError(
                f"Task {values['task']}: seeds must be a list of whole numbers from 0; received {seeds!r:.60}."
            )
        settings = _read_settings(values, f"Task {values['task']}")
        return cls(values["task"], None if seeds is None else tuple(seeds), settings)


def read_objective(text: str) -> tuple[str, dict[str, Any]]:
    """Parse an objective from its name, or a JSON object such as `{"objective": "cocolm", "model_config": ...}`.

    Returns:
        The name and the options of the objective.

    Raises:
        ReproductionError: the objective is unknown, or the JSON is not valid.
    """
    values = _read_object(text, "An objective", None)
    options = {"objective": text} if values is None else dict(values)
    name = options.pop("objective", None)
    if name not in OBJECTIVES:
        raise ReproductionError(f"An objective is one of {', '.join(OBJECTIVES)}; received {text}.")
    return name, options


def slug(text: str) -> str:
    """Return a folder name for a text: `BM25 + ISS 20%` -> `bm25-iss-20`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _read_object(text: str, description: str, keys: Sequence[str] | None) -> dict[str, Any] | None:
    """Parse a text as a JSON object with these keys; return None for a text that does not begin with a brace."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReproductionError(f"{description} is a name or a JSON object; received {text!r}: {error}.") from error
    if keys is not None and (unknown := [key for key in values if key not in keys]):
        raise ReproductionError(f"{description} has no key {unknown[0]!r}: the keys are {', '.join(keys)}. Received {text}.")
    return values


def _read_settings(values: Mapping[str, Any], description: str) -> dict[str, dict[str, Any]]:
    settings = {name: values[name] for name in SECTIONS if name in values}
    for name, options in settings.items():
        if not isinstance(options, dict):
            raise ReproductionError(
                f"{description}: {name} must be a mapping of options of recipes/{name}.py; received {options!r}."
            )
    return settings
