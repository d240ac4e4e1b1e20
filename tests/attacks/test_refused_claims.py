"""A command that is refused after it has claimed its folder withdraws the claim: the corrected command works."""

import pytest

from attacks.attack import assert_refused, attack, tree

LATE = {
    "train_tlm": ("--vocab_size", 20),
    "pretrain": ("--vocab_size", 20),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LATE)
@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_corrected_command_works_after_a_refused_one(toys, recipe, there):
    if there:
        toys.out.mkdir()
    assert_refused(attack(recipe, *toys.commands[recipe], *LATE[recipe]), "vocab_size 20 is too small")
    assert toys.out.exists() == there and not tree(toys.out.parent)
    outcome = attack(recipe, *toys.commands[recipe])
    assert outcome.status == 0 and (toys.out / "results.json").is_file(), outcome.stderr
