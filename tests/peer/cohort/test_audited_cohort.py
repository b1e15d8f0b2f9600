"""What a founder looks at where audits hold it to what its members' claims say: who gives something else than it claims is left out."""

import numpy as np
import pytest

from exact.residuals import vector_digest
from protocol.audits import ALL_ALIKE, AUDITED, Trust
from tests.peer.cohorts import Band, Mate, all_of, play, vector_of

AUDITS = Trust(AUDITED)
COMMON, OTHER = vector_of(0, 100), vector_of(1, 100)
LEARNT = vector_digest(COMMON)


async def convened(band: Band) -> list[Mate]:
    mates = await band.gather_round(3)
    await all_of(*(mate.convene() for mate in mates))
    return mates


def members(gathered: object) -> list[bytes]:
    return [claim.open().key for claim in gathered.claims]  # type: ignore[attr-defined]


@pytest.mark.parametrize("trust", [AUDITS, ALL_ALIKE], ids=["audited", "open"])
def test_of_one_dense_step_what_a_member_gives_is_what_its_claim_names(trust: Trust) -> None:
    async def story(band: Band) -> None:
        first, honest, liar = await convened(band)
        given = [vector_of(mate.number, 100) for mate in (first, honest, liar)]
        gathered, accepted, refused = await all_of(
            first.found(vector=vector_digest(given[0])),
            honest.hand_over(vector=vector_digest(given[1])),
            liar.hand_over(vector=vector_digest(np.zeros_like(given[2]))),
        )
        is_open = not trust.is_audited
        assert members(gathered) == [mate.key for mate in (first, honest, liar) if is_open or mate is not liar]
        assert accepted is not None
        assert (refused is not None) is is_open

    play(story, trust=trust)


@pytest.mark.parametrize(
    ("given", "changes", "is_in"),
    [
        (COMMON, {}, True),
        (COMMON, {"vector": vector_digest(OTHER)}, False),  # it learnt something else in the same steps
        (OTHER, {}, False),  # it adds the same residual, and gives something else
        (OTHER, {"residual": b"s" * 32}, True),  # what it had left nobody else has
    ],
)
def test_of_several_steps_whoever_adds_the_same_residual_gives_the_same(given: object, changes: dict[str, bytes], is_in: bool) -> None:
    async def story(band: Band) -> None:
        first, honest, other = await convened(band)
        claimed = {"vector": LEARNT, "residual": b"r" * 32}
        gathered, accepted, found = await all_of(
            first.found(COMMON, with_mean=True, **claimed),
            honest.hand_over(COMMON, **claimed),
            other.hand_over(given, **{**claimed, **changes}),
        )
        assert accepted is not None
        assert (found is not None) is is_in
        assert members(gathered) == [mate.key for mate in (first, honest, other) if is_in or mate is not other]

    play(story, local_steps=2, codec="topk-256-4", trust=AUDITS)
