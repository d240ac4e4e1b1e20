"""Options of the analysis of embeddings."""

from dataclasses import dataclass, field

from hf_tlm.analysis.errors import AnalysisError
from hf_tlm.utils.ranges import check_ranges

POOLINGS = ("cls", "mean")
SPLITS = ("train", "validation", "test")


@dataclass
class Options:
    """Embeddings (--what embeddings)."""

    pooling: str = field(
        default="cls",
        metadata={"help": "A text's vector: of [CLS], as in the papers, or the mean over its tokens.", "choices": POOLINGS},
    )
    layer: int = field(default=-1, metadata={"help": "Layer of the vectors: -1 is the last, 0 the embedding layer."})
    embedding_split: str | None = field(
        default=None, metadata={"help": "Split of the task (default: test, or validation without one).", "choices": SPLITS}
    )
    similar_from: float | None = field(
        default=None,
        metadata={
            "help": "Score from which on a pair of texts is similar, of tasks with scores. Default: four fifths of the "
            "largest, 4 of STS-B's 5; COCO-LM takes 5."
        },
    )
    similar_label: str | None = field(
        default=None,
        metadata={"help": "Class whose pairs of texts are similar, as of MRPC. Default: texts of one class are similar."},
    )
    max_pairs: int = field(
        default=10_000, metadata={"help": "Pairs drawn: random ones, of --texts if given, and those of one class."}
    )
    perplexity: float = field(default=30.0, metadata={"help": "Of t-SNE; at most a third of the number of texts."})

    def __post_init__(self):
        check_ranges(self, AnalysisError)
