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


def test_later_files_and_the_command_line_override_earlier_files(tmp_path):
    one, two = read(
        tmp_path, "name: x\nrate: 1e-4\nsize: 5", "rate: 1e-3\nflag: true", args=["--size", "7", "--seeds", "1", "2"]
    )
    assert (one.name, one.rate, one.flag, one.kind) == ("x", 1e-3, True, "a")
    assert (two.size, two.seeds) == (7, [1, 2])


def test_values_override_files_and_unknown_keys_are_refused(tmp_path):
    (tmp_path / "0.yaml").write_text("name: x\nrate: 1\nsize: 5")
    arguments = {"recipe": "train_tlm", "description": "", "args": ["--config", str(tmp_path / "0.yaml")]}
    one, two = parse(One, Two, values={"rate": 2, "seeds": [1]}, **arguments)
    assert (one.name, one.rate, two.size, two.seeds) == ("x", 2.0, 5, [1])
    with pytest.raises(ConfigError, match="Unknown key 'rates' in the values given for train_tlm. Did you mean rate"):
        parse(One, Two, values={"rates": 2}, **arguments)
    assert config_files(["--size", "3", "--config", "a.yaml", "b.yaml", "--rate", "1"]) == ["a.yaml", "b.yaml"]


def test_config_file_with_an_option_without_effect_is_named(tmp_path):
    (tmp_path / "scale.yaml").write_text("few_shot: {max_steps: 60}")
    (tmp_path / "more.yaml").write_text("k: 8")
    base = ["--model_name_or_path", "x", "--output_dir", str(tmp_path), "--method", "zero_shot"]

    def parse_few_shot(*args):
        parse(FewShotArguments, CheckpointArguments, recipe="few_shot", description="", args=[*base, *args])

    files = ["--config", str(tmp_path / "scale.yaml"), str(tmp_path / "more.yaml")]
    with pytest.raises(ArgumentsError, match=r"max_steps 60 has no effect.* in \S*scale.yaml: --max_steps 1000 resets it"):
        parse_few_shot(*files)
    parse_few_shot(*files, "--max_steps", "1000")
    for given in (["--max_steps", "70"], ["--max_steps=70"], ["--max-steps", "70"]):
        with pytest.raises(ArgumentsError, match=r"max_steps 70 has no effect.* Leave it out\.$"):
            parse_few_shot(*files, *given)


def test_null_resets_a_number_set_by_a_config_file(tmp_path, capsys):
    """For example a preset's budget by `--max_flops null`; the command line and later files work alike."""
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
    with pytest.raises(SystemExit):  # A number that the run needs cannot be null.
        parse(TlmArguments, recipe="train_tlm", description="", args=["--output_dir", "x", "--rho2", "null"])
    assert "--rho2: expected a number" in capsys.readouterr().err
    # An optional number can be null, whatever its default.
    kept = parse(TlmArguments, recipe="train_tlm", description="", args=["--output_dir", "x", "--save_total_limit", "null"])
    assert kept[0].save_total_limit is None


def test_renamed_option_still_works_under_its_old_name_with_a_warning(tmp_path, caplog):
    def words(*args, **values):
        return parse(CorpusArguments, recipe="retrieve", description="", args=args, values=values)[0].passage_words

    (tmp_path / "old.yaml").write_text("retrieve: {max_words: 5}")
    (tmp_path / "new.yaml").write_text("passage_words: 6")
    config = ("--config", str(tmp_path / "old.yaml"))
    assert (words("--max_words", "7"), words("--max-words=8"), words(*config), words(max_words=9)) == (7, 8, 5, 9)
    assert caplog.text.count("max_words is called passage_words now") == 4
    # Later files and the command line win under either name.
    assert words(*config, str(tmp_path / "new.yaml")) == 6 and words(*config, "--passage_words", "0") == 0


def test_switch_and_its_negation_have_separate_help_texts(capsys):
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
def test_options_are_grouped_under_the_title_of_their_class(summary, title, capsys):
    @dataclass
    class Page:
        page: str | None = option(None, "Folder for a web page.")

    Page.__doc__ = summary
    with pytest.raises(SystemExit):
        parse(Page, recipe="export", description="", args=["--help"])
    assert f"\n{title}:\n  --page" in capsys.readouterr().out


def test_missing_required_option_is_named_once(capsys):
    @dataclass
    class Place:
        output_dir: str

    with pytest.raises(SystemExit):
        parse(Place, recipe="baseline", description="", args=[])
    assert "required: --output_dir\n" in capsys.readouterr().err


def test_tilde_is_expanded_to_the_home_folder(tmp_path, monkeypatch):
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


