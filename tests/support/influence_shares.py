"""Score a small corpus with the influence scorer, in one process or in several that take a share each."""

import pytest
from datasets import Dataset

from hf_tlm.data import tokenize, train_wordpiece
from hf_tlm.influence import InfluenceScorer, score, score_files
from support.naive import tiny
from support.toys import make_task, sentences


def scored(folder, process_index=0, num_processes=1):
    texts = [row["text"] for row in sentences(50, seed=9)]
    texts[11] = ""
    tokenizer = train_wordpiece(texts, 120, max_length=32)
    rows = tokenize(Dataset.from_dict({"text": texts}), tokenizer, 32).add_column("id", [f"p{row}" for row in range(50)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_files, "SHARD_ROWS", 8)
        found = score(
            tokenize(make_task().validation, tokenizer, 32),
            rows,
            InfluenceScorer([tiny("bert")], tokenizer, parameters="attention.*.weight"),
            folder,
            task_batch_size=4,
            process_index=process_index,
            num_processes=num_processes,
        )
        return found[:, 0:99]
