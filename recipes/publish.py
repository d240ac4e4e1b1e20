r"""Convert a checkpoint that a paper released, of TLM or of COCO-LM, to a model that loads without the paper's code.

    python recipes/publish.py --legacy_checkpoint yxchar/tlm-sciie-small-scale --output_dir runs/tlm-sciie
    python recipes/publish.py --legacy_checkpoint path/to/cocolm-base --output_dir runs/cocolm-base

A checkpoint of TLM becomes stock ELECTRA: a classifier, and the masked language model of its body in the subfolder mlm.
One of COCO-LM is written with the code of its model and tokenizer, and loads with the Auto classes of transformers
(trust_remote_code=True, or after `import hf_tlm.models.coco_lm`); it needs the extra [sentencepiece]. Weights are
safetensors. Nothing is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_tlm import models
from hf_tlm.parser import parse, run


@dataclass
class PublishArguments:
    """What is converted, and where to."""

    legacy_checkpoint: str = field(
        metadata={
            "help": "Hub id, with @revision if wanted, or folder of a released checkpoint: pytorch_model.bin, config.json, "
            "and a tokenizer (COCO-LM: sp.model and dict.txt)."
        }
    )
    output_dir: str = field(metadata={"help": "Folder to write; what was there before is replaced."})
    task: str | None = field(
        default=None,
        metadata={"help": "TLM: registered task whose classes it tells apart. Default: the one in the checkpoint's name."},
    )
    label_names: list[str] | None = field(
        default=None, metadata={"help": "TLM: names of the classes by their indices, instead of --task.", "nargs": "+"}
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "TLM: tokenizer by Hub id or folder, if the checkpoint has none."}
    )


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    (args,) = parse(PublishArguments, recipe="publish", description=__doc__)

    # 2. Read, convert, write.
    released = models.convert_legacy(
        args.legacy_checkpoint,
        args.output_dir,
        task=args.task,
        label_names=args.label_names,
        tokenizer_name=args.tokenizer_name,
    )

    # 3. The summary.
    print(f"{type(released.model).__name__}, {released.model.num_parameters():,} parameters: {args.output_dir}")
    if released.left_out:
        print(f"Left out, as this package's model has no place for them: {', '.join(released.left_out)}")


if __name__ == "__main__":
    run(main)
