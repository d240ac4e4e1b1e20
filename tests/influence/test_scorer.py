"""Influence scores equal a naive computation, for every family, layer and kind of parameter, and depend on nothing
else."""

from contextlib import nullcontext
from copy import deepcopy
from fnmatch import fnmatchcase

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import hf_tlm.influence.gradients as kinds
from hf_tlm.data.tokenization import TokenizerError
from hf_tlm.influence import InfluenceError, InfluenceScorer, draws
from hf_tlm.influence.rows import MaskedTexts
from hf_tlm.influence.task_gradients import KEPT_BYTES, TaskGradients, _free_memory
from hf_tlm.models import export_stock
from hf_tlm.utils.json_files import find_format
from support.naive import (
    FAMILIES,
    MASKED,
    PLACES,
    SEED,
    assert_close,
    gradients,
    passage_gradients,
    passages,
    products,
    references,
    task_gradients,
    task_texts,
    tiny,
)
from support.task_blocks import Killed, count_blocks

PROJECTIONS = ("embeddings_project.", "encoder.embedding_hidden_mapping_in.")
LAYER_KINDS = {
    "linear weights": "*dense.weight,*lin?.weight,*Wo.weight,ffn*.weight,*query.weight,*q_lin.weight,*Wqkv.weight",
    "linear biases": "*dense.bias,*lin?.bias,ffn*.bias,*value.bias",
    "LayerNorm": "*LayerNorm*,*layer_norm*,*norm.weight",
    "all": "*",
}
EMBEDDING_KINDS = {
    "words": "word_embeddings.weight,tok_embeddings.weight",
    "positions": "position_embeddings.weight",
    "types": "token_type_embeddings.weight",
    "LayerNorm": "LayerNorm.*,norm.*",
    "all": "*",
}
LACKING = {
    ("modernbert", "positions"),
    ("modernbert", "types"),
    ("distilbert", "types"),
    ("cocolm", "types"),
    ("modernbert", "linear biases"),
}
CASES = [
    (family, layer, kind)
    for family in FAMILIES
    for layer in (0, 1, -1)
    for kind in (LAYER_KINDS if layer else EMBEDDING_KINDS)
    if (family, kind) not in LACKING
]


def scorer_of(model, tokenizer, rows=None, task_batch_size=2, **options):
    options = {"mlm_probability": MASKED, "seed": SEED, "batch_size": 12, **options}
    scorer = InfluenceScorer(model if isinstance(model, list) else [model], tokenizer, **options)
    scorer.fit(task_texts() if rows is None else rows, task_batch_size)
    return scorer


def in_layer(family, layer, patterns):
    places = PLACES.get(family, PLACES["bert"])

    def chosen(name):
        if layer == 0 and name.startswith(PROJECTIONS):
            return patterns == "*"
        prefix = places[layer]
        return name.startswith(prefix) and any(fnmatchcase(name[len(prefix) :], each) for each in patterns.split(","))

    return chosen


@pytest.mark.parametrize(("family", "layer", "kind"), CASES)
def test_scores_equal_the_naive_computation(family, layer, kind, tokenizer):
    patterns = (LAYER_KINDS if layer else EMBEDDING_KINDS)[kind]
    expected = products(*references(family, torch.float64, 2, tokenizer), in_layer(family, layer, patterns))
    assert np.isnan(expected[3]).all() and not np.isnan(expected).all()
    scorer = scorer_of(tiny(family), tokenizer, layer=layer, parameters=patterns)
    scores = scorer.score(passages())
    assert scores.dtype == np.float64 and scorer.num_task_batches == 3
    assert_close(scores, expected, 1e-10)


