"""The page in a browser and from a plain server: the tokens and classes of Python, and no request to other servers."""

import contextlib
import html
import http.server
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig

from hf_tlm.hub import publish_model
from hf_tlm.models.onnx_session import OnnxModel
from hf_tlm.runs import export_onnx, write_page
from hf_tlm.runs.export import page as module
from hf_tlm.training import ArgumentsError
from hf_tlm.utils.seals import SealError
from support import warm
from support.kind_toys import byte_level, wordpiece
from support.tiny_checkpoints import go, pretrained
from support.toys import make_task, sentences

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
RUNTIME = os.environ.get("HF_TLM_PAGE_RUNTIME")
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None or RUNTIME is None,
    reason="THE PAGE IS NOT TESTED IN A BROWSER: it takes chromium on the PATH, and HF_TLM_PAGE_RUNTIME, a folder in which "
    "`npm install @huggingface/transformers@4.3.1` was run",
)
SIGMAS = ["ΟΔΟΣ", "Σ", "ΑΣ'", "ΟΔΌΣ.", "ΟΔΟΣ\u0301", "ΠΟΛΥΣ ΚΟΣΜΟΣ", "\U0001d6ba\U0001d6ba", "ς"]
PARTS = [
    "the gene binds",
    "Zürich",
    "naïve café",
    "e\u0301a\u0308",
    "ﬁne",
    "İstanbul",
    "ß",
    "北京大学",
    "東京",
    "한국어",
    "🙂👍🏽",
    "👩‍👩‍👧",
]
PARTS += [
    "a\u0000b",
    "\x07",
    "\t\n",
    "\u200b",
    "\u00a0",
    "\u3000",
    "\u202e",
    "\ufeff",
    "\u00ad",
    "\ufffd",
    "don't",
    "3.5%",
    "##x",
    "[SEP]",
]
PARTS += [
    "[MASK] x",
    "...",
    "—",
    "http://a.b/c?d=e",
    "Σίσυφος",
    *SIGMAS,
    "Привет",
    "مرحبا",
    "हिन्दी",
    "ไทย",
    "\U0001d400",
    "½",
    "²",
]
DRIVER = """
<!doctype html><meta charset="utf-8"><script type="importmap">{imports}</script>
<script type="module">
import {{ load }} from "./model.js";
const seen = document.createElement("pre");
seen.id = "seen";
try {{
  const {{ encode, classify }} = await load();
  const found = [];
  for (const [text, pair, asked] of await (await fetch("cases.json")).json())
    found.push({{ ...encode(text, pair), shares: asked ? await classify(text, pair) : null }});
  seen.textContent = JSON.stringify(found);
}} catch (error) {{
  seen.textContent = JSON.stringify(`${{error}} ${{error.stack}}`);
}}
document.body.append(seen);
</script>
"""
PERSON = """
const seen = {}, at = (id) => document.getElementById(id), until = async (test) => {
  while (!test()) await new Promise((done) => setTimeout(done, 20));
};
await until(() => document.body.dataset.ready);
if (document.body.dataset.ready === "failed") document.body.prepend(at("footprint").textContent); // The end of what is seen.
const rows = () => [...at("bars").children].map((row) => [...row.children].map((cell) => cell.textContent || cell.value));
seen.ready = document.body.dataset.ready;
seen.title = document.title;
seen.empty = rows();
at("text").value = "the drug blocks the gene";
at("text").dispatchEvent(new Event("input"));
await until(() => rows().length);
seen.typed = rows();
at("examples").children[1].click();
await until(() => rows()[0].join() !== seen.typed[0].join());
seen.example = [at("text").value, rows()];
seen.time = at("time").textContent;
seen.footprint = at("footprint").textContent;
seen.pair = at("pair").getClientRects().length;
seen.too_wide = document.documentElement.scrollWidth - innerWidth;
seen.paper = getComputedStyle(document.body).backgroundColor;
seen.resources = performance.getEntriesByType("resource").map(({ name }) => name);
seen.elsewhere = await fetch(ELSEWHERE).then(() => "reached", (error) => error.name);
const result = document.createElement("pre");
result.id = "seen";
result.textContent = JSON.stringify(seen);
document.body.append(result);
"""

