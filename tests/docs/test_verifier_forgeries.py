"""docs/verifier.py refuses each kind of forged folder (``tests.docs.forgeries``), and says what is wrong."""

import re
from pathlib import Path
from typing import Any

import pytest

from manta_swarm.aggregator.log.verify import verify_directory
from manta_swarm.aggregator.states.replay import replay_directory
from manta_swarm.protocol.errors import LedgerError, StorageError
from tests.docs.forgeries import FORGERIES
from tests.docs.forging import Folder, copied, prepared
from tests.docs.logs import OPERATOR
from tests.docs.verifiers import fault_of, verifier
from tests.docs.whole import WholeRun


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


def refusal(folder: Folder, name: str) -> Any:
    """Forge a folder; return what the verifier refuses it with."""
    FORGERIES[name].forge(folder)
    if FORGERIES[name].rule != "C1":  # they are those of the log that was
        folder.asked.pop("credits")
    return fault_of(lambda: verifier.verify_all(folder.path, verifier.Asked(is_whole=True, **folder.asked)), verifier.Refused)


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_folder_is_refused_and_what_is_wrong_is_named(folder: Folder, name: str) -> None:
    forgery, said = FORGERIES[name], refusal(folder, name)
    where = Path(said.where).name if said.where.startswith("/") else said.where
    assert (said.rule, where) == (forgery.rule, forgery.where), str(said)
    assert forgery.words in str(said)
    if re.match("entry|round", where) and forgery.rule not in ("D3", "U3") and name != "a_claim_beside_a_body_is_another":
        with pytest.raises((StorageError, LedgerError)):  # the program too refuses what is wrong in entries, means and states
            replay_directory(folder.path)


def test_there_are_twenty_kinds_of_forgeries_with_the_operators_key_and_twenty_without() -> None:
    sealed = [forgery.is_sealed for forgery in FORGERIES.values()]
    assert min(sealed.count(True), sealed.count(False)) >= 20


def test_the_command_says_what_holds_and_what_does_not(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*arguments: str | Path) -> tuple[int, list[str], list[str]]:
        monkeypatch.setattr("sys.argv", ["verifier.py", *map(str, arguments)])
        code, said = verifier.main(), capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    code, lines, _ = ended(folder.path, "--receipt", folder.asked["receipts"][0], "--credits", folder.asked["credits"], "--whole")
    assert (code, len(lines)) == (0, 12)
    assert lines[2].startswith("entries: 29 keep the rules, up to round 6 of 6, settled (12 contributions, 6 rounds, 1 settlement, ")
    folder.write("credits", b"{}")
    assert ended(folder.path, "--credits", folder.path / "credits")[0] == 2
    FORGERIES["the_bodies_of_a_round_are_missing"].forge(folder)
    assert ended(folder.path)[0] == 0
    code, lines, _ = ended(folder.path, "--whole")
    assert (code, lines) == (1, ["refused: round 6: D3: a whole folder has the bodies of each round (of 5 of 6 rounds)"])
    code, lines, errors = ended(folder.path / "nothing")
    assert (code, lines, len(errors)) == (2, [], 1)
