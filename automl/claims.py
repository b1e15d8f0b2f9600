"""Which work a claim may state: the round's architectures in the claim's cohort, in lots of the manifest's size."""

from automl.schedule import Plan
from protocol.errors import RemoteFault
from protocol.records import Claim


class WorkError(RemoteFault):
    """A claim of work that the run did not ask for."""


def check_work(plan: Plan, lot_samples: int, claim: Claim) -> None:
    """Check what a claim says it trained, as far as the claim alone shows it. ``lot_samples`` is the manifest's.

    Raises:
        WorkError: an architecture that the round does not train in that cohort, or samples that are not whole lots.
    """
    if claim.round > plan.num_rounds:
        raise WorkError(f"a claim for round {claim.round} of {plan.num_rounds}")
    asked = {one.text for one in plan.architectures(claim.round, claim.cohort)}
    for architecture, samples in claim.work:
        if architecture not in asked:
            raise WorkError(f"round {claim.round} does not train {architecture[:40]}... in cohort {claim.cohort}")
        if samples % lot_samples:
            raise WorkError(f"{samples} samples are not whole lots of {lot_samples}")
    if claim.samples != claim.lots * lot_samples:
        raise WorkError(f"{claim.lots} lots of {lot_samples} are not {claim.samples} samples")
