"""Disk faults at every operation of a checkpoint's save: the previous checkpoint stays intact."""

import errno
import shutil

from attacks.faults import Faults, injected
from hf_tlm.training.checkpoints import CheckpointError, last_complete_checkpoint
from support.training_runs import trainer


def test_failing_save_keeps_the_previous_checkpoint(tmp_path, data, tokenizer):
    run = trainer(tmp_path, data, tokenizer, max_steps=1, save_strategy="steps", save_steps=1)
    run.train()
    before, after = tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"
    run.state.global_step = 2

    def save():
        run._save_checkpoint(run.model, None)

    # The first save after train() has more operations than later ones.
    save()
    shutil.rmtree(after)
    with injected(Faults(tmp_path)) as counted:
        save()
    names = sorted(path.name for path in after.iterdir())
    failed = 0
    for number in range(len(counted.seen)):
        shutil.rmtree(after)
        # A full disk fails from this operation on; a broken one fails once.
        code, lasting = ((errno.ENOSPC, True), (errno.EIO, False))[number % 2]
        with injected(Faults(tmp_path, number, code, lasting)) as faults:
            try:
                save()
            except CheckpointError as error:
                failed += 1
                where = f"{faults.seen[number]}: {error}"
                assert "\n" not in str(error) and f"{before}, is intact" in str(error)
                assert last_complete_checkpoint(tmp_path) == str(before) and not after.exists(), where
            else:
                assert last_complete_checkpoint(tmp_path) == str(after), faults.seen[number]
        save()
        assert last_complete_checkpoint(tmp_path) == str(after)
        assert sorted(path.name for path in after.iterdir()) == names
    assert failed > 10
