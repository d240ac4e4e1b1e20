"""What a command prints and logs, between its progress bars."""

import logging
import sys

from tqdm.auto import tqdm

from hf_tlm.utils.process import plain_output


def test_a_warning_stands_on_a_line_of_its_own_above_a_bar(capsys):
    logger = logging.getLogger("hf_tlm.test_output")
    logger.propagate = False  # pytest's own handlers would have it, and the one of last resort nothing.
    try:
        with plain_output(), tqdm(desc="Predicting", total=3, file=sys.stderr) as bar:
            bar.update()
            logger.warning("new.csv: left out 1 with null text.\x1b[2J")
            bar.update()
    finally:
        logger.propagate = True
    said = capsys.readouterr().err
    before, after = said.split("new.csv: left out 1 with null text.")
    assert "Predicting" in before and before.rpartition("\r")[2] == ""
    assert after.split("\n")[0] == r"\x1b[2J" and "Predicting" in after


def test_a_program_logs_as_before_when_the_command_is_done():
    before = logging.lastResort
    with plain_output(), plain_output():
        assert logging.lastResort is not before and logging.lastResort.level == logging.WARNING
    assert logging.lastResort is before
