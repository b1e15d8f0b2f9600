"""Whether a claim's key skipped microbatches that pay less than those it trained: a gap is nobody's fault, a choice is.

Microbatches may be missing for honest reasons: a gradient that is not finite, samples that are not here, workers that were lost. None of
these picks architectures by their price. So where far fewer of a cheaper one were trained than of a dearer one, one of the skipped is
computed.
"""

from manta_swarm.automl.training.schedule import Plan
from manta_swarm.protocol.lots import place_of_lot
from manta_swarm.protocol.manifest import Manifest
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.rewards import architecture_cost

_FREE = 4  # missing microbatches of one architecture of which nobody asks why


def skipped_cheap(manifest: Manifest, plan: Plan, claim: Claim, step: int) -> int | None:
    """Return the index of a microbatch that a step skipped though its claim has dearer ones; None: nothing was picked by its price.

    Nobody is asked about microbatches after the last one, or between two steps, nor about missing ones of the dearest architecture: light
    contributors train the cheapest one's alone.
    """
    last = claim.steps[-1].last
    if claim.lots + _FREE > last:
        return None
    costs = [architecture_cost(each.text, manifest.cost_table()) for each in plan.architectures(claim.round, claim.cohort)]
    count = len(costs)
    sweeps, rest = divmod(last + 1, count)  # an index may be any number: nothing here may take as long as it is large
    begun = {place_of_lot(count, claim.base, claim.key, index) for index in range(rest)}
    due = [sweeps + (place in begun) for place in range(count)]
    shares = [done / of if of else 1.0 for done, of in zip(claim.work, due, strict=True)]
    picked = {
        place
        for place in range(count)
        if due[place] - claim.work[place] > _FREE
        and any(costs[place] < costs[other] and 2 * shares[place] < shares[other] for other in range(count))
    }
    trained = claim.steps[step]
    skipped = trained.skipped
    if trained.every > 1:  # of each sweep all the others: the first one shows them
        skipped = tuple(index for index in range(trained.first, min(trained.last, trained.first + count)) if index not in trained)
    return next((index for index in skipped if place_of_lot(count, claim.base, claim.key, index) in picked), None)
