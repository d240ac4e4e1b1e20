"""Pretraining on toy text: the files written, that stock classes load them, resuming, and options that are refused."""

import json
import math
import re
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedTokenizerFast

from hf_tlm.corpora import Corpus, load_corpus
from hf_tlm.data import BlockArguments, BlockShards, TlmCollator, TokenizerError, load_tokenizer
from hf_tlm.models import ModelError
from hf_tlm.runs import ProtocolError, run_pretraining
from hf_tlm.runs import pretrain as pretraining
from hf_tlm.runs.pretrain import _sample_texts
from hf_tlm.training import ArgumentsError, ModelArguments, PretrainArguments
from support.toys import TINY_CONFIGS, sentences


def config(model_type):
    return {"model_type": model_type, **{k: v for k, v in TINY_CONFIGS[model_type].items() if k != "vocab_size"}}


FAST = {
    **{"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 2},
    **{"max_steps": 6, "learning_rate": 1e-2, "max_length": 32, "per_device_train_batch_size": 8},
}
BLOCKS = {"validation_share": 0.2, "shard_size": 8}
HALF = {"auxiliary_size": 0.5, "temperature": 0.7}
ROWS = [{"text": row["text"] + "."} for row in sentences(150, seed=9)]


@pytest.fixture(scope="module")
def corpus():
    return load_corpus(Dataset.from_list(ROWS))


def go(folder, corpus, model="bert", model_args=None, blocks=None, **changes):
    model_args = ModelArguments(model_config=config(model), **{"vocab_size": 120, **(model_args or {})})
    args = PretrainArguments(output_dir=str(folder), **{**FAST, **changes})
    return run_pretraining(corpus, args, model_args, BlockArguments(**{**BLOCKS, **(blocks or {})}))


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("runs") / "mlm"
    return go(folder, corpus)


def test_complete_run_is_recorded(finished, corpus):
    out, record = finished.output_dir, finished.record
    assert json.loads((out / "results.json").read_text()) == record
    assert {"config.json", "model.safetensors", "README.md", "settings.json", "training/trainer_state.json"} <= files(out)
    assert not (out / "export").exists() and not [name for name in files(out) if "mlm/" in name]
    cost = record["cost"]
    assert (cost["steps"], cost["tokens"], cost["flops"]) == (6, 6 * 8 * 32, 6 * 6 * 8 * 32 * record["parameters"])
    tokenizer = load_tokenizer(str(out))
    assert tokenizer.model_max_length == 32 and len(tokenizer) == record["vocabulary"] <= 120
    shards = BlockShards(corpus, tokenizer, 32, shard_size=8, validation_share=0.2)
    assert record["corpus"] == {"name": "in-memory", "fingerprint": corpus.fingerprint, **shards.totals}
    assert record["corpus"]["passages"] == 150 and 10 < record["corpus"]["held_out"] < 60
    assert set(record["training"]) == {"mlm_loss"} and set(record["validation"]) == {"loss", "mlm_loss"}
    text = finished.to_text()
    assert f"perplexity {math.exp(record['validation']['mlm_loss']):.4g}" in text and "6 steps, 1,536 tokens" in text


def test_validation_loss_is_that_of_the_held_out_blocks(finished, corpus):
    """The stock model's loss, with masks that depend only on the indices of the blocks."""
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(finished.output_dir), load_tokenizer(str(finished.output_dir))
    held = BlockShards(corpus, tokenizer, 32, shard_size=8, validation_share=0.2).validation(1000)
    assert len(held) == finished.record["validation_blocks"] > 8
    total = count = 0
    with torch.no_grad():
        for row in held:
            batch = TlmCollator(tokenizer)([row])
            labels = batch.pop("mlm_labels")
            scores = model.eval()(**batch).logits.log_softmax(-1)
            chosen = (labels != -100).nonzero().tolist()
            total -= sum(scores[b, s, labels[b, s]].item() for b, s in chosen)
            count += len(chosen)
    assert finished.record["validation"]["mlm_loss"] == pytest.approx(total / count, rel=1e-4)


PROGRAM = """
import sys
sys.modules["hf_tlm"] = None  # importing it fails
import transformers
for name, path in zip(sys.argv[1::2], sys.argv[2::2]):
    model, info = getattr(transformers, name).from_pretrained(path, output_loading_info=True)
    assert not (info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]), (name, info)
    assert transformers.AutoTokenizer.from_pretrained(path).mask_token == "[MASK]"
"""


def check_loads(*pairs):
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, pairs)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_electra_and_ale_are_recorded_and_load(tmp_path, corpus, finished):
    electra = go(tmp_path / "electra", corpus, "electra", objective="electra", model_args=HALF)
    ale = go(tmp_path / "ale", corpus, "albert", objective="ale", model_args=HALF)
    shared = {"mlm_loss", "rtd_loss", "rtd_accuracy_original", "replaced_fraction", "generator_accuracy"}
    for run in (electra, ale):
        assert shared <= set(run.record["validation"]) and shared <= set(run.record["training"])
        assert "perplexity" not in run.to_text() and "rtd loss" in run.to_text()
        assert (run.output_dir / "tokenizer.json").read_bytes() == (finished.output_dir / "tokenizer.json").read_bytes()
        card = (run.output_dir / "README.md").read_text()
        assert (
            "at temperature 0.7. Loss: masked-LM loss of the auxiliary model + 50 x replaced" in card
            and 'subfolder="generator"' in card
        )
    assert "called ALE" in card
    check_loads(
        "AutoModelForMaskedLM", finished.output_dir,
        "AutoModelForPreTraining", electra.output_dir, "AutoModelForMaskedLM", electra.output_dir / "generator",
        "AutoModel", ale.output_dir, "AutoModelForMaskedLM", ale.output_dir / "generator",
    )  # fmt: skip