# A model that fails for one text, and the parts of a document that the page uses.
BROKEN = """
globalThis.asked = [];
async function classify(text) {
  asked.push(text);
  if (text === "long") throw new Error("out of memory");
  return [0.25, 0.75];
}
export const load = async () => ({ page: { title: "t", pairs: PAIRS, texts: [] }, names: ["a", "b"], classify });
"""
STUB = """
const elements = {};
const element = () => ({
  value: "", children: [], dataset: {}, listeners: {},
  appendChild(child) { this.children.push(child); return child; },
  replaceChildren(...children) { this.children = children; },
  addEventListener(name, call) { this.listeners[name] = call; },
});
globalThis.document = { body: element(), createElement: element, getElementById: (id) => (elements[id] ??= element()) };
await import("./page.js");
const pause = () => new Promise((done) => setTimeout(done, 50));
await pause();
for (const text of ["long", "short"]) {
  elements.text.value = text;
  Promise.resolve(elements.text.listeners.input()).catch(() => {});
  await pause();
  console.log(JSON.stringify([elements.time.textContent, elements.bars.children.length]));
}
console.log(JSON.stringify(asked));
"""


@contextlib.contextmanager
def serve(folder):
    """Serve a folder; yield its address and the list of requested paths."""
    requested = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            requested.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requested
    finally:
        server.shutdown()
        server.server_close()


def browse(address, tmp_path, *flags):
    """Return what the page wrote, and the console output; no host except this machine can be reached."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,800", "--enable-logging=stderr", "--v=0"]
    options += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--virtual-time-budget=120000", *flags]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", address], capture_output=True, text=True, timeout=200, encoding="utf-8"
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(html.unescape(found[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def page(exported, tmp_path):
    return write_page(exported.folder, tmp_path / "page", texts=["the gene", "a cell"], runtime=RUNTIME)


def cases(count):
    """Return texts of many scripts, some longer than max_length, some of them pairs; the first 200 are classified."""
    rng = random.Random(0)
    texts = [row["text"] for row in sentences(count, 3)]
    mixed = [rng.choice(["", " ", "  "]).join(rng.choices(PARTS, k=rng.randint(1, 40))) for _ in range(count)]
    singles = [[text, None, True] for text in texts[:100] + mixed[:100]] + [[text, None, False] for text in mixed[100:]]
    return singles + [[text, pair, False] for text, pair in zip(mixed, reversed(mixed), strict=True)]


def run_in_browser(page, tmp_path, texts):
    (page / "cases.json").write_text(json.dumps(texts))
    (page / "driver.html").write_text(DRIVER.format(imports=json.dumps({"imports": module._IMPORTS})), encoding="utf-8")
    with serve(page) as (address, _):
        found, _ = browse(f"{address}/driver.html", tmp_path)
    assert isinstance(found, list), found
    return found


def ids_of(tokenizer, case):
    text, pair, _ = case
    return tokenizer.encode(text) if pair is None else tokenizer.encode(text, pair)


@pytest.mark.slow
@in_a_browser
def test_tokens_and_classes_equal_those_of_python(page, exported, tmp_path):
    inputs = cases(500)
    results = run_in_browser(page, tmp_path, inputs)
    tokenizer = Tokenizer.from_file(str(exported.folder / "tokenizer.json"))
    tokenizer.enable_truncation(exported.record["max_length"])
    model = OnnxModel(exported.folder, "int8")
    differ, num_truncated = [], 0
    for case, result in zip(inputs, results, strict=True):
        expected = ids_of(tokenizer, case)
        num_truncated += len(expected.ids) == exported.record["max_length"]
        if result["input_ids"] != expected.ids or result["token_type_ids"] != expected.type_ids:
            differ.append((case[:2], result["input_ids"], expected.ids))
        if case[2]:
            batch = {"input_ids": [expected.ids], "attention_mask": [expected.attention_mask]}
            (logits,) = model({**batch, "token_type_ids": [expected.type_ids]})
            shares = np.exp(logits[0]) / np.exp(logits[0]).sum()
            assert np.argmax(result["shares"]) == np.argmax(shares) and result["shares"] == pytest.approx(shares, abs=0.01)
    assert not differ, f"{len(differ)} of {len(inputs)}: {differ[:3]}"
    assert num_truncated > 200 and len(inputs) > 1000


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_rotary_positions_give_the_probabilities_of_python(tokenizer, tmp_path, seeds):
    """ModernBERT's graph has an operator that the browser's runtime must support, optimised or not."""
    base = pretrained(tmp_path / "base", tokenizer, "modernbert", num_hidden_layers=2)
    go(tmp_path / "run", base, make_task(train=24), max_steps=2, seeds=seeds)
    models = [str(tmp_path / f"run/seed-{seed}/model") for seed in seeds]
    made = export_onnx(models, tmp_path / "out", task=make_task(), max_drop=100)
    page = write_page(made.folder, tmp_path / "page", runtime=RUNTIME)
    assert json.loads((page / "page.json").read_text())["averaged"] == (len(seeds) > 1)
    inputs = [[row["text"], None, True] for row in sentences(50, 4)]
    texts = Tokenizer.from_file(str(made.folder / "tokenizer.json"))
    model = OnnxModel(made.folder, "int8")
    for case, one in zip(inputs, run_in_browser(page, tmp_path, inputs), strict=True):
        expected = texts.encode(case[0])
        (logits,) = model({"input_ids": [expected.ids], "attention_mask": [expected.attention_mask]})
        assert one["shares"] == pytest.approx(np.exp(logits[0]) / np.exp(logits[0]).sum(), abs=0.01)


def character_tokenizer(kind):
    """Return a tokenizer of single characters with one of NORMALIZERS."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.normalizer = NORMALIZERS[kind]
    letters = {letter for text in TEXTS for letter in tokenizer.normalizer.normalize_str(text)}
    tokenizer.model = models.WordLevel({letter: at for at, letter in enumerate(["[UNK]", *sorted(letters)])}, "[UNK]")
    return tokenizer


