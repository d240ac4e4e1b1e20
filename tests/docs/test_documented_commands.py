"""Every command on every page exists and accepts its options and values, and its presets exist.

Commands are parsed by the recipes' own parsers and not run; test_tutorials.py runs the tutorials.
"""

import re

import pytest

from commands import ROOT, read_command
from hf_tlm.cli import launch_options
from hf_tlm.commands import COMMANDS, command_of, presets
from hf_tlm.config import ConfigError, parse
from hf_tlm.errors import HfTlmError
from make_reference import parser_of
from support.documentation import blocks, inline_code, page_name, pages, shell_commands

PAGES = pages()
# Other programs that pages call, which are not checked.
OTHERS = {
    *("accelerate", "pip", "pytest", "python", "python3", "sphinx-build", "ruff", "mypy", "pre-commit", "tensorboard", "uv"),
    *("cat", "cd", "cp", "curl", "echo", "export", "head", "hf", "ls", "mkdir", "mv", "printf", "rm", "sbatch", "tail"),
    *("docker", "git", "npm", "run"),
}
OPTION = re.compile(r"--[a-z]\w*")
# Options of hf-tlm that are not a command's own, of accelerate, and of Slurm.
OPTIONS_OF_OTHERS = {"--help", "--help_all", "--version", "--num_processes", "--config_file"}
OPTIONS_OF_OTHERS |= {"--gpu_ids", "--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port"}
OPTIONS_OF_OTHERS |= {"--requeue", "--signal"}


def own_command(words):
    """Return the name and the arguments of an hf-tlm command or recipe that `words` call, else None."""
    words = words[1:] if words[0] == "exec" else words
    program = words[0].rsplit("/", 1)[-1]
    if program == "hf-tlm" and len(words) > 1 and re.match(r"[a-z]", words[1]):  # Not the placeholder COMMAND.
        return words[1], words[2:]
    if program in ("python", "python3", "accelerate", "torchrun"):
        for position, word in enumerate(words):
            if script := re.fullmatch(r"(?:\S*/)?recipes/(\w+)\.py", word):
                return command_of(script[1]) or script[1], words[position + 1 :]
            if word == "hf_tlm.cli" and position + 1 < len(words):
                return words[position + 1], words[position + 2 :]
    return None


def problem(name, arguments, capsys, whole=True):
    """Return why a command would refuse its command line, or None.

    An ellipsis stands for required options, and so does anything missing from a command that is not `whole`.
    """
    if name in ("presets", "completion"):
        return None
    if name not in COMMANDS:
        return f"there is no command {name}; there are {', '.join(COMMANDS)}"
    whole = whole and not {"...", "…"} & set(arguments)
    arguments = [word for word in arguments if word not in ("...", "…")]
    _, arguments = launch_options(arguments)
    if {"--help", "--help_all", "-h"} & set(arguments):
        return None
    command = read_command(name)
    while True:
        try:
            parse(*command.classes, recipe=command.recipe, description=command.description, args=arguments)
            return None
        except SystemExit:
            message = capsys.readouterr().err
            missing = re.search(r"the following arguments are required: (.*)", message)
            if whole or missing is None:
                return message.splitlines()[0]
            for option in missing[1].split(", "):
                name = option.split("/")[0]
                choices = next(a.choices for a in parser_of(command)._actions if name in a.option_strings)
                arguments = [*arguments, name, choices[0] if choices else "1"]
        except ConfigError as error:
            return str(error)
        except HfTlmError as error:
            # The reader's files, a GPU and a cluster do not exist here; a command within a sentence may be incomplete.
            absent = any(part in str(error).lower() for part in ("there is no", "does not exist", "torch sees none here"))
            return None if not whole or absent else str(error)


def commands_of(text):
    """Yield the commands of a page and whether each is complete: of bash blocks, and of inline code."""
    for block in blocks(text):
        if block.language in ("bash", "sh", "shell", "console"):
            yield from ((words, True) for words in shell_commands(block.text))
    for code in inline_code(text):
        if re.match(r"(hf-tlm|python (recipes|benchmarks)/|accelerate launch) ?\S", code):
            yield from ((words, False) for words in shell_commands(code))


@pytest.fixture
def in_clone(monkeypatch):
    """Change to the top folder of the clone, which presets name files relative to."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_are_accepted(page, capsys, in_clone):
    found = []
    for words, whole in commands_of(page.read_text(encoding="utf-8")):
        line = " ".join(words)
        if ours := own_command(words):
            if wrong := problem(*ours, capsys, whole):
                found.append(f"{line}\n    {wrong}")
        elif benchmark := next((word for word in words if re.fullmatch(r"benchmarks/\w+\.py", word)), None):
            found += [f"{line}\n    {wrong}" for wrong in problems_of_benchmark(benchmark, words)]
        elif words[0].rsplit("/", 1)[-1] not in {*OTHERS, "hf-tlm"}:
            found.append(f"{line}\n    {words[0]} is no command that the pages use; add it to OTHERS if it should be.")
    assert not found, "\n".join(["", *found])


def problems_of_benchmark(script, words):
    """Return the options of a benchmark's command that its source, or their shared module, does not have."""
    if not (ROOT / script).is_file():
        return [f"there is no {script}"]
    shared = [ROOT / script, ROOT / "benchmarks" / "results_file.py"]
    source = "".join(path.read_text(encoding="utf-8") for path in shared)
    return [f"no option {word}" for word in words if OPTION.fullmatch(word) and f'"{word}"' not in source]


