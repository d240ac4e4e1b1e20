r"""Measure the price of a prediction: size, memory and time of models that classify a text, each in a process of its own.

    python benchmarks/deploy.py --models scierc=runs/deploy/scierc acl_arc=runs/deploy/acl_arc \
        --encoders scierc=runs/minilm/scierc acl_arc=runs/minilm/acl_arc \
        --tasks_dir ../shared/data/tasks --corpus '../shared/data/corpus/*.parquet' --output_dir runs/deploy

Exports models of the scale tlm/coffee that were trained on tasks, in float and int8, and scores them on the test split with
TF-IDF with a linear support vector machine (n-grams and C chosen on validation) and, with --encoders, MiniLM encoders (6
layers x 384, 30,522 words) fine-tuned on the tasks. Without --encoders MiniLM has random weights, and its scores are of the
records in benchmarks/results/cpu.jsonl. Speed depends on sizes and not on what was learned: the bodies of 2 x 64
(reproduce/small_body) and 2 x 96, the scale tlm/night and static embeddings for model2vec (for MiniLM's words, 256 wide like
potion-base-8M's, with a logistic regression) always have random weights. model2vec is left out if it is not installed.

All times include tokenising, on one thread: texts of the first task, cut to 32 and 128 tokens of the model's own tokenizer.
No text is answered twice. torch and ONNX encode as `hf-tlm predict` does, which remembers words (`hf_tlm.data.word_pieces`):
before times are taken, each process answers 500 other texts.
Writes benchmarks/results/deploy.json, .md, and the picture deploy.svg.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice, product
from pathlib import Path

from hf_tlm.data.word_pieces import word_piece_encoder
from hf_tlm.runs.onnx_process import Encode, classifier, peak_megabytes

LENGTHS, SIZES, ONE_BY_ONE, TEXTS, ROUNDS = (32, 128), (1, 2, 8, 32, 64), 200, 64, 3
WARM_UP = 500  # Texts.
TOKENS = 256  # Most tokens of a batch, as in `hf-tlm predict --backend onnx`.
PASSES = 50
# Kinds of onnxruntime's operators, after its fusions.
KINDS = {
    "products with weights": "DynamicQuantizeMatMul MatMulIntegerToFloat MatMulInteger DynamicQuantizeLinear Gemm".split(),
    "products and softmax of attention": "MatMul FusedMatMul Softmax".split(),
    "GELU, gates, sums": "Gelu BiasGelu QuickGelu FastGelu Erf Mul Add Sub Max Min ReduceMax Div".split(),
    "layer norms": "LayerNormalization SkipLayerNormalization".split(),
    "moving numbers": "Transpose Split Slice Reshape Concat Expand Gather Where Cast Squeeze Unsqueeze".split(),
    "rotary positions": "RotaryEmbedding".split(),
}
# Vocabulary sizes of the small body, the scale tlm/night and MiniLM, and the width of static embeddings.
SMALL_WORDS, NIGHT_WORDS, MINILM_WORDS, STATIC_WIDTH = 8_000, 16_000, 30_522, 256
SECTIONS = {
    "price": "What a prediction costs",
    "batches": "Texts a second by the size of a batch",
    "threads": "Several cores",
    "tokenising": "What tokenising costs",
    "files": "A file from the command line",
    "operators": "Where the time of 8 bits goes",
    "scores": "What 8 bits lose",
}
NOTES = {
    "price": (
        "One thread, from the text on, tokenising included, by the memory of words that `hf-tlm predict` has; every line is "
        "a process of its own, one after the other. "
        "MB are of weights or graph, configuration and tokenizer; memory is the largest of the process with batches of no "
        "more than 256 tokens. ms are of one text (median of 200), texts a second of the batches that suit each best (the "
        "table below). The scale minute has coffee's size; 2 x 64 is of reproduce/small_body."
    ),
    "batches": "In the same processes: 64 texts in batches of so many, the best of three rounds, each with other texts.",
    "threads": (
        "Texts a second of the 8-bit graphs in onnxruntime alone, in batches of 256 tokens: on one core; on all cores with "
        "threads inside each operator, in batches of 256 tokens a core; on all cores with a batch on each, as `hf-tlm "
        "predict` computes them. Best of five."
    ),
    "tokenising": (
        "Microseconds a text, all texts of the task on one thread, cut to 128 tokens: by `encode_batch_fast` of tokenizers, "
        "by the tokenizer of transformers, and by the memory of words, which is empty before the first pass. The ids are "
        "the same. Best of three."
    ),
    "files": (
        "`hf-tlm predict --backend onnx --onnx_dtype int8` on all texts of the task, cut to 128 tokens: "
        "opening of the model, reading and writing of csv files included, imports not. Best of two."
    ),
    "operators": (
        "8 texts of 32 tokens and 2 of 128 at a time. Alone: onnxruntime on token ids, without tokenising. Percent: of the "
        "time in onnxruntime, by its own profile, after its optimisations. Weights: of the matrices, pooler and head among "
        "them."
    ),
    "scores": (
        "Percent on the test split, of the task's metric, by one seed of the scale tlm/coffee (SciERC's had a large "
        "teacher, Hyperpartisan's a linear one). MiniLM's are of one fine-tuned encoder; where its int8 is empty, the mean "
        "of three that are recorded elsewhere. Drop: points of int8 below float on validation, as the export checks them."
    ),
}


def measure(side: str, folder: str, texts_file: str) -> dict:
    """Measure times and memory of one side; only what it needs is imported."""
    answer = {"torch": _torch, "fp32": _onnx, "int8": _onnx, "tfidf": _tfidf, "static": _static}[side](side, Path(folder))
    with open(texts_file, encoding="utf-8") as file:
        texts = json.load(file)
    found: dict = {}
    unused = {length: iter(texts[str(length)]) for length in LENGTHS}
    for length in LENGTHS:
        times = []
        for text in islice(unused[length], WARM_UP + ONE_BY_ONE):
            begun = time.perf_counter()
            answer([text], length)
            times.append(time.perf_counter() - begun)
        found[f"ms, {length} tokens"] = 1000 * sorted(times[WARM_UP:])[ONE_BY_ONE // 2]
    speeds: dict = {str(length): {} for length in LENGTHS}
    # Memory grows with the batch: larger batches come after it has been read.
    for length, size in sorted(product(LENGTHS, SIZES), key=lambda pair: pair[0] * pair[1]):
        if length * size > TOKENS:
            found.setdefault("memory MB", peak_megabytes())
        rounds = []
        for _ in range(ROUNDS):
            these = list(islice(unused[length], TEXTS))
            begun = time.perf_counter()
            for start in range(0, TEXTS, size):
                answer(these[start : start + size], length)
            rounds.append(time.perf_counter() - begun)
        speeds[str(length)][str(size)] = TEXTS / min(rounds)
    best = {f"texts/s, {length} tokens": max(of_size.values()) for length, of_size in speeds.items()}
    order = [f"{what}, {length} tokens" for length in LENGTHS for what in ("ms", "texts/s")]
    return {name: (found | best)[name] for name in (*order, "memory MB")} | {"batches": speeds}


def profile(graph: str) -> dict:
    """Return the number of a graph's weights, onnxruntime's own texts per second, and its time by operator in percent."""
    import collections
    import tempfile
    from statistics import median

    import numpy as np
    import onnx
    import onnxruntime

    sizes = {tensor.name: list(tensor.dims) for tensor in onnx.load(graph).graph.initializer}
    nodes = onnx.load(graph).graph.node
    products = {
        node.input[1] for node in nodes if node.op_type in ("MatMulInteger", "MatMul", "Gemm") and node.input[1] in sizes
    }
    weights = sum(int(np.prod(sizes[name])) for name in products)
    rng, alone = np.random.default_rng(0), {}
    with tempfile.TemporaryDirectory() as scratch:
        for profiled in (False, True):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level, options.enable_profiling = 1, 3, profiled
            options.profile_file_prefix = str(Path(scratch) / "profile")
            session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            names, times = [entry.name for entry in session.get_inputs()], {length: [] for length in LENGTHS}
            for length in LENGTHS * PASSES:
                ids = rng.integers(100, size=(TOKENS // length, length))
                values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
                begun = time.perf_counter()
                session.run(None, {name: values[name] for name in names})
                times[length].append(time.perf_counter() - begun)
            if not profiled:
                alone = {f"texts/s alone, {length} tokens": TOKENS // length / median(times[length]) for length in LENGTHS}
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: dict[str, int] = collections.Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    whole = sum(spent.values())
    shares = {name: 100 * each / whole for name, each in spent.items()}
    kinds = {kind: sum(shares.get(name, 0.0) for name in members) for kind, members in KINDS.items()}
    return {"weights": weights, **alone, **kinds, "others": 100 - sum(kinds.values())}


def tokenising(folder: str, texts_file: str) -> dict:
    """Measure the time of tokenising by three means, and check that their token ids are equal."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    settings = (Path(folder) / "tokenizer.json").read_text(encoding="utf-8")
    with open(texts_file, encoding="utf-8") as file:
        texts = json.load(file)["all"]
    length, plain, wrapped = LENGTHS[-1], Tokenizer.from_str(settings), AutoTokenizer.from_pretrained(folder)
    plain.no_padding()
    plain.enable_truncation(length)
    means = {
        "tokenizers": lambda part: [one.ids for one in plain.encode_batch_fast(part)],
        "transformers": lambda part: wrapped(part, truncation=True, max_length=length)["input_ids"],
        "memory, first pass": lambda part: word_piece_encoder(settings).encode(part, max_length=length)["input_ids"],
    }
    means["memory, second pass"] = means["memory, first pass"]
    expected, found = means["tokenizers"](texts), {"texts": len(texts)}
    for name, encode in means.items():
        times = []
        for _ in range(ROUNDS):
            if name == "memory, first pass":
                word_piece_encoder.cache_clear()
            begun = time.perf_counter()
            ids = [row for start in range(0, len(texts), 1000) for row in encode(texts[start : start + 1000])]
            times.append(time.perf_counter() - begun)
            assert ids == expected, f"{name} gives other ids than tokenizers"
        found[name] = 1e6 * min(times) / len(texts)
    return {"tokens a text": sum(map(len, expected)) / len(texts)} | found