def test_card_describes_the_run_and_its_code_works(finished):
    card = (finished.output_dir / "README.md").read_text()
    record = finished.record
    for text in (
        "pipeline_tag: fill-mask",
        "from scratch",
        f"{record['corpus']['blocks']:,} blocks",
        f"| mlm loss | {record['validation']['mlm_loss']:.4f} |",
        "6 steps of 8 blocks; the texts were concatenated and cut every 32 tokens",
        "80% of these were replaced by the mask token",
        "Devlin",
    ):
        assert text in card, text
    assert "None" not in card and "{{" not in card and "generator" not in card
    for block in re.findall(r"```python\n(.*?)```", card, flags=re.S):
        exec(block.replace("path/or/repo-id", str(finished.output_dir)), {})


def without_time(record):
    drop = ("seconds", "environment", "command")
    return json.loads(json.dumps(record), object_hook=lambda d: {k: v for k, v in d.items() if k not in drop})


SAVING = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 3}


def test_interrupted_run_resumes_and_finished_one_is_loaded(tmp_path, corpus, monkeypatch):
    whole = go(tmp_path / "whole", corpus, **SAVING)
    original = pretraining.TlmTrainer.training_step

    def stop(self, *args, **kwargs):
        if self.state.global_step == 5:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretraining.TlmTrainer, "training_step", stop)
        go(tmp_path / "cut", corpus, **SAVING)
    assert (tmp_path / "cut/training/checkpoint-4").is_dir() and not (tmp_path / "cut/results.json").exists()
    again = go(tmp_path / "cut", corpus, **SAVING)
    assert without_time(again.record) == without_time(whole.record)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    # Killed while the export was moved into the run's folder.
    for name in ("results.json", "config.json"):
        (tmp_path / "cut/export").mkdir(exist_ok=True)
        shutil.move(tmp_path / "cut" / name, tmp_path / "cut/export" / name)
    monkeypatch.setattr(pretraining, "_train", None)
    assert go(tmp_path / "cut", corpus, **SAVING).record == again.record
    assert not (tmp_path / "cut/export").exists() and (tmp_path / "cut/config.json").is_file()
    # Killed while the files of the export were removed.
    seal = (tmp_path / "cut/seal.json").read_bytes()
    (tmp_path / "cut/export").mkdir()
    (tmp_path / "cut/export/vocab.txt").write_text("half of it")
    for _ in range(2):
        assert go(tmp_path / "cut", corpus, **SAVING).record == again.record
    assert not (tmp_path / "cut/export").exists() and not (tmp_path / "cut/vocab.txt").exists()
    assert (tmp_path / "cut/seal.json").read_bytes() == seal


