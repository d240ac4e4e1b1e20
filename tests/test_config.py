import os
import sys
from dataclasses import dataclass, field

import pytest
import torch

from hf_tlm.config import ConfigError, config_files, parse, run
from hf_tlm.corpora import CorpusArguments
from hf_tlm.errors import HfTlmError
from hf_tlm.retrieval import RetrievalArguments
from hf_tlm.runs import CheckpointArguments
from hf_tlm.runs.few_shot import FewShotArguments
from hf_tlm.training import ArgumentsError, TlmArguments
from hf_tlm.utils.options import option


@dataclass
class One:
    name: str
    rate: float = 0.1
    flag: bool = False
    kind: str = field(default="a", metadata={"choices": ["a", "b"]})


@dataclass
class Two:
    seeds: list[int] | None = field(default=None, metadata={"nargs": "+"})
    size: int = 3


def read(tmp_path, *files, args=(), recipe="train_tlm"):
    paths = []
    for i, text in enumerate(files):
        path = tmp_path / f"{i}.yaml"
        path.write_text(text)
        paths.append(str(path))
    config = ["--config", *paths] if paths else []
    return parse(One, Two, recipe=recipe, description="", args=[*config, *args])


def test_later_files_and_the_command_line_win(tmp_path):
    one, two = read(
        tmp_path, "name: x\nrate: 1e-4\nsize: 5", "rate: 1e-3\nflag: true", args=["--size", "7", "--seeds", "1", "2"]
    )
    assert (one.name, one.rate, one.flag, one.kind) == ("x", 1e-3, True, "a")
    assert (two.size, two.seeds) == (7, [1, 2])


def test_values_win_over_files_and_are_checked_as_they_are(tmp_path):
    (tmp_path / "0.yaml").write_text("name: x\nrate: 1\nsize: 5")
    arguments = {"recipe": "train_tlm", "description": "", "args": ["--config", str(tmp_path / "0.yaml")]}
    one, two = parse(One, Two, values={"rate": 2, "seeds": [1]}, **arguments)
    assert (one.name, one.rate, two.size, two.seeds) == ("x", 2.0, 5, [1])
    with pytest.raises(ConfigError, match="Unknown key 'rates' in the values given for train_tlm. Did you mean rate"):
        parse(One, Two, values={"rates": 2}, **arguments)
    assert config_files(["--size", "3", "--config", "a.yaml", "b.yaml", "--rate", "1"]) == ["a.yaml", "b.yaml"]


def test_a_file_with_an_option_that_has_no_effect_is_named(tmp_path):
    (tmp_path / "scale.yaml").write_text("few_shot: {max_steps: 60}")
    (tmp_path / "more.yaml").write_text("k: 8")
    base = ["--model_name_or_path", "x", "--output_dir", str(tmp_path), "--method", "zero_shot"]

    def asked(*args):
        parse(FewShotArguments, CheckpointArguments, recipe="few_shot", description="", args=[*base, *args])

    files = ["--config", str(tmp_path / "scale.yaml"), str(tmp_path / "more.yaml")]
    with pytest.raises(ArgumentsError, match=r"max_steps 60 has no effect.* in \S*scale.yaml: --max_steps 1000 resets it"):
        asked(*files)
    asked(*files, "--max_steps", "1000")
    for given in (["--max_steps", "70"], ["--max_steps=70"], ["--max-steps", "70"]):
        with pytest.raises(ArgumentsError, match=r"max_steps 70 has no effect.* Leave it out\.$"):
            asked(*files, *given)


def test_null_takes_back_a_number_of_a_file(tmp_path, capsys):
    """That of a preset's budget, such as `--max_flops null`: on the command line as in a later file."""
    (tmp_path / "preset.yaml").write_text("num_threads: 2")
    (tmp_path / "own.yaml").write_text("num_threads: null")

    def threads(*args):
        config = ["--config", str(tmp_path / "preset.yaml"), *args]
        return parse(RetrievalArguments, recipe="retrieve", description="", args=config)[0].num_threads

    assert threads() == 2
    assert threads("--num_threads", "null") is threads(str(tmp_path / "own.yaml")) is None
    with pytest.raises(SystemExit):
        threads("--num_threads", "none")
    assert "expected a whole number" in capsys.readouterr().err
    with pytest.raises(SystemExit):  # Without these there is no run.
        parse(TlmArguments, recipe="train_tlm", description="", args=["--output_dir", "x", "--rho2", "null"])
    assert "--rho2: expected a number" in capsys.readouterr().err
    # One that is optional, whatever its default.
    kept = parse(TlmArguments, recipe="train_tlm", description="", args=["--output_dir", "x", "--save_total_limit", "null"])
    assert kept[0].save_total_limit is None


