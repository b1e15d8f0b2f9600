"""Which residual a claim may name: one that a contribution, listed not long before it, left to its key.

The log takes any digest; an audit looks for that contribution. A peer adds the residual that it was left
last, so it always finds one. A residual that was spent already is found as well: that is no more than what coding left once before.
"""

from collections.abc import Callable, Iterable, Mapping

from manta_swarm.protocol.records import Claim, Header

RESIDUAL_ROUNDS = 32  # a residual is added to work on the bases of so many rounds after the table that left it, and then forgotten


def is_added(left: int, newest: int, sorts_after: Callable[[int], bool]) -> bool:
    """Return whether the residual that the table of ``left`` left is still added to what is signed after the commit of ``newest``."""
    return newest - left <= RESIDUAL_ROUNDS and not any(sorts_after(round_) for round_ in range(left, newest + 1))


def was_left(claim: Claim, round: int, sorts_after: Callable[[int], bool], left_by: Callable[[int], Mapping[bytes, bytes]]) -> bool:
    """Return whether the residual that a claim in the table of ``round`` names was left to its key; True where it names none.

    Args:
        claim: what it says.
        round: whose table has it.
        sorts_after: whether the update that ends a round reorders the weights.
        left_by: returns the residual that the table of a round left to each key with a claim in it.
    """
    if not claim.residual:
        return True
    for before in range(round - 1, max(0, claim.round - 2 - RESIDUAL_ROUNDS), -1):
        if sorts_after(before):
            return False
        if left_by(before).get(claim.key) == claim.residual:
            return True
    return False


def left_by(headers: Iterable[Header]) -> Mapping[bytes, bytes]:
    """Return the residual that contributions of a log leave to each key with a claim in their body; who is left with none is not in it."""
    opened = ((header, header.contribution.unchecked()) for header in headers)
    return {
        signed.unchecked().key: contribution.residual
        for header, contribution in opened
        if contribution.residual
        for signed in header.claims
        if signed.digest in contribution.in_body
    }