@pytest.mark.parametrize(("family", "layer", "kind"), CASES)
def test_float32_scores_are_close_to_the_naive_computation(family, layer, kind, tokenizer):
    """For each kind separately: in the sum over all of them the small ones would not be noticed."""
    patterns = (LAYER_KINDS if layer else EMBEDDING_KINDS)[kind]
    scores = scorer_of(tiny(family, torch.float32), tokenizer, layer=layer, parameters=patterns).score(passages())
    assert scores.dtype == np.float32
    expected = products(*references(family, torch.float32, 2, tokenizer), in_layer(family, layer, patterns))
    assert_close(scores, expected, 1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert", "modernbert", "distilbert"])
@pytest.mark.parametrize("layer", [0, -1])
def test_scores_equal_those_of_stock_classes(family, layer, tokenizer, tmp_path):
    """Losses of stock classes, one passage and one task batch at a time: only the masks come from this package."""
    export_stock(tiny(family), tokenizer, tmp_path)
    lm = AutoModelForMaskedLM.from_pretrained(tmp_path / "mlm", dtype=torch.float64).eval()
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64).eval()
    names = ["input_ids", "attention_mask", *["token_type_ids"] * (family not in ("modernbert", "distilbert"))]
    of_passages, of_tasks = [], []
    masked = MaskedTexts(tokenizer, MASKED, SEED)
    for row in passages():
        batch = masked([row]) if masked.maskable(row["input_ids"]) else None
        inputs = batch and {name: batch[name] for name in names}
        of_passages.append(batch and gradients(lm, lm(**inputs, labels=batch["mlm_labels"]).loss))
    rows = list(task_texts())
    for start in range(0, len(rows), 2):
        batch = masked.collator(rows[start : start + 2])
        inputs = {name: batch[name] for name in names}
        of_tasks.append(gradients(classifier, classifier(**inputs, labels=batch["labels"]).loss))
    expected = products(of_passages, of_tasks, in_layer(family, layer, "*"))
    scorer = scorer_of(tiny(family), tokenizer, layer=layer, parameters="*")
    # The stock class loads ModernBERT's rotary frequencies in float32, whatever the dtype of its weights.
    assert_close(scorer.score(passages()), expected, 1e-6 if family == "modernbert" else 1e-10)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [0, -1])
def test_default_parameters_are_word_embeddings_or_attention_output(family, layer, tokenizer):
    names = {
        "albert": "attention.dense.weight",
        "modernbert": "attn.Wo.weight",
        "distilbert": "attention.out_lin.weight",
    }
    patterns = names.get(family, "attention.output.dense.weight") if layer else EMBEDDING_KINDS["words"]
    scorer = scorer_of(tiny(family), tokenizer, layer=layer)
    assert [parameter.name for parameter in scorer.choice.parameters][0] in patterns.split(",")
    assert_close(
        scorer.score(passages()),
        products(*references(family, torch.float64, 2, tokenizer), in_layer(family, layer, patterns)),
        1e-10,
    )


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize("layer", [0, 1, -1])
def test_factored_gradients_equal_complete_gradients(family, layer, tokenizer, monkeypatch):
    found = []
    for tokens in (0, 10**9):
        monkeypatch.setattr(kinds, "_TOKENS", tokens)
        scorer = scorer_of(tiny(family), tokenizer, layer=layer, parameters="*")
        matrices = [g for _, g in scorer._gradients() if isinstance(g, kinds.MatrixGradient)]
        assert all(matrix.whole == bool(tokens) for matrix in matrices)
        found.append(scorer.score(passages()))
    assert_close(*found, 1e-12)


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_block_sizes_do_not_change_the_scores(layer, tokenizer, monkeypatch):
    """Task gradients exceed the memory limit, and products are computed in pieces."""
    whole = scorer_of(tiny("bert"), tokenizer, task_batch_size=1, layer=layer, parameters="*")
    monkeypatch.setattr(kinds, "MAX_NUMBERS", 64)
    monkeypatch.setattr("hf_tlm.influence.scorer.MAX_NUMBERS", 64)
    cut = scorer_of(tiny("bert"), tokenizer, task_batch_size=1, layer=layer, parameters="*")
    assert len(list(whole._tasks.blocks())) == 1 and len(list(cut._tasks.blocks())) == 5
    assert_close(cut.score(passages()), whole.score(passages()), 1e-12)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("stay", [0, 2, 5])