def test_an_old_name_works_for_a_version(tmp_path, caplog):
    def words(*args, **values):
        return parse(CorpusArguments, recipe="retrieve", description="", args=args, values=values)[0].passage_words

    (tmp_path / "old.yaml").write_text("retrieve: {max_words: 5}")
    (tmp_path / "new.yaml").write_text("passage_words: 6")
    config = ("--config", str(tmp_path / "old.yaml"))
    assert (words("--max_words", "7"), words("--max-words=8"), words(*config), words(max_words=9)) == (7, 8, 5, 9)
    assert caplog.text.count("max_words is called passage_words now") == 4
    # Under whatever name: later files and the command line win.
    assert words(*config, str(tmp_path / "new.yaml")) == 6 and words(*config, "--passage_words", "0") == 0


def test_a_switch_and_its_negative_have_texts_of_their_own(capsys):
    with pytest.raises(SystemExit):
        parse(RetrievalArguments, recipe="retrieve", description="", args=["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "--no_decontaminate Switch --decontaminate off." in shown and "--no-decontaminate" not in shown
    assert shown.count("Leave out passages that hold") == 1


@pytest.mark.parametrize(
    "summary,title",
    [
        ("Settings of the page.", "Page"),
        ("Options of an export, and its files.", "Export, and its files"),
        ("The report at the end.", "The report at the end"),
        ("Settings of theories.", "Theories"),
    ],
)
def test_options_are_listed_under_what_they_are_settings_of(summary, title, capsys):
    @dataclass
    class Page:
        page: str | None = option(None, "Folder for a web page.")

    Page.__doc__ = summary
    with pytest.raises(SystemExit):
        parse(Page, recipe="export", description="", args=["--help"])
    assert f"\n{title}:\n  --page" in capsys.readouterr().out


def test_an_option_that_is_missing_is_named_once(capsys):
    @dataclass
    class Place:
        output_dir: str

    with pytest.raises(SystemExit):
        parse(Place, recipe="baseline", description="", args=[])
    assert "required: --output_dir\n" in capsys.readouterr().err


def test_paths_of_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "0.yaml").write_text("name: ~/x")
    for args in (["--config", "~/0.yaml"], ["--config=~/0.yaml"], ["--name", "~/x"], ["--name=~/x"]):
        assert read(tmp_path, args=args)[0].name == f"{tmp_path}/x"
    assert config_files(["--config", "~/0.yaml"]) == [f"{tmp_path}/0.yaml"]
    assert read(tmp_path, args=["--name", "a~/x"])[0].name == "a~/x"

    @dataclass
    class Places:
        places: list[str] = field(default_factory=list)

    (tmp_path / "0.yaml").write_text("places: [~/a, {b: ~/c}, ~nobody here/d]")
    (places,) = parse(Places, recipe="train_tlm", description="", args=["--config", "~/0.yaml"])
    assert places.places == [f"{tmp_path}/a", f'{{"b": "{tmp_path}/c"}}', "~nobody here/d"]


def test_one_value_of_a_list_may_stand_alone(tmp_path):
    assert read(tmp_path, "name: x\nseeds: 3")[1].seeds == [3]


def test_a_mapping_among_texts_is_json(tmp_path):
    @dataclass
    class Texts:
        arms: list[str] = field(default_factory=list)

    (tmp_path / "0.yaml").write_text("arms: [x, {name: y, rate: 1e-4, steps: .inf}]")
    (texts,) = parse(Texts, recipe="reproduce", description="", args=["--config", str(tmp_path / "0.yaml")])
    assert texts.arms == ["x", '{"name": "y", "rate": "1e-4", "steps": Infinity}']


def test_types_are_those_of_the_command_line(tmp_path):
    one, two = read(tmp_path, "name: 5\nrate: 1\nseeds: [3, 4]\nflag: false")
    assert one.name == "5" and one.rate == 1.0 and isinstance(one.rate, float) and one.flag is False
    assert two.seeds == [3, 4]


def test_sections_are_for_their_recipe(tmp_path):
    text = "name: x\ntrain_tlm:\n  size: 9\nretrieve:\n  top_k: 4\n"
    assert read(tmp_path, text)[1].size == 9
    assert read(tmp_path, text.replace("top_k: 4", "size: 2"), recipe="retrieve")[1].size == 2


@pytest.mark.parametrize(
    "text,message",
    [
        ("name: x\nrates: 1", "Unknown key 'rates'.*Did you mean rate"),
        ("name: x\nrate: fast", "rate: cannot use 'fast'"),
        ("name: x\nkind: z", "kind: expected one of"),
        ("- 1", "must be a mapping"),
        ("name: [", "is not YAML"),
        ("train_tlm: 3", "section 'train_tlm' must be a mapping"),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "key,recipe", [("corpus", "train_tlm"), ("rho1", "retrieve"), ("learning_rate", "retrieve"), ("arms", "train_tlm")]
)
def test_a_key_of_a_section_at_the_top(tmp_path, key, recipe):
    """What is meant for another recipe was an unknown key alone, with names of this one's that are like it."""
    said = f"^Unknown key '{key}' in .*0.yaml for {recipe}\\..* Put options of another command into its section: .*retrieve,"
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, f"name: x\n{key}: 3", recipe=recipe)


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="Cannot read --config"):
        parse(One, recipe="retrieve", description="", args=["--config", str(tmp_path / "no.yaml")])


