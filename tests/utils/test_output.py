"""What a command prints and logs between its progress bars."""

import logging
import sys

from tqdm.auto import tqdm

from hf_tlm.utils.process import plain_output


def test_warning_is_printed_on_its_own_line_above_a_bar(capsys):
    logger = logging.getLogger("hf_tlm.test_output")
    logger.propagate = False  # Otherwise pytest's handlers get the record instead of the last resort.
    try:
        with plain_output(), tqdm(desc="Predicting", total=3, file=sys.stderr) as bar:
            bar.update()
            logger.warning("new.csv: left out 1 with null text.\x1b[2J")
            bar.update()
    finally:
        logger.propagate = True
    output = capsys.readouterr().err
    before, after = output.split("new.csv: left out 1 with null text.")
    assert "Predicting" in before and before.rpartition("\r")[2] == ""
    assert after.split("\n")[0] == r"\x1b[2J" and "Predicting" in after


def test_logging_is_restored_after_the_command():
    before = logging.lastResort
    with plain_output(), plain_output():
        assert logging.lastResort is not before and logging.lastResort.level == logging.WARNING
    assert logging.lastResort is before
