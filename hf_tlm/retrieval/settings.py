"""What a retrieval may be set to: names of engines, variants and selections; BM25's settings, a cluster's, shards.

Nothing heavy is imported: recipes' `--help` reads it.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from hf_tlm.retrieval.texts import Analyzer, RetrievalError
from hf_tlm.utils.options import check_numbers, of_python

# BM25 engine -> the variants it offers.
VARIANTS = {
    "bm25": ("lucene", "robertson", "atire", "bm25l", "bm25+", "okapi"),
    "bm25s": ("lucene", "robertson", "atire", "bm25l", "bm25+"),
    "rank_bm25": ("lucene", "okapi", "bm25l", "bm25+"),
}
RETRIEVERS = (*VARIANTS, "sharded", "elasticsearch", "random")
# What passages of a subset can be chosen by -> in words, for "n of them by ...".
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
    """What a BM25 score depends on besides the texts.

    Args:
        variant: see VARIANTS for what each engine offers. "lucene" is Lucene's and so Elasticsearch's.
        k1: saturation of the term frequency, above 0.
        b: strength of the length normalisation, 0 to 1.
        delta: lower bound of bm25l and bm25+ for a term that occurs; None: 0.5 for bm25l, 1.0 for bm25+.
        stopwords, stemmer, script: see `Analyzer`; the same for queries and passages. `retrieve` finds the script.

    Raises:
        RetrievalError: a value out of range, an unknown variant, or a delta for a variant that has none.
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
            raise RetrievalError(f"There is no BM25 variant {self.variant!r}. {_offers()}")
        check_numbers(RetrievalError, k1=self.k1, b=self.b, delta=self.delta)
        for name in ("k1", "b", "delta"):
            object.__setattr__(self, name, of_python(getattr(self, name)))
        if self.delta is not None and self.variant not in DEFAULT_DELTA:
            raise RetrievalError(
                f"delta belongs to the variants {', '.join(DEFAULT_DELTA)}; {self.variant!r} has none, but got "
                f"{self.delta!r}. Leave it out."
            )
        _ = self.analyzer

    @property
    def used_delta(self) -> float | None:
        """`delta`, or the variant's default; None for a variant without one."""
        return DEFAULT_DELTA.get(self.variant) if self.delta is None else self.delta

    @property
    def analyzer(self) -> Analyzer:
        return Analyzer(self.stopwords, self.stemmer, self.script)

    def to_dict(self) -> dict[str, Any]:
        """The settings, as work in progress keeps them: those of before there were scripts are as they were."""
        return {name: value for name, value in asdict(self).items() if name != "script" or value is not None}


def check_engine(engine: str, settings: Bm25Settings) -> None:
    """Raise RetrievalError unless there is such an engine and it has the variant."""
    if engine not in VARIANTS:
        raise RetrievalError(f"There is no BM25 engine {engine!r}; expected one of {', '.join(VARIANTS)}.")
    if settings.variant not in VARIANTS[engine]:
        raise RetrievalError(f"{engine} has no BM25 variant {settings.variant!r}. {_offers()}")


@dataclass(frozen=True)
class ElasticSettings:
    """Where the passages are and how to ask for them.

    Args:
        url: scheme, host and port, "https://host:9200"; never with a user name or password.
        index: name of an index or alias.
        text_field: a field of type text; the queries are matched against it.
        id_field: a keyword field with the passages' ids, unique over the index. None: `_id`.
        source_field: where a passage comes from; passages of an index without it get the index's name.
        batch_size: queries per `_msearch` request. More save round trips and cost memory on both sides
            (batch_size x K hits).
        timeout: seconds to wait for an answer to one request.
        max_retries: repetitions of what failed for a passing reason (429, 502, 503, 504, timeouts, lost connections),
            after 1, 2, 4, ... seconds.
        api_key_env: environment variable with an encoded API key; unset: no authentication.
        ca_certs: file with the certificate authority of a cluster that signed its own; None: certifi's.

    Raises:
        RetrievalError: a value that cannot be used.
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
                f"Put no user name or password in the URL of Elasticsearch: it would be stored. Set the environment "
                f"variable {self.api_key_env} to an API key."
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
        return os.environ.get(self.api_key_env, "").strip() or None


def check_elastic(bm25: Bm25Settings, max_query_terms: int | None = None) -> None:
    """Raise a RetrievalError for what a cluster cannot do: a variant other than lucene, a stemmer, or max_query_terms."""
    if bm25.variant != "lucene":
        raise RetrievalError(
            f"Elasticsearch scores with Lucene's BM25 only; received the variant {bm25.variant!r}. Leave it at lucene, or "
            "use another retriever."
        )
    if bm25.stemmer is not None:
        raise RetrievalError(
            f"Elasticsearch analyses texts itself, by the index's analyzer: leave the stemmer ({bm25.stemmer!r}) out, and "
            "use a stemming analyzer in an index of your own if you want one."
        )
    if max_query_terms is not None:
        raise RetrievalError(
            f"max_query_terms ({max_query_terms}) needs the corpus's document frequencies, which stay in the cluster: leave "
            "it out, or shorten the queries with query_mode='rake'."
        )


@dataclass(frozen=True)
class Sharding:
    """How the "sharded" engine cuts its work; see `retrieve_sharded`.

    Args:
        num_shards: one is indexed and searched by one process.
        executor: "local", "ray", "slurm" or "jobs".
        workers: shards at a time; None: all cores for local processes, elsewhere no limit.
        work_dir: what a killed run continues from; None: a folder of the cache, named by corpus, task and settings.
        options: of datatrove's executor of that name: `cpus_per_task`, `mem_per_cpu_gb`, ...; slurm needs `partition` and
            `time`, jobs `dependencies`; ray takes the cluster's `address`.
    """

    num_shards: int = 2
    executor: str = "local"
    workers: int | None = None
    work_dir: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def _offers() -> str:
    return "Variants: " + "; ".join(f"{name}: {', '.join(variants)}" for name, variants in VARIANTS.items()) + "."
