"""What a node knows of who has which bodies: what is told to whom and when, what is asked of whom, and what strangers cannot make it do."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.network.gossip_state import MAX_LINKS, MAX_NEAR_LINKS, GossipState, Pull
from manta_swarm.network.pushes import MAX_PUSH_BYTES, BodyOffer, Push, PushAnswer, ShownOffer
from manta_swarm.protocol.affinity import FAR
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, RemoteFault, SignatureError
from manta_swarm.protocol.records import Contribution, InclusionPromise, StepMean
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey, sha256

RUN, BASE = sha256(b"run"), sha256(b"base")
OPERATOR, STRANGER, *FOUNDERS = (Identity(sha256(b"identity %d" % number)) for number in range(12))
LINKS = [PublicKey(sha256(b"link %d" % number)) for number in range(40)]
A, B, C, D = LINKS[:4]
BODY_BYTES = 100
NO_PUSH = Push((), (), ())


def offer_with(
    body: bytes,
    founder: Identity,
    *,
    round_: int = 1,
    inclusion_promise_round: int | None = None,
    run: bytes = RUN,
    signer: Identity = OPERATOR,
) -> BodyOffer:
    """Return the offer of a founder's body for a round."""
    contribution = Contribution(run, round_, BASE, founder.public_key, (sha256(b"claim" + body),), 1, (StepMean(body, 1),), body, b"")
    signed = Signed.sign(contribution, founder)
    return BodyOffer(signed, Signed.sign(InclusionPromise(run, inclusion_promise_round or round_, signed.digest), signer))


def offer_of(number: int, *, round_: int = 1, name: str = "body", **changes: Any) -> BodyOffer:
    """Return one of many offers."""
    body = sha256(b"%s %d %d" % (name.encode(), number, round_))
    return offer_with(body, FOUNDERS[number % len(FOUNDERS)], round_=round_, **changes)


def root_of(offer: BodyOffer) -> bytes:
    return offer.contribution.open().body


OFFERS = [offer_of(number) for number in range(10)]
ROOTS = [root_of(offer) for offer in OFFERS]


def push_of(*offers: BodyOffer, hops: int = 0, held: Iterable[bytes] = (), coming: Iterable[bytes] = ()) -> Push:
    return Push(tuple(ShownOffer(offer, hops) for offer in offers), tuple(held), tuple(coming))


class Flat:
    """Peers of whom nobody measured how far they are."""

    def distance_us(self, _key: PublicKey) -> int:
        return FAR


def gossip_state_of(*, far: Iterable[PublicKey] = (), near: Iterable[PublicKey] = (), max_rows: int = 100, closed: int = 1) -> GossipState:
    """Return a gossip state with links, in round 1 of a run, whose headers are closed."""
    gossip_state = GossipState(RUN, [OPERATOR.public_key], Flat(), max_rows=max_rows, body_bytes=BODY_BYTES, near_timeout_s=1.0)
    gossip_state.budget_bytes = 10**9
    for key in far:
        gossip_state.link(key, is_near=False, is_invited=True)
    for key in near:
        gossip_state.link(key, is_near=True, is_invited=True)
    if closed:
        gossip_state.close_headers(closed)
    return gossip_state


def told(gossip_state: GossipState, key: PublicKey) -> set[bytes]:
    """Return the roots of the bodies that a link is told of now."""
    push = gossip_state.next_push(key)
    return {root_of(shown.offer) for shown in push.offers} if push is not None else set()


def test_nothing_is_told_of_a_round_before_its_headers_are_closed() -> None:
    gossip_state = gossip_state_of(far=[A], closed=0)
    gossip_state.add_own(OFFERS[0])
    assert gossip_state.next_push(A) is None
    assert not gossip_state.is_shown(ROOTS[0])
    gossip_state.link(B, is_near=False, is_invited=False)
    assert gossip_state.next_push(B) == NO_PUSH  # it is greeted
    assert gossip_state.next_push(B) is None
    gossip_state.close_headers(1)
    assert told(gossip_state, A) == told(gossip_state, B) == {ROOTS[0]}
    assert gossip_state.is_shown(ROOTS[0])
    assert gossip_state.next_push(A) is None