def test_other_settings_in_the_same_folder_are_refused(finished, corpus):
    out = finished.output_dir
    assert go(out, corpus).record == finished.record
    with pytest.raises(ProtocolError, match="max_steps: 6 in the folder, 7 requested"):
        go(out, corpus, max_steps=7)
    with pytest.raises(ProtocolError, match="seed: 0 in the folder, 1 requested"):
        go(out, corpus, seed=1)
    with pytest.raises(ProtocolError, match="blocks: 'contiguous' in the folder, 'sentences' requested"):
        go(out, corpus, blocks={"blocks": "sentences"})
    with pytest.raises(ProtocolError, match=r"\(another corpus\)"):
        go(out, load_corpus(Dataset.from_list(ROWS[1:])))
    with pytest.raises(ProtocolError, match="max_tokens: None in the folder"):
        go(out, corpus, max_tokens=1e9)


def test_blocks_of_sentences_without_evaluation_are_recorded(tmp_path, corpus):
    run = go(tmp_path, corpus, blocks={"blocks": "sentences", "validation_share": 0.0}, total_batch_size=4, packing="pack")
    assert run.record["validation"] == {} and run.record["cost"]["real_tokens"] < run.record["cost"]["tokens"]
    card = (tmp_path / "README.md").read_text()
    assert (
        "6 steps of 4 blocks; a block has as many complete sentences" in card
        and "The model was not evaluated" in card
        and "validation" not in run.to_text()
    )


def test_spectral_initialization_is_recorded(tmp_path, corpus, finished):
    run = go(tmp_path, corpus, model_args={"embedding_init": "spectral"})
    assert (
        run.record["initialization"]["spectral"]["tokens_covered"] > 20
        and "spectral warm start" in (tmp_path / "README.md").read_text()
    )
    assert run.record["validation"] != finished.record["validation"]


def test_muon_updates_every_parameter(tmp_path, corpus):
    """The second step changes every parameter of the exported stock model."""
    options = {"optim": "muon", "muon_learning_rate": 2e-2, "lr_scheduler_type": "constant"}
    runs = [go(tmp_path / str(steps), corpus, max_steps=steps, **options) for steps in (1, 2)]
    first, second = (AutoModelForMaskedLM.from_pretrained(run.output_dir).state_dict() for run in runs)
    assert first.keys() == second.keys() and not [name for name in first if torch.equal(first[name], second[name])]
    assert [run.record["cost"]["steps"] for run in runs] == [1, 2]


def test_pretraining_continues_from_a_checkpoint(tmp_path, corpus, finished):
    run = go(tmp_path, corpus, model_args={"model_name_or_path": str(finished.output_dir)})
    assert run.record["training"]["mlm_loss"] < finished.record["training"]["mlm_loss"]
    assert "trained further from" in (tmp_path / "README.md").read_text() and not (tmp_path / "tokenizer").exists()


def test_checkpoint_that_does_not_fit_the_run_is_refused(tmp_path, corpus, finished, monkeypatch):
    """Before any text is prepared."""
    monkeypatch.setattr(pretraining, "BlockShards", None)
    base = {"model_name_or_path": str(finished.output_dir)}
    with pytest.raises(ModelError, match="max_length 41 is more than the 40 positions of .*Set --max_length to 40 or less"):
        go(tmp_path / "long", corpus, model_args=base, max_length=41)
    AutoModelForMaskedLM.from_config(
        AutoConfig.for_model("bert", **{**TINY_CONFIGS["bert"], "vocab_size": 50})
    ).save_pretrained(tmp_path / "few")
    few = {"model_name_or_path": str(tmp_path / "few"), "tokenizer_name": str(finished.output_dir)}
    with pytest.raises(ModelError, match=r"tokenizer .* has \d+ tokens, and .*few has 50. Pass the checkpoint's own"):
        go(tmp_path / "other", corpus, model_args=few)
    assert not (tmp_path / "long").exists() and not (tmp_path / "other").exists(), "to be corrected in the same folder"


