r"""Convert a released COCO-LM checkpoint (the folder of microsoft/cocolm-base or -large) to a model of this package.

    python recipes/publish.py --legacy_checkpoint path/to/cocolm-base --output_dir runs/cocolm-base

The folder written has safetensors, the tokenizer and the code of both, and loads with the Auto classes of transformers
(trust_remote_code=True, or after `import hf_tlm.models.coco_lm`). Nothing is uploaded. Needs the extra [sentencepiece].
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_tlm import models
from hf_tlm.parser import parse, run


@dataclass
class PublishArguments:
    """What is converted, and where to."""

    legacy_checkpoint: str = field(
        metadata={"help": "Folder with pytorch_model.bin, config.json, sp.model and dict.txt, as released."}
    )
    output_dir: str = field(metadata={"help": "Folder to write; what was there before is replaced."})


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    (args,) = parse(PublishArguments, recipe="publish", description=__doc__)

    # 2. Read, convert, write.
    released = models.convert_released(args.legacy_checkpoint, args.output_dir)

    # 3. The summary.
    print(f"{type(released.model).__name__}, {released.model.num_parameters():,} parameters: {args.output_dir}")
    if released.left_out:
        print(f"Left out, as this package's model has no place for them: {', '.join(released.left_out)}")


if __name__ == "__main__":
    run(main)