NORMALIZERS = {
    "bert": normalizers.BertNormalizer(lowercase=True),
    "bert, with accents": normalizers.BertNormalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False),
    "bert, cased": normalizers.BertNormalizer(lowercase=False),
    "lowercase": normalizers.Lowercase(),
    "sequence": normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
    # A mathematical sigma becomes a plain one.
    "compatible": normalizers.Sequence([normalizers.NFKC(), normalizers.Sequence([normalizers.Lowercase()])]),
    "none that lowers": normalizers.NFC(),
}
_DRAWN = random.Random(1)
TEXTS = [
    *("Ο ΔΡΟΜΟΣ ΕΙΝΑΙ ΜΑΚΡΥΣ", "Οδός, ΟΔΟΣ; ΟΔΌΣ!", "ΣΣΣ Σ σς ς", "ΟΔΟΣ2 ΑΣ-ΑΣ", "Ϲ ϲ \U0001d6ba \U0001d6d3"),
    *("İSTANBUL IĞDIR ılık İi", "STRAẞE Straße GROẞ", "ǅ ǈ Ⅷ ⓐⒶ", "ﬃ ŉ ΐ"),
    *(" ".join(_DRAWN.choices(PARTS, k=_DRAWN.randint(1, 20))) for _ in range(1000)),
]
# The normalization of transformers.js, in its order; `clean` and spaces around CJK characters change no case.
NORMALIZING = """
import { readFileSync } from "node:fs";
import { loweredAsInPython } from "./model.js";
const [words, texts] = JSON.parse(readFileSync("cases.json", "utf8"));
const strip = (text) => text.normalize("NFD").replace(/\\p{Mn}/gu, "");
const normalize = (one, text) => ({
  Sequence: () => one.normalizers.reduce((so_far, next) => normalize(next, so_far), text),
  Replace: () => text.replaceAll(one.pattern.String, one.content),
  Lowercase: () => text.toLowerCase(),
  NFD: () => text.normalize("NFD"), NFC: () => text.normalize("NFC"), NFKC: () => text.normalize("NFKC"),
  StripAccents: () => text.replace(/\\p{Mn}/gu, ""),
  BertNormalizer: () => {
    if (one.lowercase) text = text.toLowerCase();
    return (one.strip_accents ?? one.lowercase) ? strip(text) : text;
  },
})[one.type]();
const made = loweredAsInPython(words);
const [plain, ours] = [words, made].map(({ normalizer }) => texts.map((text) => normalize(normalizer, text)));
console.log(JSON.stringify({ made, plain, ours, none: loweredAsInPython({ normalizer: null }) }));
"""


