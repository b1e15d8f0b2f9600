"""What audits begin with is handed out long after newcomers need it: states and bodies from the disk, and nothing else."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.audits.audits import Audits
from manta_swarm.aggregator.settings.sections import TrustSection
from manta_swarm.automl.training.update import state_piece_sizes
from manta_swarm.codec.coding import group_sizes
from manta_swarm.network.blobs import BlobStore
from manta_swarm.network.fetching import fetch
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import PublicKey
from tests.aggregator.contexts import context_of
from tests.aggregator.real_run import CONFIG, NUM_WEIGHTS, OPERATOR, PEERS, opened, play

AUDITED = CONFIG.model_copy(
    update={"trust": TrustSection(mode="audited", audit_percent=100, newcomer_percent=100, kept_rounds=3, pending_rounds=7)}
)


def test_old_states_and_bodies_of_what_is_audited_are_handed_out_from_the_disk(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", AUDITED)
    with run.log:
        play(run, 4)
        ledger = run.log.ledger
        audit = next(audit for audit in ledger.reputation.audits.values() if audit.round == 1)
        exchange = ledger.manifest.exchange
        state_sizes = state_piece_sizes(NUM_WEIGHTS, ledger.manifest.optimizer, exchange.local_steps)
        body_sizes = group_sizes(exchange.codec, NUM_WEIGHTS)

        async def story() -> None:
            network = MemoryNetwork()
            operator, auditor = (network.endpoint(PublicKey(each.public_key)) for each in (OPERATOR, PEERS[0]))
            context = replace(context_of(run, tmp_path, operator, OPERATOR), blob_store=BlobStore(max_bytes=0))
            audits = Audits(context, 1 << 30)
            await context.blob_store.serve(operator)
            await audits.serve()
            body = (await audits.brought.opened(audit)).contribution.body
            for round_ in (0, 2):
                blob = await fetch(auditor, ledger.state_at(round_), state_sizes, [operator.key], deadline_s=20, tries=2)
                assert blob.root == ledger.state_at(round_)
            blob = await fetch(auditor, body, body_sizes, [operator.key], deadline_s=20, tries=2)
            (kept,) = [kept for kept in run.bodies.read(1) if kept.header.contribution.digest == audit.work.contribution]
            assert blob.join() == kept.body
            next((tmp_path / "run").rglob("round-00000001.safetensors")).write_bytes(b"damaged")
            for root in (ledger.state_at(1), b"x" * 32):
                with pytest.raises(Unreachable):
                    await fetch(auditor, root, state_sizes, [operator.key], deadline_s=5, tries=1)
            await context.waiting.close()

        asyncio.run(story())
