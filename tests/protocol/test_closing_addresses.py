"""Many keys behind one address: they have the places that nobody else asks for, and cannot keep the others out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.closing import Closing, NotTaken
from manta_swarm.protocol.signing import sha256
from tests.protocol.closings import OPEN_MS, START, claims, work

HERE, THERE = "192.0.2.1", "2001:db8::/64"
ROWS = 16


def key(number: int, address: str) -> bytes:
    return sha256(f"{address} {number}".encode())


def asks(closing: Closing, number: int, address: str) -> bool:
    """Hand in header and body of a key at an address; return whether it has a place."""
    founder = key(number, address)
    try:
        closing.header(founder, claims(founder), closing.round, work(founder), START, address=address)
    except NotTaken:
        return False
    closing.arrived(work(founder), START)
    closing.good(work(founder))
    return True


def opened(percent: int = 75) -> Closing:
    closing = Closing(ROWS, percent)
    closing.open(7, OPEN_MS, frozenset(), START)
    return closing


def turned(closing: Closing, round: int) -> None:
    """Close the round, and open the next one."""
    closing.tick(START + OPEN_MS)
    table = {one for of, keys, _ in closing.standing() if of == round - 1 for one in keys}
    closing.open(round, OPEN_MS, frozenset(table), START)


def test_who_is_elsewhere_finds_places_however_many_keys_an_address_has() -> None:
    closing = opened()
    assert all(asks(closing, number, HERE) for number in range(ROWS))
    assert not asks(closing, 0, THERE)  # the first time: nobody had asked
    turned(closing, 8)
    assert [asks(closing, number, HERE) for number in range(100, 200)].count(True) < ROWS
    assert asks(closing, 0, THERE)


def test_others_together_have_the_rest_and_what_they_do_not_ask_for_is_everybodys() -> None:
    closing = opened()
    assert all(asks(closing, 0, f"198.51.100.{number}") for number in range(2))
    assert [asks(closing, number, HERE) for number in range(ROWS)].count(True) == ROWS - 2
    closing = opened()
    assert all(asks(closing, 0, f"198.51.100.{number}") for number in range(6))
    assert [asks(closing, number, HERE) for number in range(ROWS)].count(True) == ROWS - 6
    assert not asks(closing, 9, "198.51.100.0")  # all are taken


def test_of_any_number_of_addresses_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.protocol.closing._MAX_ADDRESSES", 3)
    closing = opened(percent=50)
    assert all(asks(closing, 0, address) for address in (HERE, *(f"198.51.100.{number}" for number in range(6))))
    assert len(closing._asking) == 3


def test_an_address_that_asks_no_more_is_forgotten_after_a_round() -> None:
    closing = opened()
    assert asks(closing, 0, THERE)
    turned(closing, 8)
    assert [asks(closing, number, HERE) for number in range(ROWS)].count(True) < ROWS
    turned(closing, 9)
    assert [asks(closing, number, HERE) for number in range(ROWS)].count(True) == ROWS


def test_what_nobody_knows_the_address_of_is_not_counted() -> None:
    closing = opened(percent=1)
    assert asks(closing, 0, HERE)
    assert [asks(closing, number, "") for number in range(ROWS)].count(True) == ROWS - 1


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([HERE, THERE, "198.51.100.1", ""])), max_size=60),
    st.integers(1, 100),
)
def test_an_address_always_has_its_share_and_one_that_alone_asks_has_all(asked: list[tuple[int, str]], percent: int) -> None:
    closing = opened(percent)
    placed: dict[tuple[int, str], bool] = {}
    for number, address in asked:
        before = sum(placed.get((other, at), False) for other in range(6) for at in [address])
        if not placed.get((number, address)):
            placed[number, address] = asks(closing, number, address)
            if before < max(ROWS * percent // 100, 1) and sum(placed.values()) < ROWS:
                assert placed[number, address]


def test_shares_are_of_the_places_for_newcomers_too() -> None:
    closing = opened()
    assert all(asks(closing, number, f"203.0.113.{number}") for number in range(8))
    turned(closing, 8)  # eight places are kept for these, of the others one address has six
    assert [asks(closing, number, HERE) for number in range(8)].count(True) == 6
    assert asks(closing, 8, THERE)
    with pytest.raises(NotTaken, match="its address has its share"):
        closing.header(key(9, HERE), claims(key(9, HERE)), 8, work(key(9, HERE)), START, address=HERE)