def files(folder: str, texts_file: str) -> dict:
    """Measure `hf-tlm predict` with an 8-bit graph, from a csv to a csv."""
    import csv
    import tempfile

    from hf_tlm.runs import predict

    with open(texts_file, encoding="utf-8") as file:
        texts = json.load(file)["all"]
    options = {"backend": "onnx", "onnx_dtype": "int8", "max_length": LENGTHS[-1], "text_columns": "text"}
    found: dict = {"rows": len(texts)}
    with tempfile.TemporaryDirectory() as scratch:
        data, answers = Path(scratch) / "texts.csv", Path(scratch) / "answers.csv"
        for name, threads in {"one core": 1, "all cores": None}.items():
            times = []
            for part in (texts[:100], texts, texts):  # The first imports what is needed.
                with open(data, "w", encoding="utf-8", newline="") as file:
                    csv.writer(file).writerows([["text"], *([text] for text in part)])
                begun = time.perf_counter()
                predict(folder, str(data), answers, num_threads=threads, **options)
                times.append(time.perf_counter() - begun)
            found[f"rows/s, {name}"] = len(texts) / min(times[1:])
    return found


def threads(graph: str) -> dict:
    """Measure an 8-bit graph on one core and on all, with threads inside its operators and with a batch on each core."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    import onnxruntime

    from hf_tlm.models.onnx_session import cores

    rng, found = np.random.default_rng(0), {"cores": cores()}
    for length in LENGTHS:
        # Threads inside an operator, batches at the same time, tokens of a batch.
        ways = {"one core": (1, 1, 1), "inside operators": (cores(), 1, cores()), "a batch on each": (1, cores(), 1)}
        for name, (inside, beside, share) in ways.items():
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = inside, 3
            session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            names, times = [entry.name for entry in session.get_inputs()], []
            ids = rng.integers(100, size=(TOKENS * share // length, length))
            values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            inputs = [{name: values[name] for name in names}] * (PASSES // share)
            with ThreadPoolExecutor(beside) as pool:
                for _ in range(ROUNDS + 2):
                    begun = time.perf_counter()
                    list(pool.map(lambda one, session=session: session.run(None, one), inputs))
                    times.append(time.perf_counter() - begun)
            found[f"{length} tokens, {name}"] = len(inputs) * len(ids) / min(times)
    return found


def _torch(side: str, folder: Path):
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(1)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    encode = _encoder(folder)

    @torch.inference_mode()
    def answer(texts, length):
        ids, mask = encode(texts, length)
        return model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.argmax(-1)

    return answer


def _onnx(side: str, folder: Path):
    file = {"fp32": "model.onnx", "int8": "model_quantized.onnx"}[side]
    return classifier(str(folder / "onnx" / file), _encoder(folder))


def _encoder(folder: Path) -> Encode:
    """Return a function that encodes texts with the memory of words that `hf-tlm predict` has."""
    settings = (folder / "tokenizer.json").read_text(encoding="utf-8")
    encoder, padding = word_piece_encoder(settings), json.loads(settings)["model"]["vocab"]["[PAD]"]

    def encode(texts: list[str], length: int) -> tuple[list[list[int]], list[list[int]]]:
        rows = encoder.encode(texts, max_length=length)["input_ids"]
        masks = [[1] * len(ids) + [0] * (length - len(ids)) for ids in rows]
        return [ids + [padding] * (length - len(ids)) for ids in rows], masks

    return encode


def _tfidf(side: str, folder: Path):
    import joblib

    vectorizer, model = joblib.load(folder / "model.joblib")
    return lambda texts, length: model.predict(vectorizer.transform(texts))


def _static(side: str, folder: Path):
    import joblib
    from model2vec import StaticModel

    embed, head = StaticModel.from_pretrained(folder), joblib.load(folder / "head.joblib")
    return lambda texts, length: head.predict(embed.encode(texts, max_length=length, use_multiprocessing=False))


def main() -> None:
    # Imports of the driver only: the sides are measured in processes of this same file.
    import importlib.util

    from results_file import ROOT, ResultsFile

    from hf_tlm.tasks import load_task

    options, models, encoders = _arguments(str(ROOT / "benchmarks" / "results"))
    output = Path(options.output_dir)
    tasks = {name: load_task(str(Path(options.tasks_dir) / name)) for name in models}
    file = ResultsFile(options.results_dir, "deploy", SECTIONS, NOTES)

    # 1. The models of the tasks, exported and scored.
    first = next(iter(models))
    scored = models if "scores" in options.sections else {first: models[first]}
    scores = [_scores(name, tasks[name], models[name], encoders.get(name), output) for name in scored]
    if "scores" in options.sections:
        file.add("scores", scores)
    if "price" not in options.sections:
        return

    # 2. The models that only matter by size: the folder that torch loads, and that of the graphs.
    texts = _texts(tasks[first], models[first], output / "texts.json")
    sizes = {
        "2 x 64": (ROOT / "recipes/configs/models/modernbert_2x64.json", SMALL_WORDS),
        "2 x 96": (ROOT / "recipes/configs/models/modernbert_2x96.json", SMALL_WORDS),
        "night": (ROOT / "recipes/configs/models/modernbert_6x384.json", NIGHT_WORDS),
        "MiniLM": (ROOT / "benchmarks/models/minilm.json", MINILM_WORDS),
    }
    names = [name for name in options.shapes if not (encoders and name == "MiniLM")]
    shapes = {name: _shape(*sizes[name], options.corpus, output / name.lower().replace(" ", "")) for name in names}
    sides = {"coffee": (models[first], output / f"{first}-onnx"), **{name: (one, one) for name, one in shapes.items()}}
    if encoders:
        name, encoder = next(iter(encoders.items()))
        sides["MiniLM"] = (encoder, output / f"{name}-minilm-onnx")

    # 3. Measure each in a process of its own.
    rows = []
    for name, (stock, exported) in sides.items():
        for side in ("torch", "fp32", "int8"):
            rows.append(_row(name, side, stock if side == "torch" else exported, texts, _parameters(stock)))
    rows.append(_row("TF-IDF, linear", "tfidf", output / f"{first}-tfidf", texts, None))
    if "MiniLM" in sides and importlib.util.find_spec("model2vec"):
        static = _embeddings(sides["MiniLM"][0], tasks[first], output / "static")
        rows.append(_row("static embeddings", "static", static, texts, _parameters(static)))
    batches = [
        {"model": row["model"], "run by": row["run by"], "tokens": int(length)}
        | {f"of {size}": speed for size, speed in found.items()}
        for row in rows
        for length, found in row.pop("batches").items()
    ]
    file.add("price", rows)
    file.add("batches", batches)
    graphs = {name: exported / "onnx/model_quantized.onnx" for name, (_, exported) in sides.items()}
    graphs = {name: exported / "onnx/model_quantized.onnx" for name, (_, exported) in sides.items()}
    file.add("threads", [{"model": name, **_of_process("--threads", str(graph))} for name, graph in graphs.items()])
    stock = {name: sides[name][0] for name in ("coffee", "MiniLM") if name in sides}
    words = [{"tokenizer of": name, **_of_process("--tokenising", str(one), str(texts))} for name, one in stock.items()]
    file.add("tokenising", words)
    whole = [{"model": name, **_of_process("--files", str(one), str(texts))} for name, (_, one) in sides.items()]
    file.add("files", whole)
    file.add("operators", [{"model": name, **_of_process("--profile", str(graph))} for name, graph in graphs.items()])
    _picture(
        rows,
        file.results["scores"]["rows"] if "scores" in file.results else scores,
        Path(options.results_dir) / "deploy.svg",
    )
    print("\n" + file.to_text())


def _arguments(results_dir: str):
    """Return the options, and task -> folder of the models and of the encoders."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, metavar="TASK=FOLDER", help="finished runs of tlm/coffee")
    parser.add_argument(
        "--encoders", nargs="+", default=[], metavar="TASK=FOLDER", help="MiniLM fine-tuned by hf-tlm finetune"
    )
    parser.add_argument("--tasks_dir", required=True)
    parser.add_argument("--corpus", required=True, help="corpus for the vocabularies of --shapes")
    parser.add_argument(
        "--shapes",
        nargs="*",
        choices=["2 x 64", "2 x 96", "night", "MiniLM"],
        default=["2 x 64", "2 x 96", "night", "MiniLM"],
        help="sizes measured with random weights; MiniLM is skipped with --encoders",
    )
    parser.add_argument("--sections", nargs="+", choices=["price", "scores"], default=["price", "scores"])
    parser.add_argument("--output_dir", default="runs/deploy")
    parser.add_argument("--results_dir", default=results_dir)
    options = parser.parse_args()
    models, encoders = (
        {name: Path(folder) for name, _, folder in (pair.partition("=") for pair in pairs)}
        for pairs in (options.models, options.encoders)
    )
    if others := sorted({*encoders} - {*models}):
        parser.error(f"--encoders: of the tasks of --models ({', '.join(models)}); received {', '.join(others)}")
    return options, models, encoders