def test_what_others_show_too_early_is_neither_asked_for_nor_passed_on_before_the_own_clock_says_so() -> None:
    gossip_state = gossip_state_of(far=[A, B], closed=0)
    gossip_state.take(A, push_of(OFFERS[0]), 0.0)
    assert gossip_state.next_pull(0.0) is None
    gossip_state.hold(ROOTS[0])
    assert gossip_state.next_push(B) is None
    gossip_state.take(A, push_of(OFFERS[1]), 0.0)
    gossip_state.close_headers(1)
    assert told(gossip_state, B) == {ROOTS[0]}
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[1], (), (A,))


def test_a_commit_closes_the_headers_of_its_round_and_forgets_the_rounds_before() -> None:
    gossip_state = gossip_state_of(far=[A, B], closed=0)
    for number, round_ in enumerate((1, 2, 3)):
        if round_ == 3:
            gossip_state.commit(1)
        gossip_state.take(A, push_of(offer_of(number, round_=round_)), 0.0)
    assert gossip_state.num_held(1) == 0
    assert gossip_state.is_known(ROOTS[0])
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[0], (), (A,))
    gossip_state.commit(2)
    assert not gossip_state.is_known(ROOTS[0])
    gossip_state.hold(ROOTS[0])  # it came in the end: now it is like any other blob
    assert gossip_state.num_held(1) == 0
    second = root_of(offer_of(1, round_=2))
    assert gossip_state.next_pull(0.0) == Pull(second, (), (A,))
    gossip_state.hold(second)
    assert (gossip_state.num_held(2), told(gossip_state, B)) == (1, {second})


def test_a_link_is_not_told_what_it_told_or_was_told() -> None:
    gossip_state = gossip_state_of(far=[A, B])
    gossip_state.take(A, push_of(OFFERS[0], OFFERS[1]), 0.0)
    gossip_state.hold(ROOTS[0])
    assert told(gossip_state, A) == set()
    assert told(gossip_state, B) == {ROOTS[0]}
    gossip_state.take(B, push_of(OFFERS[1]), 0.0)
    gossip_state.hold(ROOTS[1])
    assert told(gossip_state, A) == told(gossip_state, B) == set()
    gossip_state.close_headers(1)
    assert told(gossip_state, A) == told(gossip_state, B) == set()


def test_a_new_link_is_told_of_all_that_is_here() -> None:
    gossip_state = gossip_state_of()
    gossip_state.add_own(OFFERS[0])
    gossip_state.take(A, push_of(OFFERS[1], OFFERS[2]), 0.0)
    gossip_state.hold(ROOTS[1])
    for key in (A, B):
        assert gossip_state.link(key, is_near=False, is_invited=True)
    assert told(gossip_state, A) == {ROOTS[0]}  # it has the other one
    assert told(gossip_state, B) == {ROOTS[0], ROOTS[1]}


def test_a_push_is_no_longer_than_it_may_be_and_the_rest_goes_with_the_next() -> None:
    gossip_state = gossip_state_of(far=[A], max_rows=300)
    offers = [offer_of(number, name="many") for number in range(300)]
    for offer in offers:
        gossip_state.add_own(offer)
    seen: set[bytes] = set()
    sizes = []
    while (push := gossip_state.next_push(A)) is not None:
        sizes.append(len(pack(push)))
        seen |= {root_of(shown.offer) for shown in push.offers}
    assert seen == {root_of(offer) for offer in offers}
    assert max(sizes) <= MAX_PUSH_BYTES + 64
    assert len(sizes) == -(-sum(sizes) // MAX_PUSH_BYTES)


def test_a_body_is_asked_of_who_offers_it_and_of_others_only_while_few_are_asked_of_that_one() -> None:
    gossip_state = gossip_state_of(far=[A, B])
    gossip_state.take(A, push_of(*OFFERS), 0.0)
    pulls = [gossip_state.next_pull(0.0) for _ in range(6)]
    assert [pull.root for pull in pulls if pull is not None] == ROOTS[:6]
    assert gossip_state.next_pull(0.0) is None  # so many are asked of one at a time
    gossip_state.take(B, push_of(OFFERS[8], OFFERS[3]), 0.0)
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[8], (), (B, A))  # who is asked less is asked first
    assert gossip_state.next_pull(0.0) is None
    gossip_state.hold(ROOTS[0])
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[6], (), (A,))