def test_single_value_of_a_list_needs_no_brackets(tmp_path):
    assert read(tmp_path, "name: x\nseeds: 3")[1].seeds == [3]


def test_mapping_in_a_list_of_strings_becomes_json(tmp_path):
    @dataclass
    class Texts:
        arms: list[str] = field(default_factory=list)

    (tmp_path / "0.yaml").write_text("arms: [x, {name: y, rate: 1e-4, steps: .inf}]")
    (texts,) = parse(Texts, recipe="reproduce", description="", args=["--config", str(tmp_path / "0.yaml")])
    assert texts.arms == ["x", '{"name": "y", "rate": "1e-4", "steps": Infinity}']


def test_values_of_a_file_are_converted_to_the_fields_types(tmp_path):
    one, two = read(tmp_path, "name: 5\nrate: 1\nseeds: [3, 4]\nflag: false")
    assert one.name == "5" and one.rate == 1.0 and isinstance(one.rate, float) and one.flag is False
    assert two.seeds == [3, 4]


def test_section_applies_to_its_recipe_only(tmp_path):
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
def test_invalid_config_file_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "key,recipe", [("corpus", "train_tlm"), ("rho1", "retrieve"), ("learning_rate", "retrieve"), ("arms", "train_tlm")]
)
def test_top_level_key_of_another_command_is_refused_with_a_hint(tmp_path, key, recipe):
    """The message names the sections, not only keys of this recipe with similar names."""
    message = (
        f"^Unknown key '{key}' in .*0.yaml for {recipe}\\..* Put options of another command into its section: .*retrieve,"
    )
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, f"name: x\n{key}: 3", recipe=recipe)


def test_missing_config_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Cannot read --config"):
        parse(One, recipe="retrieve", description="", args=["--config", str(tmp_path / "no.yaml")])


@pytest.mark.parametrize("args", [["--name", "x", "--unknown", "1"], [], ["--name", "x", "--siz", "4"]])
def test_invalid_command_line_prints_two_lines(tmp_path, args, capsys):
    with pytest.raises(SystemExit) as stop:
        read(tmp_path, args=args)
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["--nam", "x"], "unknown argument --nam; did you mean --name?"),  # Not: --name is required.
        (["--name", "x", "--batch-siz=4"], "unknown argument --batch-siz; did you mean --batch_size?"),
        (["--name", "x", "--batch"], "unknown argument --batch; did you mean --batch_size?"),
        (["--name", "x", "--quiz"], "unknown argument --quiz"),
        (["--name", "x", "y"], "unknown argument y"),
        (["x", "--name", "bad"], "unknown argument x; write the name of its option before it"),
        (["x"], "unknown argument x; write --name x"),
        (["--name", "x", ".", "y"], "unknown argument .; put a file pattern in quotes, and separate files with commas"),
    ],
)
def test_unknown_option_gets_a_suggestion(args, hint, capsys):
    @dataclass
    class Sized:
        name: str
        batch_size: int = 3

        def __post_init__(self):
            assert self.name != "bad", "checked before unknown arguments"

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
def test_option_without_its_value_shows_its_help(args, message, capsys):
    """The message has the first sentence of the help text."""

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
def test_errors_become_a_message_and_an_exit_status(error, status, message, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == status
    assert message in capsys.readouterr().err


def test_killed_process_of_a_job_is_one_line_in_the_other_processes(monkeypatch, capsys):
    """Gloo raises this error in the processes that are left."""
    error = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:397.")

    def main():
        raise error

    with pytest.raises(RuntimeError, match="closed by peer"):  # Outside a job, a server may have closed it.
        run(main)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("\nError: Another process of this job has ended")
    error = ConnectionError("[Errno 104] Connection reset by peer")  # A job's Hub client raises this too.
    with pytest.raises(ConnectionError):
        run(main)


@pytest.mark.parametrize("lines", [1, 100_000])
def test_closed_output_pipe_is_a_one_line_error(monkeypatch, capsys, lines):
    """As behind `| head`, both while printing and at the end."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe, pytest.raises(SystemExit) as stop:
        monkeypatch.setattr(sys, "stdout", pipe)
        run(lambda: print("a line\n" * lines))
    assert stop.value.code == 1 and capsys.readouterr().err.startswith("\nError: The output is no longer read.")


def test_broken_pipe_that_is_not_the_output_is_raised():
    def main():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(main)


def test_run_works_without_standard_output(monkeypatch):
    """Python sets the streams to None where `>&-` or a daemon has closed them."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    done = []

    def main():
        print("a line")
        print("another", file=sys.stderr)
        done.append(True)

    run(main)
    assert done


def test_unexpected_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0)