# Prints the names of classes that the page shows, with the given files of the export.
NAMING = """
import { readFileSync } from "node:fs";
import { load } from "./model.js";
const files = JSON.parse(readFileSync("files.json", "utf8"));
globalThis.fetch = async (name) => ({ ok: true, json: async () => files[name.split("/").at(-1)] });
console.log(JSON.stringify((await load()).names));
"""


def model_in_node(folder, script):
    """Return the JSON that a script prints which imports model.js, without the model of transformers.js."""
    package = folder / "node_modules/@huggingface/transformers"
    package.mkdir(parents=True)
    stub = "export const [AutoModelForSequenceClassification, Tensor, softmax] = [{ from_pretrained() {} }, null, null];\n"
    stub += "export const PreTrainedTokenizer = class {};\n"
    stub += "export const env = { backends: { onnx: { wasm: {} } } };\n"
    (package / "index.js").write_text(stub)
    (package / "package.json").write_text('{"type": "module", "exports": "./index.js"}')
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(Path(module.__file__).parent / "templates/model.js", folder)
    (folder / "run.js").write_text(script)
    done = subprocess.run(["node", "run.js"], cwd=folder, capture_output=True, check=True, encoding="utf-8")
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="model.js runs in node")
@pytest.mark.parametrize("labels", [["no", "yes"], ["LABEL_0", "LABEL_1"], [f"class {index}" for index in range(12)]])
def test_page_has_the_names_of_the_classes(labels, tmp_path):
    """Transformers leaves LABEL_0 and LABEL_1 out of a config."""
    config = BertConfig(id2label=dict(enumerate(labels)))
    files = {"export.json": {"inputs": [], "files": {}}, "config.json": json.loads(config.to_json_string())}
    files |= {"page.json": {"model": ["./", "model"]}, "tokenizer.json": {}, "tokenizer_config.json": {}}
    (tmp_path / "files.json").write_text(json.dumps(files))
    assert model_in_node(tmp_path, NAMING) == labels


@pytest.mark.skipif(shutil.which("node") is None, reason="THE PAGE'S SCRIPT IS NOT TESTED: it takes node on the PATH")
@pytest.mark.parametrize("kind", NORMALIZERS)
def test_capital_sigma_is_lowercased_as_in_python(kind, tmp_path):
    """At the end of a word JavaScript lowercases it to a final sigma, and Python's tokenizers to the common one."""
    tokenizer = character_tokenizer(kind)
    words = json.loads(tokenizer.to_str())
    (tmp_path / "cases.json").write_text(json.dumps([words, TEXTS]), encoding="utf-8")
    found = model_in_node(tmp_path, NORMALIZING)
    assert found["none"] == {"normalizer": None} and {**found["made"], "normalizer": 0} == {**words, "normalizer": 0}
    # In Python the converted tokenizer gives the same tokens.
    other = Tokenizer.from_str(json.dumps(found["made"]))
    for text in TEXTS:
        assert other.encode(text).ids == tokenizer.encode(text).ids
        assert other.normalizer.normalize_str(text) == tokenizer.normalizer.normalize_str(text)
    # In JavaScript every sigma is lowercased as in Python.
    lowers = kind not in ("bert, cased", "none that lowers")
    assert any("ς" in one for one in found["plain"]) and (found["plain"] != found["ours"]) == lowers
    for text, ours in zip(TEXTS, found["ours"], strict=True):
        expected = tokenizer.normalizer.normalize_str(text)
        assert [letter for letter in ours if letter in "σςΣ"] == [letter for letter in expected if letter in "σςΣ"], text
    if kind == "lowercase":
        assert found["ours"] == [tokenizer.normalizer.normalize_str(text) for text in TEXTS]


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("make", [wordpiece, byte_level])
def test_tokens_of_other_tokenizers_equal_those_of_python(make, page, tmp_path):
    tokenizer = make()._tokenizer
    if make is byte_level:  # Like RoBERTa's: two special tokens between the texts.
        ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        pair = "[CLS] $A [SEP] [SEP] $B [SEP]"
        tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ids)
    tokenizer.no_truncation()
    tokenizer.save(str(page / "model/tokenizer.json"))
    inputs = [[text, pair, False] for text, pair, _ in cases(300)]
    results = run_in_browser(page, tmp_path, inputs)
    tokenizer.enable_truncation(json.loads((page / "model/export.json").read_text())["max_length"])
    expected = [ids_of(tokenizer, case).ids for case in inputs]
    wrong = [
        (case, one["input_ids"], ids)
        for case, one, ids in zip(inputs, results, expected, strict=True)
        if one["input_ids"] != ids
    ]
    assert not wrong, f"{len(wrong)} of {len(inputs)}: {wrong[:3]}"


