"""The account of noise: against the exact epsilon of composed Gaussian mechanisms, and durable from one start to the next."""

import math
from pathlib import Path

import pytest
from scipy import optimize, special

from manta_swarm.peer.features.private.noise import SENSITIVITY, NoiseAccount, epsilon_of
from manta_swarm.protocol.errors import StorageError

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed: pip install -e '.[privacy]'")

DELTA = 1e-5


def exact_epsilon(times: dict[float, int], delta: float) -> float:
    """Balle and Wang (arXiv 1805.06530, theorem 8): Gaussian mechanisms compose to one, whose epsilon is known exactly."""
    distance = math.sqrt(sum(count * (SENSITIVITY / sigma) ** 2 for sigma, count in times.items()))

    def delta_of(epsilon: float) -> float:
        first = special.log_ndtr(distance / 2 - epsilon / distance)
        second = epsilon + special.log_ndtr(-distance / 2 - epsilon / distance)
        return float(math.exp(first) - math.exp(second))

    return float(optimize.brentq(lambda epsilon: delta_of(epsilon) - delta, 0, 1e6))


@pytest.mark.parametrize("times", [{10.0: 1}, {10.0: 40}, {8.7: 40}, {2.0: 5, 30.0: 100}, {1.0: 10}])
def test_it_says_no_less_than_what_is_exactly_given_away_and_not_much_more(times: dict[float, int]) -> None:
    exact, found = exact_epsilon(times, DELTA), epsilon_of(times, DELTA)
    assert exact < found < 1.25 * exact + 0.1


def test_more_noise_and_fewer_times_give_away_less_and_never_is_nothing() -> None:
    assert epsilon_of({}, DELTA) == 0
    assert epsilon_of({10.0: 1}, DELTA) < epsilon_of({10.0: 2}, DELTA) < epsilon_of({5.0: 2}, DELTA)
    assert epsilon_of({10.0: 1}, DELTA) < epsilon_of({10.0: 1}, DELTA / 10)


def test_what_was_spent_is_spent_after_a_restart_whatever_the_noise_was(tmp_path: Path) -> None:
    path = tmp_path / "privacy"
    first = NoiseAccount(path, DELTA)
    assert (first.epsilon(), path.exists()) == (0, False)
    expected = first.epsilon(10.0)
    first.spend(10.0)
    assert first.epsilon() == expected
    second = NoiseAccount(path, DELTA)
    assert second.epsilon() == expected
    second.spend(4.0)
    second.spend(10.0)
    assert NoiseAccount(path, DELTA).epsilon() == epsilon_of({10.0: 2, 4.0: 1}, DELTA)


def test_an_account_that_cannot_be_read_is_not_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "privacy"
    account = NoiseAccount(path, DELTA)
    account.spend(10.0)
    good = path.read_bytes()
    for bad in (
        b"",
        good[:-1],
        good[:-1] + bytes([good[-1] ^ 1]),
        good + b"0",
        good.replace(b"10.0", b"90.0"),
        good.replace(b"10.0", b"-1.0"),
    ):
        path.write_bytes(bad)
        with pytest.raises(StorageError, match=r"is damaged .*restore it from a backup"):
            NoiseAccount(path, DELTA)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError):
        NoiseAccount(path, DELTA)
