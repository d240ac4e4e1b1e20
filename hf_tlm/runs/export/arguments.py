"""What is exported, as what, and how it is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from hf_tlm.errors import ArgumentsError
from hf_tlm.runs.prediction.arguments import check_data
from hf_tlm.utils.options import NoEffect, check_effects, check_ranges, option

_OF_PAGE = NoEffect("page", (None,), "without --page. Leave it out.")


def without_texts(dtypes: Sequence[str], why: str = "") -> ArgumentsError:
    """What is said of files that are checked on texts, where there are none; why: a sentence, with a space after it."""
    return ArgumentsError(
        f"{' and '.join(dtypes)}: checked on texts. {why}Give --task, whose validation texts are scored, or --data, a file "
        "of texts; or --dtypes fp32."
    )


@dataclass
class ExportArguments:
    """What is exported, and as what."""

    model_name_or_path: list[str] = option(
        help=(
            "The folder of a finished run (train, finetune, few-shot, pretrain; adapters too), its masked LM in "
            "mlm, or a stock checkpoint with a head; or one of these on the Hub, with @revision if wanted. Several, such "
            "as runs/a/seed-*/model, become one graph: their probabilities are averaged."
        ),
        nargs="+",
    )
    output_dir: str | None = option(
        None,
        "Folder to write; an earlier export there is replaced. Default: beside the model (or the run "
        "that it is in), NAME-onnx.",
    )
    dtypes: list[str] = option(
        help=(
            "fp32: onnx/model.onnx. int8: weights in 8 bits, onnx/model_quantized.onnx. fp16: for GPUs and WebGPU, "
            "onnx/model_fp16.onnx."
        ),
        factory=lambda: ["fp32", "int8"],
        nargs="+",
        choices=["fp32", "int8", "fp16"],
    )
    data: str | None = option(
        None,
        "Instead of --task: file (or Hub dataset) of texts without labels, in the columns of the model's task or in "
        "--text_column. How many predictions stay as they are is measured then, of the first 10,000 rows.",
    )
    max_drop: float = option(
        0.5,
        "Points of the task's metric that int8 and fp16 may lose, or one answer where that is more; one that loses more is "
        "refused.",
    )
    per_channel: bool = option(True, "int8: a scale for every output of a matrix; false: one for the whole matrix.")
    keep_float: list[str] = option(
        help="int8: what keeps its float32: embeddings, the token vectors; head, the last matrix.",
        factory=list,
        nargs="+",
        choices=["embeddings", "head"],
    )
    page: str | None = option(
        None,
        "Folder for a web page that classifies in the browser, from its own files alone; an earlier page there is replaced.",
    )
    page_texts: Annotated[list[str], _OF_PAGE] = option(
        help="Examples on the page, which whoever opens it reads.", factory=list, nargs="+"
    )
    page_runtime: Annotated[str | None, _OF_PAGE] = option(
        None,
        "Folder in which `npm install @huggingface/transformers@4.3.1` was run. Default: npm fetches what the page needs.",
    )
    page_model: Annotated[str | None, _OF_PAGE] = option(
        None,
        "Public repository of the Hub (owner/name, with @revision if wanted) that the page loads the model from, as "
        "`hf-tlm publish` puts the export there. Default: from the page's own folder.",
    )
    opset: int = option(23, "Version of ONNX's operators.")
    max_length: int | None = option(
        None, "Tokens after which loaders cut a text. Default: as in training; of stock checkpoints the longest."
    )
    per_device_eval_batch_size: int = option(64, "Texts per batch of the check.")
    trust_remote_code: bool = option(False, "Run code that comes with the checkpoint.")

    def __post_init__(self):
        check_ranges(self, ArgumentsError)
        check_effects(self, ArgumentsError)
        check_data("data", self.data)

    @property
    def without_texts(self) -> list[str]:
        """The files that are checked on texts, where no file of texts was given."""
        return [dtype for dtype in self.dtypes if dtype != "fp32"] if self.data is None else []

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `hf_tlm.runs.export_onnx`."""
        others = ("model_name_or_path", "output_dir", "per_device_eval_batch_size")
        own = {name: value for name, value in vars(self).items() if name not in others}
        return own | {"batch_size": self.per_device_eval_batch_size}
