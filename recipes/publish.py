r"""Publish a finished model, a subset or a page on the Hub, or convert a checkpoint that a paper released and publish it.

    hf-tlm publish --model runs/scierc-tlm --repo_id me/tlm-scierc --dataset me/scierc-bm25 --license apache-2.0
    hf-tlm publish --subset runs/scierc-bm25 --repo_id me/scierc-bm25 --private false --tag v1 --verify
    hf-tlm publish --space pages/scierc --repo_id me/scierc-page --private false
    hf-tlm publish --legacy_checkpoint yxchar/tlm-sciie-small-scale --output_dir runs/tlm-sciie
    hf-tlm publish --legacy_checkpoint path/to/cocolm-base --output_dir runs/cocolm-base

A push is one commit with everything that is new, or no commit. A new repository is private unless --private false is given.
--dry_run only shows what would be pushed: files, sizes, the card, and whether the repository exists and is private; it works
without a network or a token too. --verify loads the published files in a process without hf_tlm and with an empty cache, and
compares them with the folder. Log in with `hf auth login`, or set HF_TOKEN.

A checkpoint of TLM is converted to stock ELECTRA: a classifier, and the masked language model of its body in the subfolder
mlm. A checkpoint of COCO-LM is written with the code of its model and tokenizer, and loads with the Auto classes of
transformers (trust_remote_code=True, or after `import hf_tlm.models.coco_lm`); it needs the extra [sentencepiece]. Weights
are safetensors. Without --repo_id nothing is uploaded.
"""

from __future__ import annotations

from pathlib import Path

from hf_tlm import hub, models, retrieval, runs, tasks
from hf_tlm.config import parse, run
from hf_tlm.hub import PublishArguments
from hf_tlm.utils.process import is_first_process


def main() -> None:
    # 1. Arguments: YAML files, then the command line.
    (args,) = parse(PublishArguments, recipe="publish", description=__doc__)
    if not is_first_process():
        return  # The work is for one process; others that `accelerate launch` started have nothing to do.

    # 2. Convert a released checkpoint.
    if args.legacy_checkpoint is not None:
        names = {"task": args.task, "label_names": args.label_names, "tokenizer_name": args.tokenizer_name}
        released = models.convert_legacy(args.legacy_checkpoint, args.output_dir, **names)
        print(f"{type(released.model).__name__}, {released.model.num_parameters():,} parameters: {args.output_dir}")
        if released.left_out:
            print(f"Weights left out, because this package's model does not have them: {', '.join(released.left_out)}")
        if args.evaluate_on is not None:
            # Texts are truncated as in the checkpoint's training, whatever the data are called here.
            length = args.evaluate_length or models.legacy_length(args.legacy_checkpoint, args.task)
            task = tasks.load_task(args.evaluate_on)
            for split, scores in runs.evaluate_checkpoint(args.output_dir, task, max_length=length).items():
                print(f"{split:<12}" + ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items()))
        if args.repo_id is None:
            return

    # 3. Publish, in one commit or none.
    options = {"private": args.private, "revision": args.revision, "tag": args.tag, "token": args.hub_token}
    options |= {"license": args.license, "language": args.language, "dry_run": args.dry_run}
    if args.space is not None:
        del options["language"]
        push = hub.publish_space(args.space, args.repo_id, **options)
    elif args.subset is None:
        card = {"dataset": args.dataset, "widget_texts": args.widget_texts}
        push = hub.publish_model(args.model or args.output_dir, args.repo_id, **card, **options)
    elif args.config_name is None:
        push = hub.publish_subset(args.subset, args.repo_id, **options)
    else:
        subset = retrieval.Subset.load(args.subset)
        report = Path(args.subset) / "report.md"
        text = report.read_text(encoding="utf-8", errors="replace") if report.is_file() else None  # With its examples.
        push = subset.push_to_hub(args.repo_id, config=args.config_name, report=text, **options)
    print(push.to_text())

    # 4. Load the published files in another process, and compare.
    if args.verify:
        local = Path(args.subset or args.model or args.output_dir)
        place = {"revision": push.commit or args.revision, "type": push.repo.type, "token": args.hub_token}
        # Code in the repository was published just now, from this folder.
        trust = any(local.glob("*.py"))
        checked = hub.verify(args.repo_id, config=args.config_name, local=local, trust_remote_code=trust, **place)
        print(checked.to_text())


if __name__ == "__main__":
    run(main)
