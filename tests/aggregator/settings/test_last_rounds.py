"""What is said of a run, a considerable part of whose pay would never be final."""

import pytest

from aggregator.settings.last_rounds import lines_on_last_rounds
from protocol.audits import ALL_ALIKE, AUDITED, Trust
from protocol.horizon import Horizon

END = "pay stays pending: the run ends before it is final; less of it does with"
LESS_PENDING = "a smaller pending_rounds (kept_rounds + 5 = 25 at least)"
LESS_KEPT = "smaller kept_rounds and pending_rounds (kept_rounds + 5 at least)"


@pytest.mark.parametrize(
    ("num_rounds", "pending_rounds", "kept_rounds", "line"),
    [
        (40, 30, 20, f"what the last 30 of 40 rounds {END} {LESS_PENDING} or more rounds in the run file"),
        (40, 25, 20, f"what the last 25 of 40 rounds {END} {LESS_KEPT} or more rounds in the run file"),
        (40, 13, 8, f"what the last 13 of 40 rounds {END} more rounds in the run file"),
        (30, 30, 20, f"what all 30 rounds {END} {LESS_PENDING} or more rounds in the run file"),
        (300, 30, 20, f"what the last 30 of 300 rounds {END} {LESS_PENDING} or more rounds in the run file"),
        (301, 30, 20, None),
    ],
)
def test_from_a_tenth_of_the_rounds_on_it_is_said_with_the_way_out(
    num_rounds: int, pending_rounds: int, kept_rounds: int, line: str | None
) -> None:
    trust = Trust(AUDITED, pending_rounds=pending_rounds, kept_rounds=kept_rounds)
    assert list(lines_on_last_rounds(Horizon(num_rounds, pending_rounds), trust)) == ([] if line is None else [line])


def test_of_a_run_without_audits_nothing_is_said() -> None:
    assert list(lines_on_last_rounds(Horizon(1, 0), ALL_ALIKE)) == []
