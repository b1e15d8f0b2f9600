"""docs/verifier.py refuses each kind of forged folder (``tests.docs.forgeries``), and says what is wrong."""

import re
from pathlib import Path

import pytest

from manta_swarm.aggregator.follow.replay import replay_directory
from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.protocol.errors import LedgerError, StorageError
from tests.docs.forgeries import FORGERIES
from tests.docs.forging import Folder, copied, prepared
from tests.docs.logs import OPERATOR
from tests.docs.verifiers import verifier
from tests.docs.whole import RUNS, WholeRun


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WholeRun]:
    """A folder that holds, and its run."""
    folder = tmp_path_factory.mktemp("original")
    return folder, prepared(folder)


@pytest.fixture
def folder(original: tuple[Path, WholeRun], tmp_path: Path) -> Folder:
    path, run = original
    return copied(path / "run", tmp_path, OPERATOR, run)


def test_the_folder_holds_before_it_is_forged(folder: Folder) -> None:
    ledger, said = verifier.verify_all(folder.path, verifier.Asked(is_whole=True, **folder.asked))
    assert replay_directory(folder.path).rounds == ledger.round == folder.last
    assert (ledger.is_settled, sum(ledger.credits.values())) == (True, sum(verify_directory(folder.path).credits.values()))
    assert {kind: said[kind].partition(" ")[0] for kind in ("entries", "inclusion", "receipts", "bodies", "means", "states")} == {
        "entries": "29",
        "inclusion": "29",
        "receipts": "1",
        "bodies": "12",
        "means": "6",
        "states": "6",
    }


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_folder_is_refused_and_what_is_wrong_is_named(folder: Folder, name: str) -> None:
    forgery = FORGERIES[name]
    forgery.forge(folder)
    if forgery.rule != "C1":  # they are those of the log that was
        folder.asked.pop("credits")
    with pytest.raises(verifier.Refused) as caught:
        verifier.verify_all(folder.path, verifier.Asked(is_whole=True, **folder.asked))
    said = caught.value
    where = Path(said.where).name if said.where.startswith("/") else said.where
    assert (said.rule, where) == (forgery.rule, forgery.where), str(said)
    assert forgery.words in str(said)


ALIKE = [
    name
    for name, forgery in FORGERIES.items()
    if re.match("entry|round", forgery.where) and forgery.rule not in ("D3", "U3") and name != "a_claim_beside_a_body_is_another"
]


@pytest.mark.parametrize("name", ALIKE)
def test_the_program_too_refuses_what_is_wrong_in_entries_means_and_states(folder: Folder, name: str) -> None:
    FORGERIES[name].forge(folder)
    with pytest.raises((StorageError, LedgerError)):
        replay_directory(folder.path)


def test_there_are_twenty_kinds_of_forgeries_with_the_operators_key_and_twenty_without() -> None:
    sealed = [forgery.is_sealed for forgery in FORGERIES.values()]
    assert min(sealed.count(True), sealed.count(False)) >= 20


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run_holds(tmp_path: Path, name: str) -> None:
    run = RUNS[name]()
    run.write(tmp_path / "run", {0: run.states()[0]})
    ledger, _ = verifier.verify_all(tmp_path / "run", verifier.Asked(is_whole=True))
    assert dict(ledger.credits) == run.log.ledger.credits()
