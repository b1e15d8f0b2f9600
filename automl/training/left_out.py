"""Whether a claim's key left out lots that pay less than those it did: a gap is nobody's fault, a choice is.

Lots may be missing for honest reasons: a gradient that is not finite, samples that are not here, workers that were lost. None of these
picks architectures by their price. So where far fewer of a cheaper one were done than of a dearer one, one of the missing is computed.
"""

from collections.abc import Sequence

from automl.training.schedule import Plan
from protocol.lots import place_of_lot
from protocol.manifest import Manifest
from protocol.records import Claim, LotRecord
from protocol.rewards import architecture_cost

_FREE = 4  # missing lots of one architecture of which nobody asks why


def left_out(manifest: Manifest, plan: Plan, claim: Claim, records: Sequence[LotRecord], step: int) -> LotRecord | None:
    """Return what would be the record of a lot of ``step`` that is missing though dearer ones are not; None: nothing was picked.

    ``records`` are those that ``automl.training.auditing.check_records`` lets pass. Nobody is asked about lots after the last one, nor
    about missing lots of the dearest architecture: light contributors do the cheapest one's alone.
    """
    if len(records) + _FREE > records[-1].index:
        return None
    architectures = [each.text for each in plan.architectures(claim.round, claim.cohort)]
    count = len(architectures)
    costs = [architecture_cost(each, manifest.cost_table()) for each in architectures]
    sweeps, rest = divmod(records[-1].index + 1, count)  # an index may be any number: nothing here may take as long as it is large
    begun = {place_of_lot(count, claim.base, claim.key, index) for index in range(rest)}
    due = [sweeps + (place in begun) for place in range(count)]
    shares = [done / of if of else 1.0 for done, of in zip(claim.work, due, strict=True)]
    picked = {
        place
        for place in range(count)
        if due[place] - claim.work[place] > _FREE
        and any(costs[place] < costs[other] and 2 * shares[place] < shares[other] for other in range(count))
    }
    if not picked:
        return None
    there = {record.index for record in records}
    of_step = [record.index for record in records if record.step == step]
    for index in range(min(of_step), max(of_step)):  # of each sweep one at least is picked: as many sweeps as there are records, and one
        place = place_of_lot(count, claim.base, claim.key, index)
        if index not in there and place in picked:
            return LotRecord(step, index, architectures[place], manifest.lot_samples, "0", b"")
    return None
