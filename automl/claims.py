"""Which work a claim may state: the round's architectures in the claim's cohort, in lots of the manifest's size."""

from automl.schedule import round_architectures
from automl.space import space_named
from protocol.errors import RemoteFault
from protocol.records import Claim, Manifest


class WorkError(RemoteFault):
    """A claim of work that the run did not ask for."""


def check_work(manifest: Manifest, claim: Claim) -> None:
    """Check what a claim says it trained, as far as the claim alone shows it.

    Raises:
        WorkError: an architecture that the round does not train in that cohort, or samples that are not whole lots.
    """
    space = space_named(manifest.supernet)
    asked = {one.text for one in round_architectures(space, manifest.seed, claim.round, manifest.algorithm, claim.cohort)}
    for architecture, samples in claim.work:
        if architecture not in asked:
            raise WorkError(f"round {claim.round} does not train {architecture[:40]}... in cohort {claim.cohort}")
        if samples % manifest.lot_samples:
            raise WorkError(f"{samples} samples are not whole lots of {manifest.lot_samples}")
    if claim.samples != claim.lots * manifest.lot_samples:
        raise WorkError(f"{claim.lots} lots of {manifest.lot_samples} are not {claim.samples} samples")
