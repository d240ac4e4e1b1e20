"""A tokenizer that does not know the texts is refused before training, as are adapters for layers that do not exist."""

import json

import pytest
from datasets import Dataset

from attacks.attack import assert_refused, attack
from hf_tlm.data import TokenizerError
from hf_tlm.data.text_checks import check_known, spread_texts

GREEK = ["το γονίδιο ενεργοποιεί το κύτταρο", "η πρωτεΐνη αναστέλλει τον υποδοχέα"]


@pytest.fixture(scope="session")
def greek(tmp_path_factory):
    """A task and a corpus in another alphabet than the toys."""
    folder = tmp_path_factory.mktemp("greek")
    rows = [{"text": f"{GREEK[number % 2]} {'και ' * number}", "label": ("up", "down")[number % 2]} for number in range(12)]
    (folder / "task").mkdir()
    for number, split in enumerate(("train", "validation", "test")):
        lines = [json.dumps({**row, "text": f"{row['text']} {'ναι ' * number}"}) for row in rows]
        (folder / "task" / f"{split}.jsonl").write_text("\n".join(lines))
    Dataset.from_list([{"text": row["text"]} for row in rows]).to_parquet(folder / "corpus.parquet")
    return folder


UNKNOWN = {
    "train_tlm": lambda toys: ("--model_name_or_path", toys.checkpoint),
    "finetune": lambda toys: (),
    "few_shot": lambda toys: (),
    "select_influence": lambda toys: (),
    "pretrain": lambda toys: ("--model_name_or_path", toys.checkpoint),
}


@pytest.mark.parametrize("recipe", UNKNOWN)
def test_tokenizer_of_another_alphabet_is_refused(toys, greek, recipe):
    data = ("--corpus", greek / "corpus.parquet") if recipe == "pretrain" else ("--task", greek / "task")
    outcome = attack(recipe, *toys.commands[recipe], *data, *UNKNOWN[recipe](toys))
    name = toys.run if recipe == "select_influence" else toys.checkpoint
    if recipe == "select_influence":  # The score model also has other classes, which is reported first.
        assert_refused(outcome, str(name))
    else:
        assert_refused(outcome, f"The tokenizer of {name} does not fit", "% of the tokens", "[UNK]", "at most 20%")
    assert not toys.out.exists()


def test_passages_are_checked_too(toys, greek, tmp_path):
    from hf_tlm.corpora import load_corpus
    from hf_tlm.retrieval import retrieve
    from hf_tlm.tasks import load_task

    subset = retrieve(
        load_task(str(toys.task)), load_corpus(str(greek / "corpus.parquet")), retriever="random", num_passages=8
    )
    subset.save(tmp_path / "subset")
    more = ("--subset", tmp_path / "subset", "--model_name_or_path", toys.checkpoint)
    assert_refused(attack("train_tlm", *toys.commands["train_tlm"], *more), "does not fit the texts", "of 8 texts")
    assert not toys.out.exists()


@pytest.mark.parametrize("greek_of_ten,fits", [(0, True), (1, True), (5, False), (10, False)])
def test_share_of_unknown_tokens_is_limited(tokenizer, greek_of_ten, fits):
    texts = ["the gene the gene"] * (10 - greek_of_ten) + ["α β γ δ"] * greek_of_ten
    if fits:
        check_known(tokenizer, texts, "toy")
    else:
        with pytest.raises(TokenizerError, match=rf"toy does not fit the texts: {greek_of_ten}0% of the tokens of 10 texts"):
            check_known(tokenizer, texts, "toy")


def test_empty_texts_are_accepted(tokenizer):
    check_known(tokenizer, [], "toy")
    check_known(tokenizer, [""], "toy")


def test_texts_of_every_kind_of_task_are_read():
    rows = Dataset.from_list(
        [{"id": "0", "tokens": ["a", "b"], "tags": ["X", "Y"]}, {"id": "1", "tokens": ["c"], "tags": ["X"]}]
    )
    assert spread_texts(rows) == ["a b", "c"]
    rows = Dataset.from_list([{"id": "0", "text": "a", "text_pair": None, "label": 1}])
    assert spread_texts(rows) == ["a"]


@pytest.mark.parametrize("recipe", ["train_tlm", "pretrain", "finetune", "few_shot"])
def test_unknown_adapter_layers_are_refused_before_weights_are_read(toys, tmp_path, recipe):
    import shutil

    folder = tmp_path / "checkpoint"
    shutil.copytree(toys.checkpoint, folder)
    for file in folder.rglob("*.safetensors"):
        file.write_bytes(b"no weights")
    adapter = ("--model_name_or_path", folder, "--use_peft", "true", "--lora_target_modules", "query", "q_proj")
    outcome = attack(recipe, *toys.commands[recipe], *adapter)
    assert_refused(outcome, "a bert body has no linear layer q_proj", "Choose from dense, key, query, value.")
    assert not toys.out.exists()


def test_unknown_adapter_layers_of_a_new_body_are_refused(toys):
    adapter = ("--use_peft", "true", "--lora_target_modules", "q_proj")
    assert_refused(attack("train_tlm", *toys.commands["train_tlm"], *adapter), "has no linear layer q_proj")
    assert not toys.out.exists()
