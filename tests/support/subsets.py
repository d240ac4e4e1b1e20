"""A saved subset that no retrieval has produced."""

from datasets import Dataset, Features, Value

from hf_tlm.retrieval import Subset
from hf_tlm.retrieval.subset_files import COLUMNS, FORMAT, FORMAT_VERSION


def save_subset(folder, passages=1):
    """Save a subset of made-up passages, as if drawn at random from a corpus."""
    features = Features({name: Value(kind) for name, kind in COLUMNS.items()})
    unasked = {"score": None, "n_queries": 0, "best_query": None}
    rows = [{"id": f"p{row}", "text": f"text {row}", "source": "toy", "rank": row + 1, **unasked} for row in range(passages)]
    fixed = {"format": FORMAT, "format_version": FORMAT_VERSION, "retriever": "random", "seed": 0, "versions": {}}
    about = {"corpus": {"name": "toy"}, "task": {"name": "toy"}, "counts": {"passages": passages, "union": passages}}
    Subset(Dataset.from_list(rows, features=features), {**fixed, **about}).save(folder)
