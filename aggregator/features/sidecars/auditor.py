"""An operator's auditor beside the log: a sidecar (``manta-peer join --audit-only``) whose key, in DIR/auditor, the manifest names.

Its verdicts count as every named auditor's. It talks to the operator beside it first, and trains nothing. Whoever is admitted to a run,
its named auditors are.
"""

from collections.abc import Sequence
from pathlib import Path

from manta_swarm.aggregator.context import RunContext
from manta_swarm.aggregator.features.sidecars.keys import is_named
from manta_swarm.aggregator.features.sidecars.sidecar import Sidecar
from manta_swarm.aggregator.log.contents import AUDITOR
from manta_swarm.protocol.errors import UserError


class Auditor(Sidecar):
    """The auditor of one operator: it audits until the run is settled. The log goes on if the auditor's settings cannot be used."""

    def __init__(self, context: RunContext, share: float, *, data_root: Path | None) -> None:
        """Prepare one that takes this share of one core's time at most; ``data_root``: folder of data sets that come with no library."""
        data = () if data_root is None else ("--data-root", str(data_root))
        limits = ("--audit", f"{max(1, round(100 * share))}%", "--evaluation", "0%", "--threads", "1", "--gpus", "none")
        super().__init__(AUDITOR, context, ["--audit-only", *limits, *data])

    async def run(self, addresses: Sequence[str]) -> None:
        """See ``Sidecar``. Where the run names another auditor, or is settled, none is started."""
        context = self._context
        if context.ledger.settled:
            return
        if not is_named(context.directory, context.manifest.audit_rules):
            context.console.say("the run names another auditor than the one in this folder: none is started here")
            return
        try:
            await super().run(addresses)
        except UserError as error:
            context.console.say(f"{error}; this operator audits nothing until it is started again")
        finally:
            await self.end()
