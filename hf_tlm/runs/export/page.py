"""Write a static web page that classifies texts in the browser with an exported model, which may also be on the Hub."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from hf_tlm.errors import ArgumentsError
from hf_tlm.hub.cards import BODIES
from hf_tlm.hub.publish import read_export
from hf_tlm.hub.repo_id import parse_repo
from hf_tlm.utils.files import atomic_directory, check_writable
from hf_tlm.utils.run_files import EXPORT_FILE, ONNX_FILES
from hf_tlm.utils.seals import check_seal
from hf_tlm.utils.shown import few

PAGE_FILE = "page.json"
TRANSFORMERS_JS = "@huggingface/transformers@4.3.1"
_INSTALL = (
    f"With access to the network, run `npm install --ignore-scripts {TRANSFORMERS_JS}` in a folder, and pass this folder "
    "as --page_runtime."
)
# The version that transformers.js depends on.
ONNXRUNTIME_WEB = "onnxruntime-web@1.31.0-dev.20260914-8d85527a0"
# Package -> file -> its SHA-256. This build of onnxruntime has no WebGPU: it is half as large, and small models gain nothing
# from a GPU.
RUNTIME = {
    TRANSFORMERS_JS: {"transformers.web.min.js": "cc66a4de933cc21f0158dcbf72607721bfed0044d3791b2e9874f653659f979b"},
    ONNXRUNTIME_WEB: {
        "ort.wasm.bundle.min.mjs": "17b52c1ac62b421dc508b4c28b9a9675251c6e25dd512ef54b83a5e2c4242869",
        "ort-wasm-simd-threaded.wasm": "06ba057753da3847e4c24f02d91ab133455b0817c69a44993a9a53a2146df9e3",
    },
}
_IMPORTS = {
    "@huggingface/transformers": "./vendor/transformers.web.min.js",
    "onnxruntime-web/webgpu": "./vendor/ort.wasm.bundle.min.mjs",
    "onnxruntime-common": "./vendor/ort.wasm.bundle.min.mjs",
}
# Name of a dtype -> its name in transformers.js.
_DTYPES = {"int8": "q8", "fp32": "fp32"}
_HUB = "https://huggingface.co"
_STATIC_FILES = ("page.js", "model.js", "page.css")
_GENERATED_FILES = (PAGE_FILE, "vendor", "model")


def check_page(
    description: Mapping[str, Any],
    dtypes: Sequence[str],
    page: str | os.PathLike,
    texts: Sequence[str] = (),
    others: Iterable[str | os.PathLike] = (),
    model: str | None = None,
) -> None:
    """Check, before the export, that a page can be written for it.

    Args:
        description: `kind`, `model_type` and `pairs`, as in the export's record.
        dtypes: dtypes of the export.
        page: folder of the page.
        texts: examples.
        others: the folders of the model and the export; the page must be neither inside nor around them.
        model: see `write_page`.

    Raises:
        ArgumentsError: the model is no classifier of a type that transformers.js supports, or has neither int8 nor float32;
            examples are given for pairs of texts, or blank; the folder contains other files than those of a page; it is
            inside or around one of `others`; `model` is no repository.
    """
    kind, model_type = description["kind"], description["model_type"]
    if kind != "classification" or model_type not in BODIES:
        raise ArgumentsError(
            f"--page supports classifiers whose body transformers.js knows ({', '.join(BODIES)}); received a {model_type} "
            f"for {kind.replace('_', ' ')}. Remove --page."
        )
    if model is not None:
        repo = parse_repo(model, "model")
        # Transformers.js does not accept other characters in a revision, though a branch name may have them.
        if repo is None or not re.fullmatch(r"[\w.-]+", repo.revision or "main"):
            expected = "a repository of the Hub, owner/name or owner/name@revision"
            raise ArgumentsError(f"--page_model: expected {expected}; received {model!r:.200}.")
    if not set(_DTYPES).intersection(dtypes):
        raise ArgumentsError("--page needs int8 or fp32; neither is among the dtypes. Add one of them.")
    if texts and description["pairs"]:
        raise ArgumentsError("--page_texts are single texts, but the model expects pairs. Remove --page_texts.")
    if any(not text.strip() for text in texts):
        raise ArgumentsError("--page_texts: one of the texts is blank. Remove the blank text.")
    page = Path(page)
    for folder in others:
        page_path, other = page.resolve(), Path(folder).resolve()
        if page_path.is_relative_to(other) or other.is_relative_to(page_path):
            raise ArgumentsError(
                f"--page {page} and {folder} overlap: neither may be inside the other. Choose another --page."
            )
    if page.is_file() or (page.is_dir() and any(page.iterdir()) and not (page / PAGE_FILE).is_file()):
        raise ArgumentsError(f"--page {page} is not empty and contains no page. Choose another folder, or empty this one.")
    if page.is_dir() and (
        foreign_files := sorted({path.name for path in page.iterdir()} - {*_STATIC_FILES, "index.html", *_GENERATED_FILES})
    ):
        raise ArgumentsError(
            f"--page {page} contains files that are not part of the page and would be deleted with it "
            f"({few(foreign_files)}). Move them, or choose another folder."
        )
    check_writable(page, f"--page {page}", replaced=True)


def write_page(
    export: str | os.PathLike,
    page: str | os.PathLike,
    *,
    title: str | None = None,
    texts: Sequence[str] = (),
    runtime: str | os.PathLike | None = None,
    model: str | None = None,
) -> Path:
    """Write a web page with an exported classifier, as a folder for any web server; texts never leave the browser.

    The folder contains `index.html`, its scripts, transformers.js and onnxruntime-web in `vendor`, and the model in `model`:
    in int8 if the export has it, otherwise in float32. The page's content security policy allows access only to its own
    files.

        python -m http.server --directory page

    Args:
        export: folder that `export_onnx` wrote.
        page: folder to write; an earlier page in it is replaced.
        title: title of the page. Default: name of the exported model.
        texts: examples to try.
        runtime: folder in which `npm install @huggingface/transformers@4.3.1` was run. Default: npm downloads the packages.
        model: public repository on the Hub, owner/name or owner/name@revision, to which this export was or will be
            published. The page then loads the model from there, and its policy also allows access to the Hub. Default: the
            page's own folder.

    Raises:
        ArgumentsError: the folder contains no export, or its record is damaged; see also `check_page`, `read_runtime`.
        SealError: a file of the export has changed since it was written.
    """
    export = Path(export)
    if not (export / EXPORT_FILE).is_file():
        raise ArgumentsError(f"{export} contains no export: expected {EXPORT_FILE}, which `hf-tlm export` writes.")
    check_seal(export)
    record = read_export(export, ArgumentsError, all_files=False)
    check_page(record, _dtypes_in(export), page, texts, [export], model)
    return fill_page(export, page, read_runtime(runtime), title=title, texts=texts, model=model)


def fill_page(
    export: Path,
    page: str | os.PathLike,
    runtime: Mapping[str, bytes],
    *,
    title: str | None = None,
    texts: Sequence[str] = (),
    model: str | None = None,
) -> Path:
    """Write a page without checking the arguments, see `write_page`.

    Args:
        runtime: the result of `read_runtime`.
    """
    record: dict[str, Any] = json.loads((export / EXPORT_FILE).read_text(encoding="utf-8"))
    dtype = next(name for name in _DTYPES if name in _dtypes_in(export))
    with atomic_directory(page) as folder:
        (folder / "vendor").mkdir()
        for name, content in runtime.items():
            (folder / "vendor" / name).write_bytes(content)
        model_location, hosts = ["./", "model"], "'self'"
        if model is not None:
            repo = parse_repo(model, "model")
            assert repo is not None
            model_location = [f"{constants.ENDPOINT}/{repo.id}/resolve/", repo.revision or "main"]
            # The Hub serves large files from other hosts.
            hosts += f" {constants.ENDPOINT}" + (" https://*.hf.co" if constants.ENDPOINT == _HUB else "")
        else:
            for name in ("config.json", "tokenizer.json", "tokenizer_config.json", EXPORT_FILE, ONNX_FILES[dtype]):
                (folder / "model" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(export / name, folder / "model" / name)
        page_settings = {"title": title or record["model"], "dtype": _DTYPES[dtype], "pairs": record["pairs"]}
        page_settings |= {"texts": list(texts), "model": model_location, "averaged": "models" in record}
        (folder / PAGE_FILE).write_text(json.dumps(page_settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        imports = json.dumps({"imports": _IMPORTS})
        digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
        index = _read_template("index.html").replace("IMPORT_MAP_HASH", f"sha256-{digest}").replace("IMPORT_MAP", imports)
        index = index.replace("connect-src 'self'", f"connect-src {hosts}")
        if model is not None:
            index = index.replace("its own files.", "its own files and the Hub, from which the model is loaded.")
        (folder / "index.html").write_text(index, encoding="utf-8")
        for name in _STATIC_FILES:
            (folder / name).write_text(_read_template(name), encoding="utf-8")
    return Path(page)


def _dtypes_in(export: Path) -> list[str]:
    return [dtype for dtype, name in ONNX_FILES.items() if (export / name).is_file()]


def _read_template(name: str) -> str:
    return files("hf_tlm.runs.export").joinpath("templates", name).read_text(encoding="utf-8")


def read_runtime(folder: str | os.PathLike | None = None) -> dict[str, bytes]:
    """Return the files of transformers.js and onnxruntime-web by name, in the versions of `RUNTIME`.

    Args:
        folder: folder with `node_modules`. Default: `npm pack` downloads the packages, and runs none of their scripts.

    Raises:
        ArgumentsError: npm is not installed or cannot download the packages; a file is missing, or has another checksum.
    """
    contents: dict[str, bytes] = {}
    for package, names in RUNTIME.items():
        contents |= (
            _download_packages(package, list(names))
            if folder is None
            else _read_packages(Path(folder), package, list(names))
        )
        for name, digest in names.items():
            if hashlib.sha256(contents[name]).hexdigest() != digest:
                raise ArgumentsError(f"{name} is not the version of {package} that the page needs. {_INSTALL}")
    return contents


def _read_packages(folder: Path, package: str, names: Sequence[str]) -> dict[str, bytes]:
    dist_folder = folder / "node_modules" / package.rpartition("@")[0] / "dist"
    try:
        return {name: (dist_folder / name).read_bytes() for name in names}
    except OSError as error:
        raise ArgumentsError(f"{folder} lacks {error.filename} of {package}. {_INSTALL}") from error


def _download_packages(package: str, names: Sequence[str]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as work_folder:
        command = ["npm", "pack", "--silent", "--ignore-scripts", "--prefer-offline", package]
        try:
            process = subprocess.run(command, cwd=work_folder, capture_output=True, text=True)
        except OSError as error:
            raise ArgumentsError(f"--page downloads {package} with npm, which is not installed. {_INSTALL}") from error
        archives = [*Path(work_folder).glob("*.tgz")]
        if process.returncode or len(archives) != 1:
            output = " ".join((process.stderr or process.stdout).split())
            raise ArgumentsError(f"npm cannot download {package}: {output:.200}. {_INSTALL}")
        with tarfile.open(archives[0]) as archive:
            packed_files = {member.name for member in archive if member.isfile()}
            if missing := [name for name in names if f"package/dist/{name}" not in packed_files]:
                raise ArgumentsError(f"The archive of {package} that npm fetched lacks dist/{missing[0]}. {_INSTALL}")
            members = {name: archive.extractfile(f"package/dist/{name}") for name in names}
            return {name: member.read() for name, member in members.items() if member is not None}