@pytest.mark.slow
def test_adapter_is_trained_and_merged(tmp_path, corpus, finished):
    """Only the adapter is trained; merged, it gives the stock model of the folder, and it loads on the base by itself."""
    base = str(finished.output_dir)
    model_args = {"model_name_or_path": base, "use_peft": True, "lora_r": 4}
    run = go(tmp_path / "out", corpus, model_args=model_args)
    out, record = run.output_dir, run.record
    assert 0 < record["trained_parameters"] < 0.3 * record["parameters"]
    assert f"{record['trained_parameters']:,} trained" in run.to_text()
    assert "with a LoRA adapter (rank 4)" in (out / "README.md").read_text()
    check_loads("AutoModelForMaskedLM", out)
    merged, before = (AutoModelForMaskedLM.from_pretrained(path).eval() for path in (out, base))
    changed = {name for name, value in merged.state_dict().items() if not torch.equal(value, before.state_dict()[name])}
    layers = ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense")
    assert len(changed) == 6 * 2 and all(name.endswith(tuple(f"{layer}.weight" for layer in layers)) for name in changed)
    batch = load_tokenizer(str(out))(ROWS[0]["text"], return_tensors="pt")
    alone = PeftModel.from_pretrained(AutoModelForMaskedLM.from_pretrained(base), out / "adapter").eval()
    torch.testing.assert_close(alone(**batch).logits, merged(**batch).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(merged(**batch).logits, before(**batch).logits, atol=1e-3)
    assert go(out, corpus, model_args=model_args).record == record


def test_adapter_on_a_base_without_a_masked_lm_head_is_refused(tmp_path, corpus, finished):
    """Sentence encoders are published as a body alone."""
    AutoModel.from_pretrained(finished.output_dir).save_pretrained(tmp_path / "body")
    load_tokenizer(str(finished.output_dir)).save_pretrained(tmp_path / "body")
    model_args = {"model_name_or_path": str(tmp_path / "body")}
    unread = Corpus("unread", "0", lambda: pytest.fail("the corpus was read"))
    with pytest.raises(
        ArgumentsError, match="body has no masked-LM head, and use_peft would not train a randomly initialised one"
    ):
        go(tmp_path / "out", unread, model_args={**model_args, "use_peft": True})
    assert not (tmp_path / "out").exists()
    assert go(tmp_path / "full", corpus, model_args=model_args).record["trained_parameters"] > 0


def test_flops_budget_ends_training_and_schedule(tmp_path, corpus, finished):
    """Training ends at the step that reaches the budget, and so does the learning rate schedule."""
    step = finished.record["cost"]["flops"] / 6
    run = go(tmp_path, corpus, max_steps=0, max_flops=3.5 * step, logging_steps=1)
    assert run.record["cost"]["steps"] == 4
    log = json.loads((tmp_path / "training/trainer_state.json").read_text())["log_history"]
    rates = [entry["learning_rate"] for entry in log if "learning_rate" in entry]
    assert rates == pytest.approx([1e-2 * (4 - done) / 4 for done in range(4)])


def test_vocabulary_sample_does_not_depend_on_corpus_order(tmp_path):
    rows = [{"id": f"d{i}", "text": f"text {i}"} for i in range(300)]
    one = load_corpus(Dataset.from_list(rows), id_column="id")
    other = load_corpus(Dataset.from_list(rows[::-1]), id_column="id")
    few = _sample_texts(one, 40, 0.3)
    assert few == _sample_texts(other, 40, 0.3) and len(few) == 40 == len(set(few))
    # All texts except the held-out ones.
    assert few == _sample_texts(one, 1000, 0.3)[:40] and 150 < len(_sample_texts(one, 1000, 0.3)) < 260
    numbers = [int(text.split()[1]) for text in few]
    assert min(numbers) < 60 and max(numbers) > 240


@pytest.mark.parametrize(
    "changes,message",
    [
        (
            {"model_args": {"use_peft": True}},
            "use_peft does not train the body's weights, which would stay random from scratch",
        ),
        ({"eval_strategy": "steps", "blocks": {"validation_share": 0.0}}, "needs held-out blocks"),
        ({"label_smoothing_factor": 0.1}, "pretraining has none"),
        (
            {"metric_for_best_model": "f1"},
            "metric_for_best_model: expected .* loss, mlm_loss .objective mlm.; received 'f1'",
        ),
        ({"model_args": {"classifier_init": "linear"}}, "needs labelled texts, and pretraining has none"),
    ],
)
def test_invalid_options_are_refused(tmp_path, corpus, changes, message):
    with pytest.raises(ArgumentsError, match=message):
        go(tmp_path / "out", corpus, **changes)
    assert not (tmp_path / "out").exists()


def test_whole_word_masking_without_word_starts_is_refused(tmp_path, corpus):
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    words = Tokenizer(models.WordLevel({token: number for number, token in enumerate([*names.values(), "gene"])}, "[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(tmp_path / "words")
    given = {"tokenizer_name": str(tmp_path / "words"), "vocab_size": ModelArguments.vocab_size}
    with pytest.raises(TokenizerError, match="whole_word_mask needs tokens that show"):
        go(tmp_path / "out", corpus, model_args=given, whole_word_mask=True)
    assert not (tmp_path / "out").exists()


STREAMING = {"streaming_blocks": True, "shards_ahead": 1, "shard_size": 8}


def losses(folder):
    log = json.loads((folder / "training/trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in log if "loss" in entry]


@pytest.mark.slow
def test_streaming_is_identical_after_resuming_and_with_workers(tmp_path, corpus, monkeypatch):
    """Bit for bit, past the corpus's end and with dropout."""
    options = {**SAVING, "logging_steps": 1, "max_steps": 10, "blocks": STREAMING}
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "one")
    whole = go(tmp_path / "whole", corpus, **options)
    assert whole.record["corpus"]["blocks"] < 80 and whole.record["cost"]["real_tokens"] == 10 * 8 * 32
    original = pretraining.TlmTrainer.training_step

    def stop(self, *args, **kwargs):
        if self.state.global_step == 5:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "two")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretraining.TlmTrainer, "training_step", stop)
        go(tmp_path / "cut", corpus, **options)
    assert not [thread for thread in threading.enumerate() if thread.name == "preparing blocks"]
    again = go(tmp_path / "cut", corpus, **options)
    go(tmp_path / "workers", corpus, **options, dataloader_num_workers=2)
    assert without_time(again.record) == without_time(whole.record)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut", "workers")]
    assert weights[0] == weights[1] == weights[2] and len(losses(tmp_path / "whole")) == 10
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole") == losses(tmp_path / "workers")


def test_streaming_starts_before_the_corpus_is_prepared(tmp_path, monkeypatch):
    """The record gives no totals of a corpus whose end was not reached."""
    read = []

    def documents():
        for number in range(1_000_000):
            read.append(number)
            yield {"id": f"d{number}", "text": ROWS[number % 150]["text"], "source": "s"}

    endless = Corpus("endless", "1", documents)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    blocks = {**STREAMING, "vocab_texts": 50, "max_validation_blocks": 8}
    run = go(tmp_path / "out", endless, blocks=blocks, max_steps=3)
    assert len(read) < 20_000 and run.record["corpus"]["blocks"] is None
    assert "corpus " not in run.to_text() and "None" not in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"blocks": {**STREAMING, "blocks": "sentences"}}, "needs blocks of one length"),
        ({"blocks": STREAMING, "max_steps": -1}, "needs max_steps, max_flops, max_tokens or max_hours"),
        ({"blocks": STREAMING, "total_batch_tokens": 256}, "batches measured in texts"),
        ({"blocks": STREAMING, "model_args": {"embedding_init": "spectral"}}, "embedding_init random"),
    ],
)
def test_options_that_streaming_does_not_support_are_refused(tmp_path, corpus, changes, message):
    with pytest.raises(ArgumentsError, match=f"streaming_blocks .*{message}"):
        go(tmp_path / "out", corpus, **changes)
    assert not (tmp_path / "out").exists()