def add_user_script(page, other_server):
    """Add a script that uses the page like a person, and also requests a file from another server."""
    (page / "person.js").write_text(PERSON.replace("ELSEWHERE", json.dumps(f"{other_server}/page/page.json")))
    index = (page / "index.html").read_text().replace("</body>", '<script type="module" src="person.js"></script></body>')
    (page / "index.html").write_text(index)


@pytest.mark.slow
@in_a_browser
def test_page_loads_its_model_from_the_hub(hub, exported, tmp_path):
    """The page requests only the model's files, and can reach no other server."""
    publish_model(exported.folder, "alice/toy", private=False)
    texts = ["the gene", "a cell"]
    page = write_page(exported.folder, tmp_path / "page", texts=texts, runtime=RUNTIME, model="alice/toy@main")
    hub.log.clear()
    with serve(tmp_path) as (elsewhere, reached), serve(page) as (address, _):
        add_user_script(page, elsewhere)
        seen, console = browse(f"{address}/index.html", tmp_path)
    assert seen["ready"] == "true" and {row[0] for row in seen["typed"]} == {"down", "none", "up"}, console
    assert seen["elsewhere"] == "TypeError" and reached == []
    resolve_url = f"{hub.url}/alice/toy/resolve/main/"
    fetched = {name.removeprefix(resolve_url) for name in seen["resources"] if not name.startswith(f"{address}/")}
    names = {"config.json", "export.json", "tokenizer.json", "tokenizer_config.json", "onnx/model_quantized.onnx"}
    assert fetched == names == {path.removeprefix("/alice/toy/resolve/main/") for method, path in hub.log if method == "GET"}
    sizes = [path.stat().st_size for path in page.rglob("*") if path.suffix != ".wasm"]
    sizes.append(exported.record["files"]["onnx/model_quantized.onnx"]["bytes"])
    assert float(seen["footprint"].split()[0]) == pytest.approx(sum(sizes) / 1e6, abs=0.051)


@pytest.mark.slow
@in_a_browser
def test_typed_texts_and_examples_are_classified(page, exported, tmp_path):
    with serve(tmp_path) as (elsewhere, reached), serve(page) as (address, asked):
        add_user_script(page, elsewhere)
        seen, console = browse(f"{address}/index.html", tmp_path)
        dark, _ = browse(f"{address}/index.html", tmp_path, "--blink-settings=preferredColorScheme=0")
    assert seen["ready"] == "true" and seen["title"] == exported.record["model"] and seen["empty"] == []
    assert {row[0] for row in seen["typed"]} == {"down", "none", "up"}
    shares = [row[1] for row in seen["typed"]]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1)
    assert seen["example"][0] == "a cell" and seen["example"][1] != seen["typed"]
    assert re.fullmatch(r"\d+\.\d ms", seen["time"]) and " MB loaded, plus 14.3 MB of runtime" in seen["footprint"]
    assert float(seen["footprint"].split()[0]) < 5
    assert seen["pair"] == 0 and seen["too_wide"] <= 0 and seen["paper"] != dark["paper"]
    assert all(name.startswith(f"{address}/") for name in seen["resources"])
    assert seen["elsewhere"] == "TypeError" and reached == []
    assert console and all("Content Security Policy" in line and "/page/page.json" in line for line in console)
    assert {Path(path).name for path in asked} >= {"model_quantized.onnx", "tokenizer.json", "page.css"}