def _scores(name: str, task, model: Path, encoder: Path | None, output: Path) -> dict:
    """Export a model and an encoder, and score their graphs and the linear model on the test split."""
    from statistics import fmean

    from hf_tlm.runs import linear_model

    linear = linear_model(task)
    _fit_linear(task, linear.settings, output / f"{name}-tfidf")
    found = {"task": name, "metric": task.metric, **_exported(task, model, output / f"{name}-onnx")}
    found["TF-IDF, linear"] = 100 * linear.scores["test"][task.metric]
    if encoder is not None:
        of_encoder = _exported(task, encoder, output / f"{name}-minilm-onnx")
        return found | {"MiniLM": of_encoder["float"], **{f"MiniLM {part}": of_encoder[part] for part in ("int8", "drop")}}
    kept = [json.loads(line)["record"] for line in open(Path(__file__).parent / "results" / "cpu.jsonl", encoding="utf-8")]
    minilm = [one["test"][task.metric] for one in kept if one.get("task") == name and one.get("arm") == "pretrained"]
    return found | {"MiniLM": 100 * fmean(minilm) if minilm else None, "MiniLM int8": None, "MiniLM drop": None}


def _exported(task, model: Path, folder: Path) -> dict:
    """Export a model, and score its graphs on the test split."""
    from hf_tlm.runs import export_onnx

    exported = export_onnx(str(model), folder, task=task, max_drop=100)
    files = {one["dtype"]: one for one in exported.record["files"].values()}
    return {
        "float": 100 * _tested(folder, task, "fp32"),
        "int8": 100 * _tested(folder, task, "int8"),
        "drop": files["int8"]["drop"],
        "logits within": files["fp32"]["max_difference"],
    }