def test_blocks_that_do_not_fit_are_reloaded(layer, stay, tokenizer, monkeypatch, tmp_path):
    """The memory budget fits as many of the five blocks as should stay in memory."""
    monkeypatch.setattr("hf_tlm.influence.scorer.MAX_NUMBERS", 64)
    scorer = scorer_of(tiny("bert"), tokenizer, task_batch_size=1, layer=layer, parameters="*")
    expected = scorer.score(passages())
    sizes = [sum(x.nbytes for parts in block.values() for x in parts.values()) for _, block in scorer._tasks.blocks()]
    scorer.save(tmp_path / "saved")
    monkeypatch.setattr("hf_tlm.influence.scorer.WAITING_BYTES", 0)
    read = []
    monkeypatch.setattr(
        "hf_tlm.influence.task_gradients.load_file", lambda path, device: read.append(path) or load_file(path, device)
    )
    monkeypatch.setattr("hf_tlm.influence.task_gradients.KEPT_BYTES", sum(sizes[:stay]))
    scorer.load(tmp_path / "saved")
    assert (np.nan_to_num(scorer.score(passages())) == np.nan_to_num(expected)).all()
    # One passage at a time, or two at a time of seven; one passage has nothing to mask.
    later = 6 - 1 if layer else 4 - 1
    assert len(sizes) == 5 and len(read) == 5 + (5 - stay) * later
    # The gradients of all passages wait for a single pass over the blocks.
    monkeypatch.setattr("hf_tlm.influence.scorer.WAITING_BYTES", 1 << 28)
    scorer.load(tmp_path / "saved")
    passes, blocks = [], scorer._tasks.blocks
    monkeypatch.setattr(scorer._tasks, "blocks", lambda: passes.append(0) or blocks())
    assert (np.nan_to_num(scorer.score(passages())) == np.nan_to_num(expected)).all() and len(passes) == 1


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_batch_size_order_and_padding_do_not_change_the_scores(layer, tokenizer):
    rows = passages(12)
    expected = scorer_of(tiny("bert"), tokenizer, layer=layer, parameters="*", batch_size=1).score(rows)
    scorer = scorer_of(tiny("bert"), tokenizer, layer=layer, parameters="*", batch_size=24)
    order = np.random.default_rng(0).permutation(len(rows))
    assert_close(scorer.score(rows.select(order)), expected[order], 1e-12)
    # Alone, and batched with a much longer passage.
    long = Dataset.from_list([{"id": "long", "input_ids": [2, *range(5, 40), 3], "token_type_ids": [0] * 37}, rows[0]])
    assert_close(scorer.score(rows.select([0])), expected[:1], 1e-12)
    assert_close(scorer.score(long)[1:], expected[:1], 1e-12)


def test_scores_of_a_group_sum_to_those_of_its_batch(tokenizer):
    model, rows = tiny("bert"), passages(4).select([0, 1, 2])
    scores = scorer_of(model, tokenizer).score(rows)
    model.requires_grad_(True)
    each = passage_gradients(model, tokenizer, rows)
    summed = {name: sum(gradient[name] for gradient in each) for name in each[0]}
    tasks = task_gradients(model, tokenizer, task_texts(), 2)
    expected = products([summed], tasks, in_layer("bert", -1, "attention.output.dense.weight"))
    assert_close(scores.sum(axis=0, keepdims=True), expected, 1e-10)


