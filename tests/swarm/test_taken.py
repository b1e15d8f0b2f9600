"""What a claim says of those who gave bytes: no more than they gave, of a bounded number of keys, each byte once."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.serving import MAX_THANKED
from protocol.signing import Identity, PublicKey, sha256
from swarm.taken import MAX_KEYS, Taken
from tests.runs import manifest_of

OPERATOR = Identity(bytes(32))
KEYS = [PublicKey(sha256(b"key %d" % number)) for number in range(2 * MAX_KEYS)]
PAYS = manifest_of(OPERATOR, serving_pool_percent=10)


def test_what_was_taken_is_named_once() -> None:
    taken = Taken(PAYS)
    for key, count in ((KEYS[0], 5), (KEYS[1], 1), (KEYS[0], 2)):
        taken.note(key, count)
    assert dict(taken.name()) == {KEYS[0]: 7, KEYS[1]: 1}
    assert taken.name() == ()


def test_operators_are_not_named_and_nobody_is_where_the_run_pays_nothing() -> None:
    taken, unpaid = Taken(PAYS), Taken(manifest_of(OPERATOR))
    taken.note(OPERATOR.public_key, 5)
    unpaid.note(KEYS[0], 5)
    assert taken.name() == unpaid.name() == ()


def test_a_crowd_of_keys_is_not_all_remembered_and_hides_nobody_who_gave_much() -> None:
    taken = Taken(PAYS)
    taken.note(KEYS[0], 10**6)
    for key in KEYS[1:]:
        taken.note(key, 1)
    assert len(taken._bytes) == MAX_KEYS
    assert dict(taken.name())[KEYS[0]] == 10**6


@given(st.lists(st.tuples(st.sampled_from(KEYS[:20]), st.integers(0, 2**42))))
def test_whatever_was_taken_may_stand_in_a_claim(noted: list[tuple[PublicKey, int]]) -> None:
    taken = Taken(PAYS)
    for key, count in noted:
        taken.note(key, count)
    thanks = taken.name()
    keys = [key for key, _ in thanks]
    assert keys == sorted(set(keys))
    assert len(keys) <= MAX_THANKED
    assert all(0 < count <= sum(each for other, each in noted if other == key) for key, count in thanks)
