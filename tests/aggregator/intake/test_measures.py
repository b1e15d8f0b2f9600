"""What an aggregator takes of its peers' words on the model, and what it makes of them."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.intake.measures import Measures
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import EncodingError, LedgerError, SignatureError
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.private import AccuracySpread, Measure, PrivateData
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.contributions import PEERS, commit, header_of
from tests.protocol.ledgers import ledger_of


@pytest.fixture
def ledger() -> Ledger:
    """The ledger of a run with private data, in whose round 1 three peers were."""
    made = ledger_of(data="private", private=(PrivateData(("cat", "dog"), 0, 25),))
    commit(made, [header_of(made, peer) for peer in PEERS[:3]])
    return made


def said(ledger: Ledger, peer: Identity, largest: int, *, smallest: int = 0, samples: int = 100, round: int = 1) -> bytes:
    return pack(Signed.sign(Measure(ledger.run, peer.public_key, round, samples, largest, smallest), peer))


def test_the_newest_word_of_each_peer_counts_alike_and_survives_a_restart(tmp_path: Path, ledger: Ledger) -> None:
    measures = Measures(tmp_path / "measures")
    assert measures.summed_up() is None
    for peer, largest, samples in ((PEERS[0], 10, 100), (PEERS[1], 8, 10), (PEERS[2], 500, 1000), (PEERS[0], 90, 100)):
        measures.take(PublicKey(peer.public_key), said(ledger, peer, largest, samples=samples), ledger)
    measures.take(PublicKey(PEERS[0].public_key), said(ledger, PEERS[0], 0, round=0), ledger)  # older: passed over
    measures.save()
    for kept in (measures, Measures(tmp_path / "measures")):
        found = kept.summed_up()
        assert found is not None
        assert (found.peers, found.samples, found.first_round, found.last_round) == (3, 1110, 1, 1)
        assert found.largest == AccuracySpread(0.5, 0.8, 0.9)
        assert found.smallest == AccuracySpread(0, 0, 0)
        assert "on 1110 held-out images of 3 peers, as they say" in found.words()
        assert "largest=50.0% / 80.0% / 90.0%" in found.words()


def test_what_is_not_that_peers_word_on_this_run_is_refused(tmp_path: Path, ledger: Ledger) -> None:
    measures = Measures(tmp_path / "measures")
    alice, other = PublicKey(PEERS[0].public_key), ledger_of(seed=5)
    stranger = PublicKey(PEERS[5].public_key)
    for caller, data, says in (
        (PublicKey(PEERS[1].public_key), said(ledger, PEERS[0], 1), "another's name"),
        (alice, said(other, PEERS[0], 1), "another run"),
        (alice, said(ledger, PEERS[0], 1, round=2), "not committed"),
        (stranger, said(ledger, PEERS[5], 1), "has earned nothing"),
    ):
        with pytest.raises(LedgerError, match=says):
            measures.take(caller, data, ledger)
    with pytest.raises(EncodingError):
        measures.take(alice, b"\x80", ledger)
    forged = pack(Signed.sign(Measure(ledger.run, alice, 1, 10, 1, 1), PEERS[1]))
    with pytest.raises(SignatureError):
        measures.take(alice, forged, ledger)
    assert measures.summed_up() is None


def test_in_a_run_whose_data_are_shared_nobody_has_images_of_its_own(tmp_path: Path) -> None:
    shared = ledger_of()
    commit(shared, [header_of(shared, PEERS[0])])
    with pytest.raises(LedgerError, match="nobody has data of its own"):
        Measures(tmp_path / "measures").take(PublicKey(PEERS[0].public_key), said(shared, PEERS[0], 1), shared)


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "measures").write_bytes(b"junk")
    assert Measures(tmp_path / "measures").summed_up() is None