@pytest.mark.parametrize("count", [1, 4, 5, 100])
def test_task_batches_are_consecutive_texts(count, tokenizer):
    expected = products(
        passage_gradients(tiny("bert"), tokenizer, passages()),
        task_gradients(tiny("bert"), tokenizer, task_texts(), count),
        in_layer("bert", -1, "*"),
    )
    scorer = scorer_of(tiny("bert"), tokenizer, task_batch_size=count, parameters="*", batch_size=2)
    assert scorer.num_task_batches == expected.shape[1] == -(-5 // count)
    assert_close(scorer.score(passages()), expected, 1e-10)


def test_labels_column_may_have_either_name(tokenizer):
    named = scorer_of(tiny("bert"), tokenizer)
    other = scorer_of(tiny("bert"), tokenizer, task_texts().rename_column("label", "labels"))
    assert_close(other.score(passages()), named.score(passages()), 0)
    with pytest.raises(InfluenceError, match="are 0 to 2; found 99"):
        other.fit(Dataset.from_dict({"input_ids": [[2, 5, 3]] * 2, "labels": [None, 99]}), 1)


def test_scores_are_averaged_over_checkpoints(tokenizer):
    models = [tiny("bert", seed=seed) for seed in (0, 1)]
    single = [scorer_of(model, tokenizer, layer=0).score(passages()) for model in models]
    assert np.nanmax(np.abs(single[0] - single[1])) > 0.01 * np.nanmax(np.abs(single[0]))
    assert_close(scorer_of(models, tokenizer, layer=0).score(passages()), (single[0] + single[1]) / 2, 1e-12)


def test_output_embedding_counts_only_when_tied(tokenizer):
    tied, untied = (tiny("bert", tie_word_embeddings=tie) for tie in (True, False))
    untied = deepcopy(untied)
    untied.load_state_dict(tied.state_dict(), strict=False)
    untied.mlm_head.weight.data.copy_(tied.mlm_head.weight)
    assert untied.mlm_head.weight is not untied.get_input_embeddings().weight
    found = [scorer_of(model, tokenizer, layer=0).score(passages()) for model in (tied, untied)]
    untied.requires_grad_(True)
    gradients = passage_gradients(untied, tokenizer, passages()), task_gradients(untied, tokenizer, task_texts(), 2)
    assert_close(found[1], products(*gradients, in_layer("bert", 0, "word_embeddings.weight")), 1e-10)
    assert np.nanmax(np.abs(found[0] - found[1])) > 0.01 * np.nanmax(np.abs(found[0]))


def test_passages_without_maskable_tokens_score_nan(tokenizer):
    rows = [{"id": f"one {i}", "input_ids": [2, 9, 3]} for i in range(20)]
    rows += [{"id": "none", "input_ids": [2, 3]}, {"id": "empty", "input_ids": []}]
    scorer = scorer_of(tiny("bert"), tokenizer, mlm_probability=0.1)
    scores = scorer.score(Dataset.from_list(rows))
    assert (np.isnan(scores).all(axis=1) == [*[False] * 20, True, True]).all()
    assert np.isnan(scorer.score(Dataset.from_list(rows[20:]))).all()
    assert scorer.score(Dataset.from_list(rows).select([])).shape == (0, 3)


def test_validation_of_a_single_class_is_scored(tokenizer):
    rows = task_texts(labels=(1,))
    scores = scorer_of(tiny("bert"), tokenizer, rows).score(passages())
    tasks = task_gradients(tiny("bert"), tokenizer, rows, 2)
    each = passage_gradients(tiny("bert"), tokenizer, passages())
    assert_close(scores, products(each, tasks, in_layer("bert", -1, "attention.output.dense.weight")), 1e-10)


def test_masks_depend_on_seed_and_id_only(tokenizer):
    rows = passages()
    scores = [scorer_of(tiny("bert"), tokenizer, seed=seed).score(rows) for seed in (0, 0, 1)]
    assert (scores[0][:3] == scores[1][:3]).all() and (scores[0][:3] != scores[2][:3]).all()
    renamed = rows.remove_columns("id").add_column("id", [f"{name}!" for name in rows["id"]])
    assert (scorer_of(tiny("bert"), tokenizer, seed=0).score(renamed)[:3] != scores[0][:3]).all()
    assert draws(["a", "b", "ü"], 5).dtype == np.int64 and (draws(["a", "b", "ü"], -5) >= 0).all()
    assert (draws(["a", "b"], 5) == draws(["b", "a"], 5)[::-1]).all() and (draws(["a"], 5) != draws(["a"], 6)).all()


def test_bfloat16_sums_in_float32(tokenizer):
    expected = scorer_of(tiny("bert"), tokenizer, parameters="*").score(passages())
    scores = scorer_of(tiny("bert", torch.bfloat16), tokenizer, parameters="*").score(passages())
    assert scores.dtype == np.float32
    assert_close(scores, expected, 0.1)


@pytest.mark.parametrize("layer", [1, -1])
def test_projection_error_decreases_with_its_size(layer, tokenizer):
    model, options = tiny("bert"), {"layer": layer, "parameters": "*dense.weight,*query.weight"}
    exact = scorer_of(model, tokenizer, **options).score(passages())
    errors = [
        np.nanmean(np.abs(scorer_of(model, tokenizer, projection_dim=size, **options).score(passages()) - exact))
        for size in (1, 4, 15, 32)
    ]
    # No side is wider than 32.
    assert errors == sorted(errors, reverse=True) and errors[-2] > errors[-1] == 0


def test_task_gradients_are_saved_and_loaded(tokenizer, tmp_path):
    scorer = scorer_of(tiny("bert"), tokenizer, layer=0, parameters="*")
    scorer.save(tmp_path / "saved")
    other = InfluenceScorer([tiny("bert")], tokenizer, layer=0, parameters="*", mlm_probability=MASKED, seed=SEED)
    with pytest.raises(InfluenceError, match="call fit"):
        other.score(passages())
    other.load(tmp_path / "saved")
    assert other.num_task_batches == 3 and other.fingerprint == scorer.fingerprint
    assert_close(other.score(passages()), scorer.score(passages()), 1e-12)
    with pytest.raises(InfluenceError, match="contains no task gradients"):
        other.load(tmp_path / "nowhere")
    changed = deepcopy(tiny("bert"))
    changed.classifier.weight.data[0, 0] += 1e-3
    for model, options in ((changed, {}), (tiny("bert"), {"layer": -1}), (tiny("bert"), {"seed": SEED + 1})):
        options = {"layer": 0, "parameters": "*", "mlm_probability": MASKED, "seed": SEED, **options}
        with pytest.raises(InfluenceError, match="other models or settings"):
            InfluenceScorer([model], tokenizer, **options).load(tmp_path / "saved")


@pytest.mark.parametrize("damage", ["cut", "a bit", "none"])
def test_damaged_block_of_gradients_is_rebuilt(tokenizer, tmp_path, damage):
    scorer = InfluenceScorer([tiny("bert")], tokenizer, layer=0, parameters="*", mlm_probability=MASKED, seed=SEED)
    scorer.fit(task_texts(), 2, tmp_path)
    expected = scorer.score(passages())
    (block,) = tmp_path.glob("block-*")
    before = block.read_bytes()
    block.unlink()
    damaged = before[:-4] if damage == "cut" else before[:-1] + bytes([before[-1] ^ (damage == "a bit")])
    block.write_bytes(damaged)
    again = InfluenceScorer([tiny("bert")], tokenizer, layer=0, parameters="*", mlm_probability=MASKED, seed=SEED)
    if damage != "none":
        with pytest.raises(InfluenceError, match="1 of 1 blocks of the task gradients in .* are missing or damaged"):
            again.load(tmp_path)
    again.fit(task_texts(), 2, tmp_path)
    assert block.read_bytes() == before
    np.testing.assert_array_equal(again.score(passages()), expected)


def test_settings_of_gradients_are_read_once(tmp_path, monkeypatch):
    made = TaskGradients.begin(tmp_path, torch.device("cpu"), [2, 3], {"fingerprint": "f"})
    reads = []
    monkeypatch.setattr(
        "hf_tlm.influence.task_gradients.find_format", lambda *given: reads.append(given) or find_format(*given)
    )
    found = TaskGradients.find(tmp_path, torch.device("cpu"), fingerprint="f")
    assert (
        len(reads) == 1 and found._path(0) == made._path(0) and (found.stops, found.settings) == (made.stops, made.settings)
    )
    TaskGradients.begin(tmp_path, torch.device("cpu"), [2, 3], {"fingerprint": "f"})
    assert len(reads) == 2


def test_fit_writes_to_the_given_folder(tokenizer, tmp_path):
    scorer = InfluenceScorer([tiny("bert")], tokenizer)
    scorer.fit(task_texts(), 2, tmp_path / "tasks")
    other = InfluenceScorer([tiny("bert")], tokenizer)
    other.load(tmp_path / "tasks")
    assert (np.nan_to_num(other.score(passages())) == np.nan_to_num(scorer.score(passages()))).all()


def test_killed_fit_resumes_and_processes_divide_the_blocks(tokenizer, tmp_path, monkeypatch):
    blocks = count_blocks(monkeypatch, texts=1)
    whole = scorer_of(tiny("bert"), tokenizer, task_batch_size=1, layer=1)
    blocks.made.clear()
    options = {"mlm_probability": MASKED, "seed": SEED, "batch_size": 12, "layer": 1}

    texts = task_texts()

    def fit(rows=texts, **processes):
        scorer = InfluenceScorer([tiny("bert")], tokenizer, **options)
        scorer.fit(rows, 1, tmp_path / "tasks", **processes)
        return scorer

    blocks.stop = 2
    with pytest.raises(Killed):
        fit()
    with pytest.raises(InfluenceError, match="3 of 5 blocks of the task gradients in .* are missing"):
        InfluenceScorer([tiny("bert")], tokenizer, **options).load(tmp_path / "tasks")
    blocks.stop = 3
    with pytest.raises(Killed):
        fit(process_index=1, num_processes=2)
    assert blocks.made == [0, 1, 2]
    blocks.stop = None
    second = fit(process_index=4, num_processes=5)
    assert blocks.made == [0, 1, 2, 4, 3]
    for scorer in (second, fit()):
        assert (np.nan_to_num(scorer.score(passages())) == np.nan_to_num(whole.score(passages()))).all()
    assert len(blocks.made) == 5
    assert {path.name.count("-") for path in (tmp_path / "tasks").iterdir()} == {0, 2}
    # With other texts nothing is reused, and nothing remains.
    other = fit(task_texts(seed=5))
    assert len(blocks.made) == 10 and len(list((tmp_path / "tasks").iterdir())) == 6
    assert not np.allclose(np.nan_to_num(other.score(passages())), np.nan_to_num(whole.score(passages())))


@pytest.mark.parametrize(
    ("family", "length", "message"),
    [
        ("bert", 2, "leaves no token of a text beside 2 special tokens. Set --score_max_length to 3 or more"),
        ("bert", -3, "score_max_length -3 leaves"),
        ("bert", 3, None),
        ("bert", 41, "score_max_length 41 is more than the 40 positions"),
        ("bert", 40, None),
        ("roberta", 40, "more than the 39 positions"),
    ],
)
def test_unsupported_lengths_are_refused(family, length, message, tokenizer):
    scorer = InfluenceScorer([tiny(family)], tokenizer)
    with pytest.raises(InfluenceError, match=message) if message else nullcontext():
        assert scorer.max_length(length) == length


def test_tokenizer_of_another_model_is_refused(tokenizer):
    with pytest.raises(
        InfluenceError, match="The tokenizer has [0-9]+ tokens, and the models have embeddings for 50. Pass the"
    ):
        InfluenceScorer([tiny("bert", vocab_size=50)], tokenizer)


def test_default_max_length_is_128_or_the_tokenizers(tokenizer):
    tokenizer = deepcopy(tokenizer)
    scorer = InfluenceScorer([tiny("bert", max_position_embeddings=300)], tokenizer)
    found = []
    for tokenizer.model_max_length in (int(1e30), 512, 32):
        found.append(scorer.max_length())
    assert found == [128, 128, 32] and scorer.max_length(200) == 200
    tokenizer.model_max_length = 512
    for family, positions in (("bert", 40), ("roberta", 39)):
        assert InfluenceScorer([tiny(family)], tokenizer).max_length() == positions


def test_gradients_may_use_half_of_the_free_gpu_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 << 30, 80 << 30))
    assert _free_memory(torch.device("cuda")) == 5 << 30 and _free_memory(torch.device("cpu")) == KEPT_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 80 << 30))
    assert _free_memory(torch.device("cuda")) == KEPT_BYTES


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("kind", ["all", None])
def test_flash_attention_computes_all_tokens(family, kind, tokenizer, monkeypatch):
    """Its kernels need a GPU: only the check for it is patched here."""
    options = {"parameters": kind and LAYER_KINDS[kind]}
    expected = scorer_of(tiny(family), tokenizer, **options).score(passages())
    monkeypatch.setattr("hf_tlm.models.base.is_flash_attention_requested", lambda config: True)
    found = scorer_of(tiny(family), tokenizer, **options)
    assert not found._checkpoints[0].tail.modules
    assert_close(found.score(passages()), expected, 1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "between -3 and 2"),
        ({"parameters": "nonsense.*"}, "Choose from: attention.self.query.weight"),
        ({"mlm_probability": 0.0}, "mlm_probability"),
        ({"batch_size": 0}, "batch_size"),
        ({"projection_dim": 0}, "projection_dim"),
        ({"projection_dim": 8, "layer": 0}, "among word_embeddings.weight there is none"),
    ],
)
def test_invalid_settings_are_refused(options, message, tokenizer):
    with pytest.raises(InfluenceError, match=message):
        InfluenceScorer([tiny("bert")], tokenizer, **options)


