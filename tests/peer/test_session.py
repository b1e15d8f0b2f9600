import json
from pathlib import Path

import pytest
import torch

from peer.config import PeerConfig
from peer.finding import find_addresses
from peer.session import choose_device
from peer.store import PeerStore
from protocol.errors import UserError
from protocol.signing import sha256
from swarm.local_runs import LocalRun, find, listed

RUN, OTHER_RUN = sha256(b"run"), sha256(b"other run")
GIVEN, LAST, LOCAL = ("/given",), ("/last",), ("/local", "/local/too")


@pytest.fixture
def store(tmp_path: Path) -> PeerStore:
    return PeerStore(tmp_path / "peer")


def local(run: bytes = RUN) -> LocalRun:
    return LocalRun(run.hex(), "digits", LOCAL)


def test_an_address_that_was_given_beats_everything(store: PeerStore) -> None:
    store.remember_run(OTHER_RUN, LAST)
    with listed(local()):
        assert find_addresses(PeerConfig(initial_peers=GIVEN), store.last_run()) == (GIVEN, None)
        assert find_addresses(PeerConfig(initial_peers=GIVEN, run=RUN.hex()), store.last_run()) == (GIVEN, RUN.hex())


def test_the_run_joined_last_beats_an_aggregator_on_this_computer_and_must_be_that_run(store: PeerStore) -> None:
    store.remember_run(OTHER_RUN, LAST)
    with listed(local()):
        assert find_addresses(PeerConfig(), store.last_run()) == (LAST, OTHER_RUN.hex())


def test_an_aggregator_on_this_computer_is_found_and_must_be_that_run(store: PeerStore) -> None:
    with listed(local()):
        assert find_addresses(PeerConfig(), store.last_run()) == (LOCAL, RUN.hex())


def test_a_run_that_is_named_is_found_wherever_it_is_known_from(store: PeerStore) -> None:
    store.remember_run(OTHER_RUN, LAST)
    with listed(local()):
        assert find_addresses(PeerConfig(run=RUN.hex()), store.last_run()) == (LOCAL, RUN.hex())
        assert find_addresses(PeerConfig(run=OTHER_RUN.hex()), store.last_run()) == (LAST, OTHER_RUN.hex())
        with pytest.raises(UserError, match="no run was found"):
            find_addresses(PeerConfig(run=sha256(b"a third").hex()), store.last_run())


def test_with_nothing_to_go_by_the_person_hears_what_to_do(store: PeerStore) -> None:
    with pytest.raises(UserError, match=r"--initial-peers .*MANTA_INITIAL_PEERS.* manta-aggregator start"):
        find_addresses(PeerConfig(), store.last_run())


def test_what_a_dead_aggregator_left_is_no_run(store: PeerStore, environment: Path) -> None:
    directory = environment / "state" / "aggregators"
    directory.mkdir(parents=True)
    (directory / "1234.json").write_text(json.dumps({"run": RUN.hex(), "name": "digits", "addresses": LOCAL}))
    with pytest.raises(UserError, match="no run was found"):
        find_addresses(PeerConfig(), store.last_run())
    assert list(directory.iterdir()) == []


def test_an_aggregator_is_listed_as_long_as_it_runs() -> None:
    assert find() == []
    with listed(local()):
        assert find() == [local()]
    assert find() == []


@pytest.mark.parametrize("gpus", ["none", "0"])
def test_a_gpu_that_is_not_wanted_is_left_alone(monkeypatch: pytest.MonkeyPatch, gpus: str) -> None:
    _computer_with(monkeypatch, 2)
    device = choose_device(gpus)
    assert device.name == "cpu"
    assert "as --gpus says" in device.description


@pytest.mark.parametrize("gpus", ["all", "1", "4"])
def test_without_a_gpu_the_cpu_computes_and_the_person_hears_it(monkeypatch: pytest.MonkeyPatch, gpus: str) -> None:
    _computer_with(monkeypatch, 0)
    device = choose_device(gpus)
    assert device.name == "cpu"
    assert "no GPU was found" in device.description


def test_one_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    _computer_with(monkeypatch, 1)
    device = choose_device("all")
    assert device.name == "cuda:0"
    assert device.description == "one GPU, Card 0"


def test_of_several_gpus_one_computes_and_the_person_hears_that_the_others_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    _computer_with(monkeypatch, 3)
    device = choose_device("all")
    assert device.name == "cuda:0"
    assert "the other 2 stay idle" in device.description


def _computer_with(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"Card {index}")