SUBSETS = {"--subset", "--subsets", "--like"}
RUNS = {"--run", "--models", "--model", "--model_name_or_path", "--score_model", "--teacher"}
TRAININGS = {"train", "finetune", "pretrain", "few-shot"}
# What another start of a run may change.
FREE = {"--seeds", "--push_to_hub", "--hub_model_id", "--hub_strategy", "--resume_from_checkpoint"}
FREE |= {"--predict", "--predict_output"}


def values_of(words):
    """The values of each option of a command line, of pairs name=folder the folders."""
    found = {}
    for word in words:
        if word.startswith("--"):
            values = found.setdefault(word, [])
        elif found:
            values.append(word.rpartition("=")[2])
    return found


def folders_of(text):
    """The folders that a page's blocks take for subsets, and those for runs, with the trainings that write them."""
    subsets, runs = set(), {}
    for block in blocks(text):
        if block.language == "python":
            for folder in re.findall(r'\boutput_dir="([^"]+)"', block.text):
                runs.setdefault(folder, set()).add(block.text)
        for words in shell_commands(block.text) if block.language == "bash" else ():
            if words[0] != "hf-tlm":
                continue
            values = values_of(words[2:])
            written = values.get("--output_dir", [])
            subsets.update(written if words[1] in ("retrieve", "select-influence") else ())
            for option in values:
                subsets.update(values[option] if option in SUBSETS else ())
                runs |= {folder: runs.get(folder, set()) for folder in values[option] if option in RUNS}
            training = str([words[1], sorted((option, values[option]) for option in values.keys() - FREE)])
            for folder in written if words[1] in TRAININGS else ():
                runs.setdefault(folder, set()).add(training)
    return subsets, runs


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_blocks_can_be_typed_in_their_order(page):
    """A run is refused where another one is, and a report of subsets is none of the runs that were trained on them."""
    subsets, runs = folders_of(page.read_text(encoding="utf-8"))
    assert not subsets & runs.keys()
    assert not {folder: trainings for folder, trainings in runs.items() if len(trainings) > 1}


def test_folders_of_a_page_are_told_apart():
    page = """
```bash
hf-tlm retrieve --task x --output_dir runs/a
hf-tlm train --subset runs/a --output_dir runs/b && hf-tlm train --subset runs/a --output_dir runs/b --seeds 0 1
hf-tlm analyze --run TLM=runs/b runs/c
```
```python
args = TlmArguments(output_dir="runs/b")
```
"""
    subsets, runs = folders_of(page)
    assert subsets == {"runs/a"}
    assert {folder: len(trainings) for folder, trainings in runs.items()} == {"runs/b": 2, "runs/c": 0}


@pytest.fixture(scope="module")
def all_options():
    """Every option of every command, including the Trainer's, and of the benchmarks."""
    found = set(OPTIONS_OF_OTHERS)
    for script in (ROOT / "benchmarks").glob("*.py"):
        found |= set(re.findall(r'"(--\w+)"', script.read_text(encoding="utf-8")))
    for name in COMMANDS:
        command = read_command(name)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
            written = []
            patch.setattr("argparse.ArgumentParser._print_message", lambda self, text, file=None, w=written: w.append(text))
            parse(*command.classes, recipe=command.recipe, description="", args=["--help_all"])
        found |= set(OPTION.findall("".join(written)))
    assert {"--rho1", "--bf16", "--top_k", "--what"} <= found
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_options_mentioned_in_text_exist(page, all_options):
    """In prose and tables, `--rho1 3` must be an option of some command."""
    found = []
    for code in inline_code(page.read_text(encoding="utf-8")):
        if code.startswith("--") or re.match(r"(hf-tlm|python recipes)", code):
            found += [option for option in OPTION.findall(code) if option not in all_options]
    assert not found


def test_presets_mentioned_in_text_exist():
    """As paths and as names: `recipes/configs/tlm/coffee.yaml`, `tlm/coffee`."""
    kinds = "|".join({name.partition("/")[0] for name in presets()})
    found = []
    for page in PAGES:
        for code in inline_code(page.read_text(encoding="utf-8")):
            named = re.fullmatch(rf"(?:recipes/configs/)?((?:{kinds})/[\w.]+?)(?:\.yaml|\.json)?", code)
            found += [f"{page_name(page)}: {code}"] if named and named[1] not in presets() else []
    assert not found


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("hf-tlm trian --task x", "there is no command trian"),
        ("hf-tlm train --task x --subset y --output_dir z --rho 3", "unknown argument --rho"),
        ("hf-tlm train --config tlm/espresso --task x --output_dir z", "tlm/espresso"),
        ("hf-tlm train --task x --subset y --output_dir z --rho1 many", "--rho1"),
        ("hf-tlm retrieve --task x", "required"),
        ("accelerate launch recipes/train_tlm.py --retriever bm25 ...", "unknown argument --retriever"),
        ("hf-tlm train --config tlm/coffee --task x --subset y --output_dir z", None),
        ("hf-tlm train --rho1 3 ...", None),
    ],
)
def test_problem_of_a_command_is_described(line, wrong, capsys, in_clone):
    (words,) = shell_commands(line)
    found = problem(*own_command(words), capsys)
    assert wrong in found if wrong else found is None