def test_what_nobody_gave_is_asked_for_again_when_it_is_offered_again() -> None:
    gossip_state = gossip_state_of(far=[A, B])
    gossip_state.take(A, push_of(OFFERS[0]), 0.0)
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[0], (), (A,))
    gossip_state.failed(ROOTS[0])
    assert gossip_state.next_pull(0.0) is None
    gossip_state.take(B, push_of(OFFERS[0]), 0.0)
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[0], (), (B,))
    gossip_state.failed(sha256(b"nothing known"))


def test_only_so_many_bytes_of_a_round_are_got() -> None:
    gossip_state = gossip_state_of(far=[A, B])
    gossip_state.budget_bytes = 3 * BODY_BYTES - 1
    gossip_state.take(A, push_of(*OFFERS), 0.0)
    assert [gossip_state.next_pull(0.0) is not None for _ in range(3)] == [True, True, False]
    gossip_state.failed(ROOTS[0])
    assert gossip_state.next_pull(0.0) is not None  # what did not come costs nothing
    assert gossip_state.next_pull(0.0) is None
    gossip_state.budget_bytes = 0
    assert gossip_state.next_pull(0.0) is None


def test_near_ones_are_asked_first_and_others_only_if_they_do_not_do() -> None:
    gossip_state = gossip_state_of(far=[A], near=[B, C])
    gossip_state.take(A, push_of(OFFERS[0]), 0.0)
    gossip_state.take(C, push_of(OFFERS[0]), 0.0)
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[0], (C,), (A,))
    assert gossip_state.sources(ROOTS[0]) == [C, A]


def test_what_is_got_from_afar_is_said_to_near_links_who_wait_for_it_a_moment() -> None:
    here, cohort_peer = gossip_state_of(far=[A], near=[B]), gossip_state_of(far=[A], near=[C])
    here.take(A, push_of(OFFERS[0]), 0.0)
    assert here.next_pull(0.0) == Pull(ROOTS[0], (), (A,))
    push = here.next_push(B)
    assert push == push_of(coming=[ROOTS[0]])
    assert here.next_push(A) is None
    cohort_peer.take(C, push, 5.0)
    cohort_peer.take(A, push_of(OFFERS[0], OFFERS[1]), 5.0)
    assert cohort_peer.next_pull(5.5) == Pull(ROOTS[1], (), (A,))
    assert cohort_peer.next_pull(5.5) is None
    assert cohort_peer.wakes_at(5.5) == 6.0
    here.hold(ROOTS[0])
    came = here.next_push(B)
    assert came is not None
    cohort_peer.take(C, came, 5.5)
    assert cohort_peer.next_pull(5.5) == Pull(ROOTS[0], (C,), (A,))


def test_a_near_link_that_does_not_get_what_it_said_is_waited_for_once() -> None:
    gossip_state = gossip_state_of(far=[A], near=[B])
    gossip_state.take(B, push_of(coming=[ROOTS[0]]), 0.0)
    gossip_state.take(A, push_of(OFFERS[0]), 0.0)
    assert gossip_state.next_pull(0.9) is None
    assert gossip_state.next_pull(1.0) == Pull(ROOTS[0], (), (A,))
    assert gossip_state.wakes_at(1.0) is None


def test_a_far_link_cannot_make_anybody_wait() -> None:
    gossip_state = gossip_state_of(far=[A, B])
    gossip_state.take(A, push_of(OFFERS[0]), 0.0)
    gossip_state.take(B, push_of(coming=ROOTS), 0.0)
    assert gossip_state.next_pull(0.0) is not None


def test_a_near_link_can_make_others_wait_for_so_many_bodies_only() -> None:
    gossip_state = gossip_state_of(near=[A], max_rows=3)
    for _ in range(5):
        gossip_state.take(A, push_of(coming=ROOTS), 0.0)
    assert len(gossip_state._coming) == 3


def test_what_follows_a_commit_is_told_and_remembered_by_root_of_links_only() -> None:
    mean = sha256(b"mean")
    here, other = gossip_state_of(far=[A, B]), gossip_state_of(far=[C])
    here.hold(mean)
    here.hold(mean)
    push = here.next_push(A)
    assert push == push_of(held=[mean])
    other.take(C, push, 0.0)
    other.take(D, push, 0.0)
    assert other.sources(mean) == [C]
    here.take(B, push, 0.0)
    assert here.sources(mean) == [B]  # who was told has not got it
    here.unlink(B)
    assert here.sources(mean) == []
    assert here.next_push(A) is None
    here.hold(mean)  # now all of it
    assert here.next_push(A) == push
    for number in range(100):
        other.take(C, push_of(held=[sha256(b"%d" % number)]), 0.0)
    assert other.sources(mean) == []