def _tested(folder: Path, task, dtype: str) -> float:
    """Score an exported graph on the test split, through `predict`."""
    import tempfile

    from hf_tlm.metrics import load_metric
    from hf_tlm.runs import predict

    with tempfile.TemporaryDirectory() as scratch:
        data, answers = Path(scratch) / "test.jsonl", Path(scratch) / "answers.jsonl"
        columns = [column for column in task.test.column_names if column != "label"]
        task.test.select_columns(columns).to_json(data, force_ascii=False)
        predict(str(folder), str(data), answers, backend="onnx", onnx_dtype=dtype, num_threads=1)
        found = [json.loads(line)["prediction"] for line in answers.read_text(encoding="utf-8").splitlines()]
    places = {label: index for index, label in task.id2label.items()}
    predictions = [places[label] for label in found]
    return load_metric(task.metric).compute(predictions=predictions, references=task.test["label"][:])[task.metric]


def _fit_linear(task, settings: dict, folder: Path) -> None:
    """Fit the chosen linear model with scikit-learn."""
    import joblib
    from sklearn.svm import LinearSVC

    from hf_tlm.runs.linear import tfidf

    vectorizer = tfidf(settings["n_grams"]).fit(task.train["text"])
    model = LinearSVC(C=settings["C"], class_weight=settings["class_weight"], random_state=0)
    model.fit(vectorizer.transform(task.train["text"]), task.train["label"][:])
    folder.mkdir(parents=True, exist_ok=True)
    joblib.dump((vectorizer, model), folder / "model.joblib")


