"""Whether lying pays under a run's rules of audits: what somebody gains who leaves out work until it is found out. Pure.

A model of the audit economy (``tests/protocol/audit_model.py``) plays the same rules in virtual rounds and comes to the same gains.
"""

from itertools import count

from manta_swarm.protocol.verdicts import LEAST_PENDING, AuditRules

MOST_GAIN = 1.0  # contributions: making a new key proven costs more work than that


def gain(rules: AuditRules, part: float) -> float:
    """Return what a proven key gains that leaves out the work of this part of its contributions, in contributions, until it is found.

    The number of contributions until it is found is geometric: each is the last one with probability q = part * audit. It may bring what
    an audit needs at the last moment, ``kept_rounds`` later. What was handed in more than ``pending_rounds`` before that is paid, though
    it did not work for that part; what came later is not paid, though it worked for the rest, unless that was drawn and found good.
    """
    return _gain(rules, part, rules.pending_rounds - rules.kept_rounds)


def _gain(rules: AuditRules, part: float, rounds: int) -> float:
    audit = rules.audit_percent / 100
    found = audit * part
    undetected = (1 - found) ** rounds  # the probability of a life that long
    return (part * undetected - (1 - part) * (1 - audit) * (1 - undetected)) / found


def most_gain(rules: AuditRules) -> float:
    """Return the most that any part of the work left out gains, in contributions."""
    return _most_gain(rules, rules.pending_rounds - rules.kept_rounds)


def _most_gain(rules: AuditRules, rounds: int) -> float:
    return max(_gain(rules, percent / 100, rounds) for percent in range(1, 101))


def least_pending_rounds(rules: AuditRules) -> int:
    """Return how many ``pending_rounds`` it takes at least so that nobody gains more than ``MOST_GAIN``, the rest of the rules as they are.

    For the rarest audits, of one in a hundred, these are ``kept_rounds`` and 459.
    """
    least = rules.kept_rounds + LEAST_PENDING
    return next(pending for pending in count(least) if _most_gain(rules, pending - rules.kept_rounds) <= MOST_GAIN)
