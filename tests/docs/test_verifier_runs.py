"""docs/verifier.py on an audited run of real programs: its folder holds whole, with what is said of credits; forged ones are refused.

Runs that are not audited are checked where they are made, in ``tests.network.test_local_swarm``.
"""

from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.log.storage import log_key
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.sections import AggregatorSection, TrustSection
from manta_swarm.protocol.signing import Identity
from tests.docs.forgeries import FORGERIES
from tests.docs.forging import NotOfThisRun, copied, say
from tests.docs.test_verifier_forgeries import refusal
from tests.docs.verifiers import verifier
from tests.network.processes import DEADLINE_S, LITTLE_WORK, Programs, small_run

pytestmark = pytest.mark.swarm

ROUNDS = 3


def test_an_audited_run_of_real_programs_holds_to_its_settlement(tmp_path: Path) -> None:
    short: dict[str, Any] = {"first_open_s": 3, "min_open_s": 3, "max_open_s": 6, **LITTLE_WORK}
    sections = {
        "trust": TrustSection(
            mode="audited",
            proven_after=2,
            audit_percent=100,
            newcomer_percent=100,
            kept_rounds=3,
            pending_rounds=6,
            settle_s=DEADLINE_S / 2,
        ),
        "aggregator": AggregatorSection(audit_share=1.0),
    }
    with Programs(tmp_path, small_run(rounds=ROUNDS, **short).model_copy(update=sections)) as programs:
        programs.start_aggregator()
        programs.wait_until(lambda: bool(programs.status("aggregator/auditor")), "its auditor looks on")  # rounds do not wait for audits
        for name in ("one", "two"):
            programs.start_peer(name, name)
        programs.wait_until(lambda: bool(programs.status("aggregator").get("settled")), "the run is settled")
    folder, operator = tmp_path / "aggregator", log_key(tmp_path / "aggregator")
    say(folder, operator)
    payouts = tuple(tmp_path.glob("*/runs/*/payout_receipts"))
    assert payouts
    asked = verifier.Asked(receipts=(tmp_path / "receipt",), payouts=payouts, credits=tmp_path / "credits.json", is_whole=True)
    ledger, _ = verifier.verify_all(folder, asked)
    assert (ledger.round, ledger.is_settled) == (ROUNDS, True)
    assert dict(ledger.credits) == verify_directory(folder).credits
    assert sum(ledger.credits.values()) > 0  # nobody is proven: what was paid was found good
    assert not ledger.guilty
    assert forged(folder, tmp_path, operator) >= 45


def forged(folder: Path, to: Path, operator: Identity) -> int:
    """Forge copies of a folder in each way that needs no peer's key; return in how many, all of which are refused as they have to be."""
    found = dict[str, tuple[str, str | None]]()
    for name, forgery in FORGERIES.items():
        (to / name).mkdir()
        try:
            refused = refusal(copied(folder, to / name, operator), name)
        except NotOfThisRun:
            continue
        found[name] = forgery.rule, refused and refused.rule
    assert not {name: rules for name, rules in found.items() if rules[0] != rules[1]}
    return len(found)
