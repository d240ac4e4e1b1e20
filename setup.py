"""What of the package is computed: its version, its dependencies and its files; what is plain is in pyproject.toml.

constraints.txt has the exact versions that the tests passed with. `.ci/lowest` tests with the lowest ones named here.
"""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
version: dict[str, str] = {}
exec((HERE / "hf_tlm" / "version.py").read_text(encoding="utf-8"), version)

# Lower bounds are the lowest versions that resolve together and that the quick tests pass with (`.ci/lowest`); a reason that
# is known is said. Upper bounds stop before the next major version.
INSTALL = [
    "torch>=2.10,<3",
    "transformers>=5.23,<6",  # Trainer.get_batch_samples, loss_is_scaled_for_ga, dict-valued tied weights
    "accelerate>=1.15,<2",
    "datasets>=5.2,<6",
    "evaluate>=0.4.6,<1",
    "huggingface_hub>=2.4,<3",  # resolve_revision
    "httpx2>=2,<3",  # what its requests raise
    "peft>=0.21,<1",  # the Trainer recognises PEFT models by it
    "bm25s>=0.3.16,<0.4",
    "numba>=0.60,<1",  # the index's kernels, and bm25s's fast backend
    "rank_bm25>=0.2.2,<0.3",
    "rake-nltk>=1.0.6,<2",
    "scikit-learn>=1.5,<2",
    "scipy>=1.13,<2",
    "numpy>=2,<3",
    "pyyaml>=6,<7",
    "jinja2>=3,<4",  # model cards
    "tqdm>=4.66.3,<5",
    "psutil>=6",  # memory that is left; `accelerate` needs it too
    "zstandard>=0.22,<1",  # .zst corpora
    "pyarrow>=24",  # the tokeniser reads its buffers; `datasets` needs it too
    "xxhash>=3.4,<5",  # checksums of indexes; `datasets` needs it too
]
STEM = ["PyStemmer>=2.2.0.2,<4"]  # 2.2.0 cannot be built
DEDUP = ["datasketch>=1.6,<3"]
SHARDED = ["datatrove>=0.10.1,<0.11"]  # executors are subclassed, and its minor versions change them
RAY = [*SHARDED, "ray>=2.40,<3"]
ELASTIC = ["elasticsearch>=8.19,<10"]  # of the cluster's own major version, or the one before
ENERGY = ["codecarbon>=3.3.2,<3.4"]  # what it estimates is read from its internals
SENTENCEPIECE = ["sentencepiece>=0.2,<0.3"]
OPTIM = ["pytorch_optimizer>=4.1,<4.2"]  # its LAMB is subclassed and set through its internals
CRF = ["pytorch-crf>=0.7.2,<0.8"]
SEARCH = ["optuna>=4,<6"]
EXCEL = ["openpyxl>=3.1.5,<4"]  # pandas reads with no older one
ANALYSIS = ["matplotlib>=3.8,<4"]  # scikit-learn is needed anyway
ONNX = ["onnx>=1.20,<2", "onnxscript>=0.6,<1", "onnxruntime>=1.24,<2"]  # optimum-onnx needs transformers below 4.58
DOCS = ["sphinx>=9,<10", "furo>=2025.12", "myst-parser>=5,<6", "sphinx-copybutton>=0.5,<1"]
TEST = [
    *(*STEM, *DEDUP, *RAY, *ELASTIC, *ENERGY, *SENTENCEPIECE, *OPTIM, *CRF, *SEARCH, *EXCEL, *ANALYSIS, *ONNX),
    *("pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "pytest-rerunfailures>=15"),
    *("hypothesis>=6.100", "tensorboard>=2.17"),
]
EXTRAS = {
    "stem": STEM,
    "dedup": DEDUP,
    "sharded": SHARDED,
    "ray": RAY,
    "elastic": ELASTIC,
    "energy": ENERGY,
    "sentencepiece": SENTENCEPIECE,
    "optim": OPTIM,
    "crf": CRF,
    "search": SEARCH,
    "excel": EXCEL,
    "analysis": ANALYSIS,
    "onnx": ONNX,
    "docs": DOCS,
    "test": TEST,
    "dev": [*TEST, *DOCS, "ruff>=0.12", "mypy>=2.4,<3", "pre-commit>=4"],
}

setup(
    version=version["__version__"],
    # The recipes are the commands of `hf-tlm`, wherever it is installed.
    packages=[*find_packages(include=["hf_tlm", "hf_tlm.*"]), "hf_tlm.recipes"],
    package_dir={"hf_tlm.recipes": "recipes"},
    package_data={
        "hf_tlm.recipes": ["configs/*/*"],
        "hf_tlm": ["py.typed"],
        "hf_tlm.hub": ["templates/*.md"],
        "hf_tlm.experiments": ["templates/*.md"],
        "hf_tlm.analysis.report": ["templates/*"],
        "hf_tlm.runs.export": ["templates/*"],
    },
    install_requires=INSTALL,
    extras_require=EXTRAS,
)