@pytest.mark.slow
@in_a_browser
def test_page_benchmark_measures_seconds(page, tmp_path):
    """benchmarks/page.py; the times depend on the load of the machine."""
    arguments = ["--page", page, "--visits", "1", "--results_dir", tmp_path / "results"]
    done = warm.recipe("benchmarks/page.py", arguments, limit=280)
    assert done.status == 0, done.stderr[-3000:]
    at_once, later = json.loads((tmp_path / "results/page.json").read_text())["page"]["rows"]
    assert 0 < at_once["ready s"] < at_once["answered s"] < 120
    assert at_once["ms from text to answer"] > 0 < later["ms from text to answer"]
    assert at_once["MB"] < 5 and at_once["MB of runtime"] == pytest.approx(14.3, abs=0.1)


def run_in_node(folder, *, pairs):
    """Return what the page's script displays for the texts of STUB, and the texts that the model received."""
    script = Path(module.__file__).parent / "templates/page.js"
    shutil.copyfile(script, folder / "page.js")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "model.js").write_text(BROKEN.replace("PAIRS", json.dumps(pairs)))
    (folder / "main.js").write_text(STUB)
    done = subprocess.run(["node", "main.js"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return map(json.loads, done.stdout.splitlines())


@pytest.mark.skipif(shutil.which("node") is None, reason="page.js runs in node")
def test_incomplete_pair_is_not_classified(tmp_path):
    """Python accepts an empty second text; transformers.js treats it as none."""
    *shown, asked = run_in_node(tmp_path, pairs=True)
    assert shown == [["", 0], ["", 0]] and asked == ["a"]


@pytest.mark.skipif(shutil.which("node") is None, reason="page.js runs in node")
def test_error_does_not_stop_the_page(tmp_path):
    failed, after, asked = run_in_node(tmp_path, pairs=False)
    assert sorted(asked) == ["a", "long", "short"]  # The first compiles the runtime before anyone types.
    assert failed == ["This text cannot be classified: out of memory", 0]
    assert re.fullmatch(r"\d+\.\d ms", after[0]) and after[1] == 2


@pytest.mark.parametrize("endpoint", ["https://huggingface.co", "https://hub.example.org"])
def test_page_with_a_model_of_the_hub(endpoint, exported, tmp_path, runtime, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    page = write_page(exported.folder, tmp_path / "page", runtime=runtime, model="me/toy@v1.0")
    assert not (page / "model").exists()
    assert json.loads((page / "page.json").read_text())["model"] == [f"{endpoint}/me/toy/resolve/", "v1.0"]
    (reached,) = re.findall("connect-src (.*?);", (page / "index.html").read_text())
    assert reached == f"'self' {endpoint}" + " https://*.hf.co" * (endpoint == "https://huggingface.co")
    assert "its own files and the Hub, from which the model is loaded." in (page / "index.html").read_text()
    for name in ("toy", "me/toy@a/b", "../toy", "me/toy@'self'"):
        with pytest.raises(ArgumentsError, match="--page_model: expected a repository of the Hub, owner/name or"):
            write_page(exported.folder, tmp_path / "other", runtime=runtime, model=name)


def test_runtime_downloaded_for_ci_can_be_used_for_a_page(tmp_path, monkeypatch):
    made = {name: package.encode() for package, names in module.RUNTIME.items() for name in names}
    monkeypatch.setattr(module, "read_runtime", lambda: made)
    monkeypatch.setattr("sys.argv", ["page_runtime.py", str(tmp_path)])
    runpy.run_module("support.page_runtime", run_name="__main__")
    monkeypatch.undo()
    for package, names in module.RUNTIME.items():
        assert module._read_packages(tmp_path, package, list(names)) == dict.fromkeys(names, package.encode())


def test_skipped_browser_tests_are_in_the_terminal_summary(request):
    written = []
    skipped = [SimpleNamespace(longrepr=("f.py", 1, f"Skipped: {in_a_browser.kwargs['reason']}"))] * 2
    skipped += [SimpleNamespace(longrepr=("f.py", 2, "Skipped: no zsh here"))]
    reporter = SimpleNamespace(stats={"skipped": skipped}, write_line=lambda line, **style: written.append(line))
    request.config.pluginmanager.get_plugin(str(Path(__file__).parents[2] / "conftest.py")).pytest_terminal_summary(reporter)
    assert written == [in_a_browser.kwargs["reason"]]


def test_invalid_pages_are_refused(exported, tmp_path, monkeypatch):
    runtime = tmp_path / "npm"
    for package, names in module.RUNTIME.items():
        place = runtime / "node_modules" / package.rpartition("@")[0] / "dist"
        place.mkdir(parents=True)
        for name in names:
            (place / name).write_text("alert(1)")
    with pytest.raises(
        ArgumentsError, match="transformers.web.min.js is not the version of @huggingface/transformers@4.3.1"
    ):
        write_page(exported.folder, tmp_path / "page", runtime=runtime)
    with pytest.raises(ArgumentsError, match="lacks .*transformers.web.min.js of .*npm install"):
        write_page(exported.folder, tmp_path / "page", runtime=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentsError, match="with npm, which is not installed"):
        write_page(exported.folder, tmp_path / "page")
    assert not (tmp_path / "page").exists()
    with pytest.raises(ArgumentsError, match="contains no page"):
        write_page(exported.folder, runtime)
    for kind, body in (("tagging", "bert"), ("classification", "cocolm")):
        with pytest.raises(ArgumentsError, match=f"received a {body} for {kind}"):
            module.check_page({"kind": kind, "model_type": body, "pairs": False}, ["int8"], tmp_path / "page")
    with pytest.raises(ArgumentsError, match="contains no export: expected export.json"):
        write_page(tmp_path, tmp_path.with_name("page"))
    for place in (exported.folder, exported.folder / "page", exported.folder.parent):
        with pytest.raises(ArgumentsError, match="overlap: neither may be inside the other"):
            write_page(exported.folder, place)
    pairs = {**exported.record, "pairs": True}
    with pytest.raises(ArgumentsError, match="--page_texts are single texts"):
        module.check_page(pairs, ["int8"], tmp_path / "page", ["a text"])
    with pytest.raises(ArgumentsError, match="--page_texts: one of the texts is blank"):
        module.check_page(exported.record, ["int8"], tmp_path / "page", ["a text", " "])
    module.check_page(pairs, ["int8"], tmp_path / "page")
    monkeypatch.setattr(module, "read_runtime", lambda folder: {"ort.mjs": b""})
    for _ in range(2):
        page = write_page(exported.folder, tmp_path / "page")
    (page / ".git").mkdir()
    with pytest.raises(ArgumentsError, match=r"not part of the page and would be deleted with it \(.git\). Move them"):
        write_page(exported.folder, page)
    assert (page / ".git").is_dir()


def test_npm_archive_without_an_expected_file_is_refused(tmp_path, monkeypatch):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\nmkdir -p package/dist\ntar -czf package.tgz package\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    expected = r"archive of @huggingface/transformers@4.3.1 .* lacks dist/transformers.web.min.js\..*npm install"
    with pytest.raises(ArgumentsError, match=expected):
        module.read_runtime()


def test_damaged_export_is_refused(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "read_runtime", lambda folder: {})
    folder = shutil.copytree(exported.folder, tmp_path / "copy")
    graph = folder / "onnx" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"?")
    with pytest.raises(SealError, match="model.onnx has changed since it was saved"):
        write_page(folder, tmp_path / "page")
    (folder / "seal.json").unlink()
    files = {"onnx/model.onnx": {"dtype": "int4"}}
    for content, match in (
        ("{", "is not JSON"),
        ("{}", "format must be"),
        ({**exported.record, "files": files}, "dtype must be"),
    ):
        (folder / "export.json").write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ArgumentsError, match=match):
            write_page(folder, tmp_path / "page")
    assert not (tmp_path / "page").exists()
