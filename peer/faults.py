"""What was taken back of a peer's credit, and why: as plain values, and in words; and what its person can do about it."""

from collections.abc import Mapping
from typing import Any

from protocol.accounts import Fault, Void
from protocol.audits import DIFFERS, WITHHELD
from protocol.standing import LEFT, OUTVOTED


def plain_fault(void: Void) -> dict[str, Any]:
    """Return what was taken back for one fault, as plain values."""
    fault = void.fault
    return {"amount": void.amount, "round": fault.round, "reason": fault.reason, "claim": fault.claim.hex()}


def fault_line(fault: Mapping[str, Any]) -> str:
    """Return the words for what was taken back for one fault (see ``plain_fault``)."""
    return f"{fault['amount']:,} void ({fault['reason']}, verdict of round {fault['round']}, claim {fault['claim'][:16]})"


_WHAT = {
    DIFFERS: "lots of its{claim} were computed again, and are not what it said",
    WITHHELD: "nobody was given what audits of its{claim} need",
    LEFT: "it left before audits of its{claim} had what they need",
    OUTVOTED: "what it said as an auditor of{claim} was contradicted by others",
}
_COMPUTES_WRONGLY = (
    "if you changed nothing on purpose, this computer computes wrongly: look for overclocking, heat and bad memory, install the program "
    "and the data anew, and run manta-peer doctor"
)
_ANEW = "this key stays guilty in this run: then take part with another one (manta-peer join --dir OTHER-FOLDER)"


def is_guilty(fault: Fault) -> bool:
    """Return whether a fault ends trust for good."""
    return fault.reason not in (WITHHELD, LEFT)


def verdict(fault: Fault, claim_round: int | None) -> str:
    """Return the line that says of what a peer was found guilty; ``claim_round`` is that of the claim, where it is its own."""
    claim = f" claim of round {claim_round}" if claim_round is not None else f" claim {fault.claim.hex()[:16]}"
    what = _WHAT[fault.reason].format(claim=claim)
    return f"audits found this peer guilty with round {fault.round}: {what}; its pending credit is void, and its work counts no more"


def advice() -> str:
    """Return what the person of a guilty peer can do."""
    return f"{_COMPUTES_WRONGLY}; {_ANEW}"
