"""Write a folder in the layout of the released COCO-LM checkpoints, of any size, with weights from a formula."""

import json

import torch

from support.toys import sentences

CONFIG = {
    "model_type": "cocolm",
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "layer_norm_type": "post",
    "rel_pos_bins": 8,
    "max_rel_pos": 12,
}


def shapes(config):
    """Return the shapes of the body's weights by their names in the checkpoint."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    found = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
        "relative_attention_bias.weight": (config["rel_pos_bins"], config["num_attention_heads"]),
    }
    for number in range(config["num_hidden_layers"]):
        for name, shape in {
            "attention.self_attn.in_proj": (3 * width, width),
            "attention.self_attn.out_proj": (width, width),
            "attention.LayerNorm": (width,),
            "intermediate.dense": (inner, width),
            "output.dense": (width, inner),
            "output.LayerNorm": (width,),
        }.items():
            found[f"encoder.layer.{number}.{name}.weight"] = shape
            found[f"encoder.layer.{number}.{name}.bias"] = shape[:1]
    return {f"cocolm.{name}": shape for name, shape in found.items()}


def weights(shapes):
    """Return weights that look random, are the same on every machine, and are as large as a trained model's."""
    state = {}
    for index, (name, shape) in enumerate(shapes.items()):
        count = torch.Size(shape).numel()
        # Fractional parts of multiples of the golden ratio; the index is squared so that neighbours do not differ by a step.
        spread = (torch.arange(1, count + 1, dtype=torch.float64).square() * 0.6180339887498949 + index * 0.7320508).frac()
        scale = 2.0 if "relative" in name else 1.5 / shape[-1] ** 0.5 if len(shape) > 1 and "embed" not in name else 0.3
        state[name] = ((spread - 0.5) * 2 * scale + (1.0 if name.endswith("LayerNorm.weight") else 0.0)).float()
        state[name] = state[name].reshape(shape)
    return state


def write(folder, state, config=CONFIG):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def batch(vocab_size, lengths, width):
    """Build a batch, padded on the right with 1, [PAD]."""
    ids = torch.ones(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = (torch.arange(length) * 7 + row * 11 + 3) % vocab_size
    mask = torch.stack([torch.arange(width) < length for length in lengths]).long()
    return {"input_ids": ids, "attention_mask": mask}


def write_tokenizer(folder):
    """Write sp.model and dict.txt: a dictionary of at most 60 symbols, ordered differently from sentencepiece's."""
    from sentencepiece import SentencePieceTrainer

    texts = [f"{row['text']}, it's the model; we'll see." for row in sentences(60, seed=2)]
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(folder / "sp"),
        vocab_size=50,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = [line.split("\t")[0] for line in (folder / "sp.vocab").read_text(encoding="utf-8").splitlines()]
    lines = [f"{piece} {count}" for count, piece in enumerate(reversed(pieces[3:]))]  # After <unk>, <s> and </s>.
    (folder / "dict.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