@pytest.mark.parametrize("args", [["--name", "x", "--unknown", "1"], [], ["--name", "x", "--siz", "4"]])
def test_bad_command_line_is_one_line(tmp_path, args, capsys):
    with pytest.raises(SystemExit) as stop:
        read(tmp_path, args=args)
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["--nam", "x"], "unknown argument --nam; did you mean --name?"),  # And not that --name is required.
        (["--name", "x", "--batch-siz=4"], "unknown argument --batch-siz; did you mean --batch_size?"),
        (["--name", "x", "--batch"], "unknown argument --batch; did you mean --batch_size?"),
        (["--name", "x", "--quiz"], "unknown argument --quiz"),
        (["--name", "x", "y"], "unknown argument y"),
        (["--name", "x", ".", "y"], "unknown argument .; put a file pattern in quotes, and separate files with commas"),
    ],
)
def test_an_unknown_option_is_told_with_what_was_meant(args, hint, capsys):
    @dataclass
    class Sized:
        name: str
        batch_size: int = 3

    with pytest.raises(SystemExit):
        parse(Sized, recipe="train_tlm", description="", args=args)
    assert capsys.readouterr().err.startswith(f"Error: {hint}\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--page"], "--page: expected one argument. Folder for a web page."),
        (["--page-texts"], "--page_texts: expected at least one argument. Examples on the page, 100% yours."),
        (["--plain"], "--plain: expected one argument."),
    ],
)
def test_an_option_without_its_value_says_what_it_takes(args, message, capsys):
    """The first sentence of its help."""

    @dataclass
    class Page:
        page: str | None = option(None, "Folder for a web page. An earlier page there is replaced.")
        page_texts: list[str] = option(help="Examples on the page, 100%% yours.", factory=list, nargs="+")
        plain: int = 1

    with pytest.raises(SystemExit):
        parse(Page, recipe="export", description="", args=args)
    assert capsys.readouterr().err.startswith(f"Error: {message}\nSee ")


@pytest.mark.parametrize(
    "error,status,message",
    [
        (HfTlmError("do this"), 1, "Error: do this"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (OSError(28, "No space left on device"), 1, "disk is full"),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), 1, "disk is full"),
        (
            torch.OutOfMemoryError("CUDA out of memory. GPU 0 has 79 GiB of which 7 MiB is free. Including non-PyTorch ..."),
            1,
            "which 7 MiB is free. Use fewer texts at a time (--per_device_train_batch_size",
        ),
    ],
)
def test_run_turns_errors_into_messages(error, status, message, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == status
    assert message in capsys.readouterr().err


def test_a_killed_process_of_a_job_is_one_line_of_the_others(monkeypatch, capsys):
    """As gloo says it."""
    error = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:397.")

    def main():
        raise error

    with pytest.raises(RuntimeError, match="closed by peer"):  # A server's, say.
        run(main)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("\nError: Another process of this job has ended")
    error = ConnectionError("[Errno 104] Connection reset by peer")  # Of a Hub's client, in such a job.
    with pytest.raises(ConnectionError):
        run(main)


@pytest.mark.parametrize("lines", [1, 100_000])
def test_output_that_nobody_reads_is_one_line(monkeypatch, capsys, lines):
    """As behind `| head`, in the middle and at the end."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe, pytest.raises(SystemExit) as stop:
        monkeypatch.setattr(sys, "stdout", pipe)
        run(lambda: print("a line\n" * lines))
    assert stop.value.code == 1 and capsys.readouterr().err.startswith("\nError: The output is no longer read.")


def test_a_broken_pipe_of_another_kind_is_a_bug():
    def main():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(main)


def test_output_that_was_closed_before(monkeypatch):
    """As `>&-` and daemons close it."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    done = []

    def main():
        print("a line")
        print("another", file=sys.stderr)
        done.append(True)

    run(main)
    assert done


def test_run_keeps_tracebacks_of_bugs():
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0)