def test_links_that_were_not_used_for_the_round_are_forgotten() -> None:
    gossip_state = gossip_state_of(far=[A, B, C])
    gossip_state.close_headers(2)
    gossip_state.take(B, push_of(offer_of(1, round_=2)), 0.0)
    gossip_state.link(C, is_near=False, is_invited=False)
    gossip_state.unlink_old()
    assert set(gossip_state.links) == {B, C}


def test_strangers_find_no_room_beside_so_many_links_but_the_own_choice_does() -> None:
    gossip_state = gossip_state_of()
    accepted = [gossip_state.link(key, is_near=False, is_invited=True) for key in LINKS[: MAX_LINKS + 4]]
    assert accepted == [True] * MAX_LINKS + [False] * 4
    assert gossip_state.link(LINKS[0], is_near=False, is_invited=True)  # it is one already
    assert gossip_state.link(LINKS[-1], is_near=False, is_invited=False)
    near = [PublicKey(sha256(b"near %d" % number)) for number in range(MAX_NEAR_LINKS + 1)]
    assert [gossip_state.link(key, is_near=True, is_invited=True) for key in near] == [True] * MAX_NEAR_LINKS + [False]


def changed(offer: BodyOffer, **changes: object) -> BodyOffer:
    return replace(offer, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offer", "error"),
    [
        pytest.param(offer_of(1, signer=STRANGER), SignatureError, id="an inclusion promise of a stranger"),
        pytest.param(offer_of(1, run=sha256(b"another")), EncodingError, id="another run"),
        pytest.param(changed(OFFERS[1], inclusion_promise=OFFERS[2].inclusion_promise), EncodingError, id="another's inclusion promise"),
        pytest.param(
            changed(OFFERS[1], contribution=replace(OFFERS[1].contribution, signature=bytes(64))),
            EncodingError,
            id="no founder's signature",
        ),
        pytest.param(
            offer_of(1, round_=9, inclusion_promise_round=1), EncodingError, id="an inclusion promise for a round before its base"
        ),
        pytest.param(offer_of(1, round_=1, inclusion_promise_round=6), EncodingError, id="too old"),
        pytest.param(
            changed(OFFERS[1], inclusion_promise=replace(OFFERS[1].inclusion_promise, payload=b"\x80")),
            EncodingError,
            id="no inclusion promise",
        ),
    ],
)
def test_an_offer_that_proves_nothing_is_refused_and_what_came_before_it_counts(offer: BodyOffer, error: type[RemoteFault]) -> None:
    gossip_state = gossip_state_of(far=[A, B])
    with pytest.raises(error):
        gossip_state.take(A, push_of(OFFERS[0], offer, OFFERS[2]), 0.0)
    assert gossip_state.next_pull(0.0) == Pull(ROOTS[0], (), (A,))
    assert gossip_state.next_pull(0.0) is None


def test_a_body_that_the_founder_did_not_sign_is_refused_even_with_an_inclusion_promise_for_it() -> None:
    offer = OFFERS[1]
    forged = replace(offer.contribution, signature=bytes(64))
    inclusion_promise = Signed.sign(InclusionPromise(RUN, 1, forged.digest), OPERATOR)
    with pytest.raises(SignatureError):
        gossip_state_of(far=[A]).take(A, push_of(BodyOffer(forged, inclusion_promise)), 0.0)