def _texts(task, model: Path, file: Path) -> Path:
    """Write texts of exactly 32 and 128 tokens, special ones included, cut from the concatenation of the task's texts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    every = [text for rows in task.splits.values() for text in rows["text"]]
    whole = " ".join(every)
    ends = [end for _, end in tokenizer.encode(whole, add_special_tokens=False).offsets]
    found, needed = {}, WARM_UP + ONE_BY_ONE + len(SIZES) * ROUNDS * TEXTS
    for length in LENGTHS:
        starts = range(0, len(ends) - length, length - 2)
        found[length] = [whole[ends[i] : ends[i + length - 2]] for i in starts][:needed]
        assert len(found[length]) == needed, f"the task has too few words for {needed} texts of {length} tokens"
    file.write_text(json.dumps(found | {"all": every}), encoding="utf-8")
    return file


def _vocabulary(corpus: str, words: int, folder: Path):
    from transformers import AutoTokenizer

    from hf_tlm.corpora import load_corpus
    from hf_tlm.data import train_wordpiece

    if not (folder / "tokenizer.json").is_file():
        passages = (row["text"] for _, row in zip(range(40_000), load_corpus(corpus), strict=False))
        train_wordpiece(list(passages), words).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def _shape(config_file: Path, words: int, corpus: str, folder: Path) -> Path:
    """Build a classifier with random weights and its graphs."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

    from hf_tlm.models.onnx_graph import quantized, save, to_onnx

    set_seed(0)
    tokenizer = _vocabulary(corpus, words, folder)
    values = json.loads(config_file.read_text(encoding="utf-8"))
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos", "cls", "sep")}
    config = AutoConfig.for_model(values.pop("model_type"), **values, **ids, vocab_size=words, num_labels=7)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(folder)
    graph = to_onnx(model, ["input_ids", "attention_mask"], longest=512)
    save(graph, folder / "onnx/model.onnx")
    save(quantized(graph), folder / "onnx/model_quantized.onnx")
    return folder


