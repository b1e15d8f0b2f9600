"""What was taken back of a peer's credit, and why: as plain values, and in words."""

from collections.abc import Mapping
from typing import Any

from protocol.accounts import Void


def plain_fault(void: Void) -> dict[str, Any]:
    """Return what was taken back for one fault, as plain values."""
    fault = void.fault
    return {"amount": void.amount, "round": fault.round, "reason": fault.reason, "claim": fault.claim.hex()}


def fault_line(fault: Mapping[str, Any]) -> str:
    """Return the words for what was taken back for one fault (see ``plain_fault``)."""
    claim = f", claim {fault['claim'][:16]}" if fault["claim"] else ""
    return f"{fault['amount']:,} void ({fault['reason']}, verdict of round {fault['round']}{claim})"