def test_offers_of_other_rounds_bodies_twice_and_too_many_come_to_nothing_though_nobody_did_wrong() -> None:
    gossip_state = gossip_state_of(far=[A], max_rows=5)
    gossip_state.commit(7)
    gossip_state.take(A, push_of(offer_of(1, round_=6)), 0.0)
    gossip_state.take(A, push_of(offer_of(1, round_=10)), 0.0)
    assert gossip_state.outside == {"another round": 2}
    for round_ in (7, 8, 9):
        gossip_state.take(A, push_of(offer_of(1, round_=round_)), 0.0)
    contribution = offer_of(1, round_=8).contribution.open()
    copied = Signed.sign(replace(contribution, founder=FOUNDERS[5].public_key), FOUNDERS[5])
    gossip_state.take(A, push_of(BodyOffer(copied, Signed.sign(InclusionPromise(RUN, 8, copied.digest), OPERATOR))), 0.0)
    assert gossip_state.outside == {"another round": 2, "a body twice": 1}
    gossip_state.take(A, push_of(*(offer_of(number, round_=8, name="flood") for number in range(30))), 0.0)
    assert gossip_state.outside["too many"] == 30 - 4
    assert len(gossip_state._items) == 2 + 5


def test_a_known_offer_costs_no_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    gossip_state = gossip_state_of(far=[A, B])
    gossip_state.take(A, push_of(OFFERS[0]), 0.0)
    monkeypatch.setattr(BodyOffer, "open", None)
    gossip_state.take(B, push_of(OFFERS[0]), 0.0)
    assert gossip_state.sources(ROOTS[0]) == sorted([A, B])


def test_who_sent_wrong_bytes_is_a_source_of_nothing() -> None:
    gossip_state = gossip_state_of(far=[A, B])
    gossip_state.take(A, push_of(OFFERS[0], OFFERS[1], held=[sha256(b"mean")]), 0.0)
    gossip_state.take(B, push_of(OFFERS[1]), 0.0)
    gossip_state.drop_source(A)
    assert (gossip_state.sources(ROOTS[0]), gossip_state.sources(ROOTS[1]), gossip_state.sources(sha256(b"mean"))) == ([], [B], [])


def test_hops_are_counted_of_what_was_got_and_bounded() -> None:
    gossip_state = gossip_state_of(far=[A])
    gossip_state.add_own(OFFERS[0])
    gossip_state.take(A, push_of(OFFERS[1], hops=2), 0.0)
    gossip_state.take(A, push_of(OFFERS[2], hops=255), 0.0)
    for root in ROOTS[:3]:
        gossip_state.hold(root)
    assert gossip_state.hops == {3: 1, 255: 1}
    gossip_state.link(B, is_near=False, is_invited=False)
    push = gossip_state.next_push(B)
    assert push is not None
    assert [shown.hops for shown in push.offers] == [0, 3, 255]
    with pytest.raises(ValueError, match="hops"):
        ShownOffer(OFFERS[0], 256)


def test_the_answer_says_whether_there_is_a_link() -> None:
    assert pack(PushAnswer(1)) != pack(PushAnswer(0))
    with pytest.raises(ValueError, match="too much"):
        Push((), (bytes(32),) * 200, (bytes(32),) * 57)
    with pytest.raises(ValueError, match="root"):
        Push((), (bytes(31),), ())


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_links_each_body_comes_to_all_who_are_joined_by_links_and_is_got_once(seed: int) -> None:
    """Gossip states that only call each other, in any order: a model of gossip without time."""
    rng = random.Random(seed)
    keys = LINKS[:12]
    gossip_states = {key: gossip_state_of() for key in keys}
    for place, key in enumerate(keys):  # a ring and some chords, with the links back that a push makes
        for other in (keys[place - 1], rng.choice(keys)):
            if other != key:
                gossip_states[key].link(other, is_near=rng.random() < 0.3, is_invited=False)
    for number, offer in enumerate(OFFERS):
        gossip_states[keys[number]].add_own(offer)
    got = dict.fromkeys(keys, 0)
    while True:
        moves = [(key, other) for key in keys for other in gossip_states[key].links]
        rng.shuffle(moves)
        is_still = True
        for key, other in moves:
            push = gossip_states[key].next_push(other)
            if push is not None:
                gossip_states[other].link(key, is_near=False, is_invited=True)
                gossip_states[other].take(key, push, 0.0)
                is_still = False
        for key in rng.sample(keys, len(keys)):
            while (pull := gossip_states[key].next_pull(10.0)) is not None:
                gossip_states[key].hold(pull.root)
                got[key] += 1
                is_still = False
        if is_still:
            break
    assert [gossip_state.num_held(1) for gossip_state in gossip_states.values()] == [len(OFFERS)] * len(keys)
    assert sum(got.values()) == len(OFFERS) * (len(keys) - 1)
