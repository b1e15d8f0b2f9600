"""docs/verifier.py for tests: imported from beside the documents, and logs that it is given as exports."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.tiles import pack_bundle, tile_hashes, tiles_of
from tests.docs.logs import head_of, tree_of
from tests.documents import ROOT

VERIFIER = ROOT / "docs" / "verifier.py"
if str(VERIFIER.parent) not in sys.path:
    sys.path.append(str(VERIFIER.parent))
verifier: Any = importlib.import_module("verifier")
ledger: Any = importlib.import_module("verifier_ledger")
records: Any = importlib.import_module("verifier_records")
values: Any = importlib.import_module("verifier_values")


def fault_of(take: Callable[[], object], kind: type[Exception]) -> Exception | None:
    """Return the fault of a kind that something is refused with; None: it is taken."""
    try:
        take()
    except kind as fault:
        return fault
    return None


def check_whole(folder: Path, export: Path) -> None:
    """Assert that an aggregator's folder holds whole: bodies, means, states and credits; and an export made by command."""
    ledger, said = verifier.verify_all(folder, verifier.Asked(is_whole=True))
    assert dict(ledger.credits) == verify_directory(folder).credits
    exporting = [sys.executable, "-P", "-m", "manta_swarm.aggregator.cli", "ledger", "export", "--dir", str(folder), str(export)]
    subprocess.run(exporting, capture_output=True, check=True)
    checked = subprocess.run([sys.executable, str(VERIFIER), str(export)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout.splitlines()[0]) == (0, f"run: {said['run']}")


def export_of(folder: Path, signed: SignedManifest, entries: Sequence[bytes], operator: Identity) -> None:
    """Write an export of a log of these entries, whatever they are, whose head ``operator`` signs."""
    tree = tree_of(entries)
    for tile in tiles_of(len(entries)):
        path = folder / tile.path
        path.parent.mkdir(parents=True, exist_ok=True)
        bundle = entries[tile.first : tile.first + tile.width]
        path.write_bytes(pack_bundle(bundle) if tile.level is None else tile_hashes(tree, tile))
    (folder / "checkpoint").write_text(head_of(entries, signed.run, operator))
    (folder / "manifest.cbor").write_bytes(pack(signed))