def test_unsupported_parameters_and_rows_are_refused(tokenizer):
    model = deepcopy(tiny("bert"))
    model.base_model.encoder.layer[1].attention.output.dense = torch.nn.Bilinear(2, 2, 2)
    with pytest.raises(InfluenceError, match="belongs to a Bilinear"):
        InfluenceScorer([model], tokenizer)
    with pytest.raises(InfluenceError, match="at least one model"):
        InfluenceScorer([], tokenizer)
    for changes, message in (
        ({"vocab_size": 90}, "number 2 has a different bert.embeddings.word_embeddings.weight"),
        ({"num_hidden_layers": 3}, "number 2 has a different bert.encoder.layer.2.attention.output.LayerNorm.bias"),
    ):
        with pytest.raises(InfluenceError, match=message):
            InfluenceScorer([tiny("bert"), tiny("bert", **changes)], tokenizer)
    scorer = InfluenceScorer([tiny("bert")], tokenizer)
    with pytest.raises(InfluenceError, match="validation split"):
        scorer.fit(task_texts().select([]), 1)
    with pytest.raises(InfluenceError, match="task_batch_size"):
        scorer.fit(task_texts(), 0)
    with pytest.raises(InfluenceError, match="0 to 2; found 7"):
        scorer.fit(task_texts(labels=(0, 7)), 1)
    with pytest.raises(InfluenceError, match="columns input_ids and label"):
        scorer.fit(passages(), 1)
    scorer.fit(task_texts(), 1)
    with pytest.raises(InfluenceError, match="columns input_ids and id"):
        scorer.score(task_texts())


def test_wrong_types_are_refused(tokenizer):
    model = tiny("bert")
    for models, found in ((model, "TlmModel"), ([model, torch.nn.Linear(2, 2)], "Linear"), ("folder", "str")):
        with pytest.raises(InfluenceError, match=f"a list of TlmModel; received {found}. Pass "):
            InfluenceScorer(models, tokenizer)
    with pytest.raises(TokenizerError, match=r"received 'bert-base' \(str\)"):
        InfluenceScorer([model], "bert-base")
    scorer = InfluenceScorer([model], tokenizer)
    texts = Dataset.from_dict({"text": ["a"], "label": [0]})
    for rows, found in ((["a text"], "list"), (texts, "a Dataset with text, label")):
        with pytest.raises(InfluenceError, match=f"received {found}. hf_tlm.data.tokenize"):
            scorer.fit(rows, 1)


def test_task_batch_size_may_be_a_numpy_integer(tokenizer):
    """Writing it as JSON failed, after the earlier gradients had been discarded."""
    scorer, again = (scorer_of(tiny("bert"), tokenizer, task_batch_size=size) for size in (2, np.int64(2)))
    assert again.num_task_batches == scorer.num_task_batches > 0