def _embeddings(words_of: Path, task, folder: Path) -> Path:
    """Build static embeddings of random numbers for a tokenizer's words, and a logistic regression on them."""
    import joblib
    import numpy as np
    from model2vec import StaticModel
    from sklearn.linear_model import LogisticRegression
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(words_of / "tokenizer.json"))
    vectors = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), STATIC_WIDTH)).astype(np.float32)
    model = StaticModel(vectors, tokenizer)
    model.save_pretrained(str(folder))
    texts, labels = task.train["text"][:1000], task.train["label"][:1000]
    joblib.dump(LogisticRegression(max_iter=200).fit(model.encode(texts), labels), folder / "head.joblib")
    return folder


def _row(name: str, side: str, folder: Path, texts: Path, parameters: int | None) -> dict:
    measured = _of_process("--side", side, str(folder), str(texts))
    graphs = {"fp32": "onnx/model.onnx", "int8": "onnx/model_quantized.onnx"}
    weights = ["onnx/" + Path(graphs[side]).name] if side in graphs else ["model.safetensors", "model.joblib", "head.joblib"]
    files = [folder / one for one in (*weights, "config.json", "tokenizer.json", "tokenizer_config.json")]
    megabytes = sum(one.stat().st_size for one in files if one.is_file()) / 1e6
    kinds = {"torch": "torch", "fp32": "ONNX", "int8": "ONNX int8", "tfidf": "scikit-learn", "static": "model2vec"}
    return {"model": name, "run by": kinds[side], "parameters": parameters, "MB": megabytes, **measured}


