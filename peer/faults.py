"""What audits found against a peer, as plain values and in words: what it means, and what its person can do about it."""

from manta_swarm.network.peer_status import FaultSeen
from manta_swarm.protocol.reputation import FALSE, WITHHELD, Fault

_MEANS = {
    WITHHELD: (
        "an audit needed what it rests on, and nobody brought that in time: it is not paid, nor what was pending before and not audited, "
        "and this key has to be found good from the beginning; keep the peer running, on a disk with room, while audits may ask"
    ),
    FALSE: (
        "an audit computed it again, and it is not what it says: what was pending and not audited is not paid, and this key is guilty for "
        "good; run manta-peer doctor, and look for overclocking, heat and bad memory"
    ),
}
_COMPUTES_WRONGLY = (
    "if you changed nothing on purpose, this computer computes wrongly: look for overclocking, heat and bad memory, install the program "
    "and the data anew, and run manta-peer doctor"
)
_ANEW = "this key stays guilty in this run: then take part with another one (manta-peer join --dir OTHER-FOLDER)"


def plain_fault(fault: Fault) -> FaultSeen:
    """Return what was found, as plain values."""
    return FaultSeen(fault.round, fault.reason, fault.contribution.hex())


def fault_line(fault: FaultSeen) -> str:
    """Return the sentence for what was found."""
    what = f"contribution {fault.contribution[:16]} was found {fault.reason} with round {fault.round}"
    means = _MEANS.get(fault.reason)
    return f"{what}: {means}" if means else what


def is_guilty(fault: Fault) -> bool:
    """Return whether a fault ends trust for good."""
    return fault.reason == FALSE


def verdict(fault: Fault) -> str:
    """Return the line that says of what a peer was found guilty."""
    what = f"its contribution {fault.contribution.hex()[:16]} was computed again, and is not what it says"
    return f"audits found this peer guilty with round {fault.round}: {what}; what was pending is not paid, and its work counts no more"


def advice() -> str:
    """Return what the person of a guilty peer can do."""
    return f"{_COMPUTES_WRONGLY}; {_ANEW}"


def pending_words(until: int, num_rounds: int) -> str:
    """Return when what is pending is paid; ``until``: the round with which the last of it is, 0: some of it is with the settlement."""
    if until:
        return f"paid round by round, the last of it with round {until}, unless audits find something"
    return f"paid round by round, the last of it when the run is settled after its last round, {num_rounds}, unless audits find something"


def unproven_words(good: int, proven_after: int) -> str:
    """Return what it means that a key is not proven, of which so many contributions were found good."""
    needed = f"{good} of {proven_after} contributions found good so far" if proven_after else f"{good} contributions found good so far"
    return f"not proven yet: {needed}; until then its work weighs less, and only what an audit finds good is paid"
