"""Writes small files of the present version in every format that people keep, to ``tests/formats/VERSION``: python -m tests.formats.make

Nothing in them is random or measured: made again, they are the same. Until a version is released, the change that alters a format makes its
folder anew; from then on it is never touched again, and ``test_formats.py`` shows that later versions still open it.
"""

import json
import shutil
import sys
import tomllib
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.log.storage import read_manifest
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.settings.config import RunConfig, write_run_file
from manta_swarm.automl.evaluation.samples import Measured
from manta_swarm.automl.search.journal import FileJournal, Settings
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import TINY
from manta_swarm.automl.training.snapshot import save_snapshot
from manta_swarm.automl.training.update import State, state_digest
from manta_swarm.peer.credit.payout_receipts import PayoutReceiptFolder
from manta_swarm.peer.features.private.noise import NoiseAccount
from manta_swarm.peer.store import PAYOUT_RECEIPTS, KeptContribution, KeptResiduals, PeerStore
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.payout_receipts import PayoutReceipt
from manta_swarm.protocol.records import Header, Listing, entry_of, open_entry
from manta_swarm.protocol.rewards import RoundContributions
from manta_swarm.protocol.signing import Identity, peer_name, sha256
from manta_swarm.protocol.versions import PROTOCOL
from tests.contributions import PEERS, header_of, round_of
from tests.formats.networks import write_networks
from tests.latency_table import table_of
from tests.runs import manifest_of

ROOT = Path(__file__).parent
OPERATOR, PEER = Identity(b"\x01" * 32), PEERS[0]
ROUNDS = 2
STATE = State(7, torch.tensor([1.0, -2.5, 2.0**-149]), (torch.tensor([0.5, 0.0, -0.0]),), bytes(range(32)))
RESIDUAL = np.array([0.25, -1.0, 3.0], np.float32)
SEARCH: Settings = {"supernet": TINY.name, "round": 7, "macs": 1.2e6, "seed": 0, "samples": None}
MEASURED = Measured({"accuracy": 0.9375, "loss": 0.25}, array("i", [*[2000] * 15, 10000]), array("i", [15]))
SIGMAS, DELTA = (4.0, 4.0, 8.0), 1e-5
SETTINGS = """\
initial_peers = ["/ip4/203.0.113.7/tcp/31000/p2p/12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"]
cohort = "home"
listen = ["none"]
gpus = "0,1"
schedule = "22:00-07:00"
duty = "60%"
"""


def version() -> str:
    """Return the version in pyproject.toml."""
    return str(tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]["version"])


def make(folder: Path, *, with_graphs: bool = True) -> None:
    """Write the files, and what they hold; the graphs of networks, which take a while, only if asked."""
    folder.mkdir(parents=True)
    expected = {"protocol": PROTOCOL, **_log(folder / "log"), **_peer(folder / "peer"), "state": state_digest(STATE).hex()}
    expected |= {"epsilon": _noise(folder / "peer" / "privacy"), **_networks(folder / "exported", with_graphs=with_graphs)}
    save_snapshot(folder / "state.safetensors", STATE, {"supernet": TINY.name, "dataset": "digits"})
    table_of().save(folder / "table.json")
    write_run_file(folder / "run.toml", RunConfig.thin("stereo"))
    with FileJournal(folder / "search.jsonl", TINY, SEARCH) as journal:
        journal.add("search", TINY.smallest(), MEASURED)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def _log(folder: Path) -> dict[str, object]:
    manifest = manifest_of(OPERATOR, costs=cost_table(TINY), num_rounds=100)
    with Log.create(folder, SignedManifest.sign(manifest, OPERATOR), OPERATOR) as log:
        for _ in range(ROUNDS):
            commit(log, PEERS[:3])
    (folder / "log.lock").unlink()
    (folder / "identity.key").write_bytes(OPERATOR.to_libp2p())
    found = verify_directory(folder)
    credits_ = {peer_name(key): amount for key, amount in sorted(found.credits.items())}
    return {"run": found.run.hex(), "rounds": found.rounds, "root": found.root.hex(), "credits": credits_}


def commit(log: Log, peers: Sequence[Identity]) -> None:
    """Commit a round of a microbatch of each architecture from each of these."""
    round_ = log.ledger.round + 1
    microbatches = (1,) * len(log.ledger.training_spec.costs(round_, "here"))
    headers = [header_of(log.ledger, peer, microbatches=microbatches) for peer in peers]
    listed = [log.ledger.listed(header, round_) for header in headers]
    log.commit([*map(entry_of, headers), entry_of(round_of(log.ledger, listed))])


def _peer(folder: Path) -> dict[str, object]:
    store = PeerStore(folder)
    store.identity_path.write_bytes(PEER.to_libp2p())
    (folder / "peer.toml").write_text(SETTINGS)
    with Log.open(folder.parent / "log", OPERATOR) as log:
        run, ledger = log.ledger.run, log.ledger
        microbatches = (1,) * len(ledger.training_spec.costs(ledger.round + 1, "here"))
        header = header_of(ledger, PEER, microbatches=microbatches)
        payout_receipt = _payout_receipt(log)
    (folder.parent / "log" / "log.lock").unlink()
    payout_receipts = PayoutReceiptFolder(store.run_path(run) / PAYOUT_RECEIPTS)
    payout_receipts.begin(read_manifest(folder.parent / "log"))
    payout_receipts.keep(ROUNDS, payout_receipt)
    store.remember_run(run, ["/ip4/203.0.113.7/tcp/31000/p2p/" + peer_name(OPERATOR.public_key)])
    store.signed(run).save(KeptContribution(header, b"a body"))
    digest = sha256(RESIDUAL.tobytes())
    store.residual(run, digest).write(RESIDUAL.tobytes())
    store.save_residuals(run, KeptResiduals(digest, ROUNDS, ((header.contribution.digest, b""),)))
    return {"peer": peer_name(PEER.public_key), "signed": header.contribution.digest.hex(), "residual": digest.hex()}


def _payout_receipt(log: Log) -> PayoutReceipt:
    """Return the payout receipt of ``PEER`` for the last round."""
    index = log.ledger.index_at(ROUNDS)
    table = log.ledger.table_at(ROUNDS)
    assert index is not None
    assert table is not None
    place = next(place for place, one in enumerate(table) if PEER.public_key in one.keys)
    first, size = index - len(table), log.head.size
    entries = tuple(log.entries(first, len(table)))
    header = open_entry(entries[place])
    assert isinstance(header, Header)
    listing = Listing(log.receipt(index), log.included(first + place, size))
    whole = RoundContributions(entries, log.range_proof(first, index, size))
    return PayoutReceipt(listing, header.claims[0], (whole,), (log.ledger.shares(table)[PEER.public_key],))


def _noise(path: Path) -> float:
    account = NoiseAccount(path, DELTA)
    for sigma in SIGMAS:
        account.spend(sigma)
    return round(account.epsilon(), 3)


def _networks(folder: Path, *, with_graphs: bool) -> dict[str, object]:
    folder.mkdir()
    return write_networks(folder, f"manta-swarm {version()}", with_graphs=with_graphs)


if __name__ == "__main__":
    present = ROOT / version()
    if present.exists() and "--again" not in sys.argv:
        sys.exit(f"{present} is there: with --again it is made anew, which only an unreleased version's may be")
    shutil.rmtree(present, ignore_errors=True)
    make(present)
    print(f"wrote {present}")