def _of_process(*arguments: str) -> dict:
    """Run this file in a process and return what it prints."""
    import os
    import subprocess

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": _path()}
    done = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _parameters(folder: Path) -> int:
    import math

    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "np") as tensors:
        return sum(math.prod(tensors.get_slice(key).get_shape()) for key in tensors.keys())


def _path() -> str:
    import os

    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def _picture(rows: list[dict], scores: list[dict], file: Path) -> None:
    """Draw the score against megabytes, and against texts of 128 tokens per second."""
    from statistics import fmean

    from hf_tlm.analysis.figures import MARKERS, PALETTE, WIDTH, label_decades, new_figure, style, to_svg

    places = {(row["model"], row["run by"]): row for row in rows}
    columns = {
        "float": ("coffee", "ONNX"),
        "int8": ("coffee", "ONNX int8"),
        "TF-IDF, linear": ("TF-IDF, linear", "scikit-learn"),
        "MiniLM": ("MiniLM", "ONNX"),
        "MiniLM int8": ("MiniLM", "ONNX int8"),
    }
    # Models with measured speed, on the tasks for which all of them have scores.
    names = {column: where for column, where in columns.items() if where in places and any(one[column] for one in scores)}
    whole = [one for one in scores if all(one[column] is not None for column in names)]
    shown = {column: fmean(one[column] for one in whole) for column in names}
    with style():
        figure, axes = new_figure(1, 2, width=2 * WIDTH)
        for place, (column, (model, run_by)) in enumerate(names.items()):
            row = places[model, run_by]
            for axis, value in zip(axes, (row["MB"], row["texts/s, 128 tokens"]), strict=True):
                label = f"{model}, {run_by}" if model != run_by else model
                axis.plot(value, shown[column], linestyle="", marker=MARKERS[place], color=PALETTE[place], label=label)
        for axis, title in zip(axes, ("MB", "texts of 128 tokens a second, one core"), strict=True):
            axis.set_xscale("log")
            label_decades(axis.xaxis)
            axis.set_xlabel(title)
            axis.set_ylabel(f"test score, mean of {len(whole)} tasks")
        axes[0].legend()
        file.write_bytes(to_svg(figure))


if __name__ == "__main__":
    parts = {"--side": measure, "--tokenising": tokenising, "--files": files, "--threads": threads, "--profile": profile}
    if (part := parts.get("".join(sys.argv[1:2]))) is None:
        main()
    else:
        print(json.dumps(part(*sys.argv[2:])))
