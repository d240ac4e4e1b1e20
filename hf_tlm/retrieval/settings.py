"""Settings of a retrieval: names of engines, variants and selections; settings of BM25, Elasticsearch and shards.

No heavy package is imported here, because the recipes' `--help` imports this module.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from hf_tlm.retrieval.texts import Analyzer, RetrievalError
from hf_tlm.utils.options import check_numbers, to_python

# BM25 engine -> the variants it offers.
VARIANTS = {
    "bm25": ("lucene", "robertson", "atire", "bm25l", "bm25+", "okapi"),
    "bm25s": ("lucene", "robertson", "atire", "bm25l", "bm25+"),
    "rank_bm25": ("lucene", "okapi", "bm25l", "bm25+"),
}
RETRIEVERS = (*VARIANTS, "sharded", "elasticsearch", "random")
# Method that selects passages of a subset -> its description, used in the phrase "n of them by ...".
SELECTIONS = {
    "iss": "influence on the {split} examples, ISS",
    "confidence": "how certain a teacher is of them",
    "disagreement": "how much teachers differ on them",
    "dsir": "n-gram importance resampling, DSIR",
    "bm25-rank": "their place in the subset",
    "random": "chance",
}
DEFAULT_DELTA = {"bm25l": 0.5, "bm25+": 1.0}


@dataclass(frozen=True)
class Bm25Settings:
    """Settings of BM25 scoring and text analysis.

    Args:
        variant: BM25 variant; see VARIANTS for the ones that each engine offers. "lucene" is Lucene's, which
            Elasticsearch uses too.
        k1: saturation of the term frequency, above 0.
        b: strength of the length normalisation, 0 to 1.
        delta: lower bound of bm25l and bm25+ for a term that occurs; None: 0.5 for bm25l, 1.0 for bm25+.
        stopwords, stemmer, script: see `Analyzer`; the same for queries and passages. `retrieve` detects the script.

    Raises:
        RetrievalError: a value is out of range, the variant is unknown, or delta is given for a variant without one.
    """

    variant: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    delta: float | None = None
    stopwords: str | None = "en"
    stemmer: str | None = None
    script: str | None = None

    def __post_init__(self):
        if not any(self.variant in variants for variants in VARIANTS.values()):
            raise RetrievalError(f"There is no BM25 variant {self.variant!r}. {_list_variants()}")
        check_numbers(RetrievalError, k1=self.k1, b=self.b, delta=self.delta)
        for name in ("k1", "b", "delta"):
            object.__setattr__(self, name, to_python(getattr(self, name)))
        if self.delta is not None and self.variant not in DEFAULT_DELTA:
            raise RetrievalError(
                f"delta is only for the variants {', '.join(DEFAULT_DELTA)}; received delta {self.delta!r} with "
                f"{self.variant!r}. Remove delta."
            )
        _ = self.analyzer

    @property
    def used_delta(self) -> float | None:
        """Return `delta` or, if it is None, the variant's default; None for a variant without a delta."""
        return DEFAULT_DELTA.get(self.variant) if self.delta is None else self.delta

    @property
    def analyzer(self) -> Analyzer:
        """Return the analyzer of queries and passages."""
        return Analyzer(self.stopwords, self.stemmer, self.script)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as stored with work in progress.

        A script of None is left out, so that settings stored before the field existed stay equal.
        """
        return {name: value for name, value in asdict(self).items() if name != "script" or value is not None}


def check_engine(engine: str, settings: Bm25Settings) -> None:
    """Check that the engine exists and offers the variant, or raise a RetrievalError."""
    if engine not in VARIANTS:
        raise RetrievalError(f"engine: expected one of {', '.join(VARIANTS)}; received {engine!r}.")
    if settings.variant not in VARIANTS[engine]:
        raise RetrievalError(f"{engine} has no BM25 variant {settings.variant!r}. {_list_variants()}")


@dataclass(frozen=True)
class ElasticSettings:
    """Settings of an Elasticsearch cluster: its address, the index with the passages, and how to send requests.

    Args:
        url: scheme, host and port, "https://host:9200"; never with a user name or password.
        index: name of an index or alias.
        text_field: a field of type text; the queries are matched against it.
        id_field: a keyword field with the passages' ids, unique over the index. None: `_id`.
        source_field: the field with the source of a passage; passages of an index without it get the index's name.
        batch_size: queries per `_msearch` request. Larger batches save round trips but cost memory on both sides
            (batch_size x K hits).
        timeout: seconds to wait for the response to one request.
        max_retries: retries of a request that failed for a temporary reason (408, 429, 502, 503, 504, timeouts, lost
            connections), after 1, 2, 4, ... seconds.
        api_key_env: environment variable with an encoded API key; unset: no authentication.
        ca_certs: file with the certificate authority of a cluster whose certificate is self-signed; None: certifi's.

    Raises:
        RetrievalError: a value is invalid.
    """

    url: str = "http://localhost:9200"
    index: str = ""
    text_field: str = "text"
    id_field: str | None = None
    source_field: str = "source"
    batch_size: int = 64
    timeout: float = 60.0
    max_retries: int = 5
    api_key_env: str = "ELASTICSEARCH_API_KEY"
    ca_certs: str | None = None

    def __post_init__(self):
        if "@" in self.url:
            raise RetrievalError(
                f"Do not put a user name or password in the URL of Elasticsearch, which is stored. Set the environment "
                f"variable {self.api_key_env} to an API key instead."
            )
        try:
            parts = urlsplit(self.url)
            complete = parts.scheme in ("http", "https") and parts.hostname and parts.port
        except ValueError:
            complete = False
        if not complete:
            raise RetrievalError(f"url must have scheme, host and port, as in http://localhost:9200; received {self.url!r}.")
        for name, least in {"batch_size": 1, "max_retries": 0}.items():
            if getattr(self, name) < least:
                raise RetrievalError(f"{name} must be at least {least}; received {getattr(self, name)}.")
        if not self.timeout > 0:
            raise RetrievalError(f"timeout must be above 0 seconds; received {self.timeout}.")

    @property
    def api_key(self) -> str | None:
        """Return the API key of the environment variable, or None if it is unset or blank."""
        return os.environ.get(self.api_key_env, "").strip() or None


def check_elastic(bm25: Bm25Settings, max_query_terms: int | None = None) -> None:
    """Raise a RetrievalError for settings that a cluster does not support.

    These are a variant other than lucene, a stemmer, and max_query_terms.
    """
    if bm25.variant != "lucene":
        raise RetrievalError(
            f"Elasticsearch scores with Lucene's BM25 only; received the variant {bm25.variant!r}. Use the variant lucene "
            "or another retriever."
        )
    if bm25.stemmer is not None:
        raise RetrievalError(
            f"Elasticsearch analyses texts with the index's analyzer; received the stemmer {bm25.stemmer!r}. Remove the "
            "stemmer. To stem, create an index of your own with a stemming analyzer."
        )
    if max_query_terms is not None:
        raise RetrievalError(
            f"max_query_terms ({max_query_terms}) needs the corpus's document frequencies, which stay in the cluster. "
            "Remove max_query_terms, or shorten the queries with query_mode='rake'."
        )


@dataclass(frozen=True)
class Sharding:
    """Settings of how the "sharded" engine divides its work; see `retrieve_sharded`.

    Args:
        num_shards: number of shards; one process indexes and searches each.
        executor: "local", "ray", "slurm" or "jobs".
        workers: shards processed at a time; None: all cores for local processes, no limit for other executors.
        work_dir: directory from which a killed run continues; None: one in the cache, named by corpus, task and settings.
        options: options of datatrove's executor of that name: `cpus_per_task`, `mem_per_cpu_gb`, ...; slurm needs
            `partition` and `time`, jobs needs `dependencies`; ray accepts the cluster's `address`.
    """

    num_shards: int = 2
    executor: str = "local"
    workers: int | None = None
    work_dir: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _list_variants() -> str:
    """Return the sentence of error messages that lists the variants of each engine."""
    return "Variants: " + "; ".join(f"{name}: {', '.join(variants)}" for name, variants in VARIANTS.items()) + "."
