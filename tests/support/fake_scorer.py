"""A scorer whose scores come from hashes: of a passage's id and tokens, and of a task batch's labels and tokens."""

import numpy as np
import xxhash

from hf_tlm.influence import InfluenceError
from hf_tlm.utils.files import atomic_directory

DIM = 4


def vector(parts):
    return np.random.default_rng(xxhash.xxh3_64_intdigest(repr(parts).encode())).standard_normal(DIM)


class FakeScorer:
    """A fake scorer that counts calls in `fitted` and `loaded`, and lists ids in `scored`.

    It raises KeyboardInterrupt instead of scoring more than `fail_after` rows.
    """

    def __init__(self, tokenizer, *, layer=2, parameters=("attention.output.dense.weight",), seed=0, fail_after=None):
        self.tokenizer, self.seed = tokenizer, seed
        self.settings = {"layer": layer, "parameters": list(parameters), "mlm_probability": 0.1, "projection_dim": None}
        self.settings["seed"] = seed
        self.fingerprint = f"fake-{layer}-{seed}"
        self.fail_after = fail_after
        self.fitted, self.loaded, self.scored = 0, 0, []

    def max_length(self, asked):
        if asked == 2:
            raise InfluenceError("the length is the scorer's to refuse")
        return asked or 32

    def fit(self, rows, task_batch_size, folder, *, process_index=0, num_processes=1):
        if folder.is_dir():
            return self.load(folder)
        self.fitted += 1
        batches = [rows[start : start + task_batch_size] for start in range(0, len(rows), task_batch_size)]
        self.gradients = np.array([vector([batch["input_ids"], batch["label"]]) for batch in batches])
        with atomic_directory(folder) as work:
            np.save(work / "gradients.npy", self.gradients)

    def load(self, folder):
        self.loaded += 1
        self.gradients = np.load(folder / "gradients.npy")

    def score(self, rows):
        if self.fail_after is not None and len(self.scored) + len(rows) > self.fail_after:
            raise KeyboardInterrupt
        self.scored += rows["id"][:]
        special = set(self.tokenizer.all_special_ids)
        scores = np.array([vector([row["id"], row["input_ids"], self.seed]) @ self.gradients.T for row in rows], np.float32)
        scores[[special.issuperset(ids) for ids in rows["input_ids"]]] = np.nan
        return scores
