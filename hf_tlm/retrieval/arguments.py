"""Command-line options of retrieval, and of the subset that other commands read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hf_tlm.retrieval.settings import RETRIEVERS, Bm25Settings, ElasticSettings, Sharding
from hf_tlm.retrieval.texts import QUERY_MODES, RetrievalError
from hf_tlm.utils.options import OnlyWith, check_effects, check_ranges, option

if TYPE_CHECKING:
    from hf_tlm.corpora import Corpus
    from hf_tlm.retrieval.subset import Subset
    from hf_tlm.tasks import Task

logger = logging.getLogger(__name__)

# Random retrieval accepts and ignores the search options: a preset file sets them for all of its subsets.
_BM25 = OnlyWith("retriever", ("bm25",), ignored=("random",))
_OWN_INDEX = OnlyWith("retriever", ("bm25", "sharded"), ignored=("random",))
_SHARDED = OnlyWith("retriever", ("sharded",), ignored=("random",))
_ELASTIC = OnlyWith("retriever", ("elasticsearch",), ignored=("random",))


@dataclass
class RetrievalArguments:
    """Settings of the retrieval of passages from a corpus."""

    retriever: str = option(
        "bm25",
        "Search engine: our own BM25 index (bm25), one of another package, sharded or elasticsearch; or random.",
        choices=list(RETRIEVERS),
    )
    top_k: int | None = option(
        None,
        "Passages retrieved per training text. Default, the paper's: 5000 under 5K training texts, 50 over 100K, else 500.",
    )
    query_mode: str = option(
        "text", "Query of a training text: the full text, or its RAKE key phrases.", choices=list(QUERY_MODES)
    )
    max_query_terms: int | None = option(
        None, "Maximum number of terms kept of a query, the rarest ones. Faster, but gives another subset."
    )
    bm25_variant: str = option("lucene", "BM25 variant: lucene, robertson, atire, bm25l, bm25+ or okapi.")
    k1: float = option(1.2, "BM25's saturation of the term frequency.")
    b: float = option(0.75, "BM25's length normalisation.")
    delta: float | None = option(
        None, "BM25's lower bound for a term that occurs, of bm25l (default 0.5) and bm25+ (default 1)."
    )
    keep_stopwords: bool = option(False, "Keep English stop words.")
    stemmer: str | None = option(None, "Snowball stemmer, such as english. Default: none.")
    decontaminate: bool = option(True, "Leave out passages that hold validation or test texts of the task.")
    deduplicate: float | None = option(
        None, "Leave out passages whose similarity to a better one is at least this (Jaccard of 5-grams, e.g. 0.8)."
    )
    num_passages: int | None = option(None, "Number of passages of a random subset.")
    like: str | None = option(None, "Subset that a random subset gets its number of passages from: folder or Hub id.")
    seed: int = option(0, "Seed of a random subset.")

    index_dir: str | None = option(None, "Folder of the index, built if it does not exist. Default: in the cache.")
    num_threads: Annotated[int | None, _BM25] = option(
        None, "Number of threads. Default: all cores. Indexing needs some 100 MB of memory per thread."
    )
    query_batch_size: Annotated[int | None, _OWN_INDEX] = option(
        None, "Queries that a thread searches at once; each needs 24 bytes x top_k of memory. Small batches are slower."
    )
    num_shards: Annotated[int, _SHARDED] = option(
        2, "sharded: number of shards; one process indexes and searches each of them."
    )
    executor: Annotated[str, _SHARDED] = option(
        "local", "sharded: executor that runs the shards.", choices=["local", "ray", "slurm", "jobs"]
    )
    workers: Annotated[int | None, _SHARDED] = option(None, "sharded: number of shards processed at a time.")
    work_dir: Annotated[str | None, _SHARDED] = option(
        None, "sharded: folder that all machines can access, from which a killed run continues."
    )
    executor_options: Annotated[str, _SHARDED] = option(
        "{}", 'sharded: options of datatrove\'s executor, e.g. \'{"partition": "cpu", "time": "2:00:00"}\'.'
    )
    elastic_url: Annotated[str, _ELASTIC] = option("http://localhost:9200", "elasticsearch: URL of the cluster.")
    elastic_index: Annotated[str | None, _ELASTIC] = option(None, "elasticsearch: name of the index.")
    elastic_text_field: Annotated[str, _ELASTIC] = option("text", "elasticsearch: field with the texts.")
    elastic_id_field: Annotated[str | None, _ELASTIC] = option(None, "elasticsearch: field with the ids. Default: _id.")
    elastic_source_field: Annotated[str, _ELASTIC] = option("source", "elasticsearch: field with the sources.")
    elastic_ca_certs: Annotated[str | None, _ELASTIC] = option(
        None, "elasticsearch: file with the certificate authority to trust."
    )

    def __post_init__(self):
        check_ranges(self, RetrievalError)

    def check(self, output_dir: str) -> None:
        """Check the options before the task and the corpus are read.

        Raises:
            RetrievalError: options conflict with each other; `output_dir` holds something other than a subset, or is the
                subset given as `like`, which it would replace.
        """
        from hf_tlm.retrieval.subset import check_replaceable

        self._check()
        folder = Path(output_dir)
        if self.like is not None and Path(self.like).is_dir() and Path(self.like).resolve() == folder.resolve():
            raise RetrievalError(
                f"The random subset would replace {self.like}, the subset of --like. Choose another output_dir."
            )
        check_replaceable(folder, index_dir=self.index_dir, work_dir=self.work_dir)

    def retrieve(self, task: Task, corpus: Corpus | None) -> Subset:
        """Retrieve the subset of the corpus for a task.

        Raises:
            RetrievalError: see `hf_tlm.retrieval.retrieve`; or an option is set whose retriever is not used.
        """
        from hf_tlm.retrieval.retrieve import retrieve
        from hf_tlm.retrieval.subset import Subset

        self._check()
        like_subset = Subset.open(self.like) if self.like else None
        if like_subset is not None and corpus is not None:
            fingerprint = like_subset.manifest["corpus"]["fingerprint"]
            if fingerprint not in (None, corpus.fingerprint):
                words, reason = like_subset.manifest["corpus"].get("passage_words", 0), "they are of another corpus"
                if words != (corpus.max_words or 0) and like_subset.manifest["retriever"] != "elasticsearch":
                    reason = f"they were cut with another length (pass --passage_words {words}), or are of another corpus"
                logger.warning(
                    "The passages that %s was chosen from are not those of this corpus: %s. "
                    "The random subset has only the number of passages in common with it.",
                    *(self.like, reason),
                )
        return retrieve(
            task,
            corpus,
            retriever=self.retriever,
            top_k=self.top_k,
            query_mode=self.query_mode,
            max_query_terms=self.max_query_terms,
            settings=Bm25Settings(
                variant=self.bm25_variant,
                k1=self.k1,
                b=self.b,
                delta=self.delta,
                stopwords=None if self.keep_stopwords else "en",
                stemmer=self.stemmer,
            ),
            decontaminate=self.decontaminate,
            deduplicate=self.deduplicate,
            num_passages=self.num_passages if like_subset is None else len(like_subset),
            seed=self.seed,
            index_dir=self.index_dir,
            num_threads=self.num_threads,
            query_batch_size=self.query_batch_size,
            sharding=self._sharding() if self.retriever == "sharded" else None,
            elastic=self._elastic() if self.retriever == "elasticsearch" else None,
        )

    def _check(self) -> None:
        """Raise a RetrievalError for options that conflict, or that have no effect with the chosen retriever."""
        if self.like is not None and self.retriever != "random":
            raise RetrievalError("--like gives the size of a random subset: add --retriever random.")
        if self.like is not None and self.num_passages is not None:
            raise RetrievalError("--like and --num_passages both set the size of a random subset. Pass only one of them.")
        check_effects(self, RetrievalError, prefix="--")

    def _sharding(self) -> Sharding:
        return Sharding(
            self.num_shards, self.executor, self.workers, self.work_dir, parse_executor_options(self.executor_options)
        )

    def _elastic(self) -> ElasticSettings:
        if not self.elastic_index:
            raise RetrievalError("--retriever elasticsearch needs --elastic_index, the name of the index.")
        return ElasticSettings(
            url=self.elastic_url,
            index=self.elastic_index,
            text_field=self.elastic_text_field,
            id_field=self.elastic_id_field,
            source_field=self.elastic_source_field,
            ca_certs=self.elastic_ca_certs,
        )


@dataclass
class SubsetArguments:
    """Settings of the subset of a corpus to read."""

    subset: str | None = option(
        None,
        "Folder of a subset (from hf-tlm retrieve or select-influence), or a dataset of the Hub: owner/name, "
        "owner/name:config, either with @revision. Training: without one, only task data (rho1 0). Pretraining: "
        "used instead of --corpus. Fine-tuning: passages for a teacher to label.",
    )

    def open(self) -> Subset | None:
        """Return the subset, or None if no subset was given.

        Raises:
            RetrievalError, HubError: see `Subset.open`.
        """
        if not self.subset:
            return None
        from hf_tlm.retrieval.subset import Subset

        return Subset.open(self.subset)


def parse_executor_options(text: str) -> dict[str, Any]:
    """Parse the value of --executor_options, or raise a RetrievalError if it is not a JSON object."""
    from hf_tlm.utils.safe_yaml import load_yaml

    options = load_yaml(text, "--executor_options", RetrievalError)  # JSON is YAML.
    if not isinstance(options, dict):
        raise RetrievalError(f"--executor_options must be a JSON object of options; received {text:.60}.")
    return options
