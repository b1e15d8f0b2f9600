import pytest
import torch

from manta_swarm.peer.workers.devices import Device, choose_devices
from manta_swarm.protocol.errors import UserError


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


def computer_with(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(("gpus", "present", "reason"), [("none", 2, "as --gpus says"), ("all", 0, "no GPU was found")])
def test_without_a_gpu_one_worker_computes_in_the_peer_s_own_process(
    monkeypatch: pytest.MonkeyPatch, gpus: str, present: int, reason: str
) -> None:
    computer_with(monkeypatch, present)
    devices = choose_devices(gpus, None)
    assert (devices.workers, devices.is_in_process, devices.name) == ((Device("cpu", 3),), True, "cpu")
    assert devices.description == f"the CPU with 3 threads ({reason})"
    assert choose_devices(gpus if present else "none", 1).is_in_process


@pytest.mark.parametrize(("gpus", "names"), [("all", ["cuda:0", "cuda:1", "cuda:2"]), ("0,2", ["cuda:0", "cuda:2"]), ("1", ["cuda:1"])])
def test_each_gpu_has_a_worker_process_and_a_number_is_an_index(monkeypatch: pytest.MonkeyPatch, gpus: str, names: list[str]) -> None:
    computer_with(monkeypatch, 3)
    devices = choose_devices(gpus, None)
    assert [worker.name for worker in devices.workers] == names
    assert (devices.is_in_process, devices.name) == (False, ",".join(names))
    assert sum(worker.threads for worker in devices.workers) == 3
    assert devices.description.startswith("GPU")


@pytest.mark.parametrize(
    ("present", "gpus", "words"), [(0, "0", "no GPU that torch can use; give --gpus none"), (1, "1", "one GPU, 0"), (2, "0,5", "0 to 1")]
)
def test_a_gpu_that_is_not_there_is_said_with_what_there_is(monkeypatch: pytest.MonkeyPatch, present: int, gpus: str, words: str) -> None:
    computer_with(monkeypatch, present)
    with pytest.raises(UserError, match=f"GPU {gpus[-1]} is not there: .*{words}"):
        choose_devices(gpus, None)


@pytest.mark.parametrize(
    ("workers", "threads", "words"), [(2, [2, 1], "1 or 2 threads"), (3, [1, 1, 1], "1 thread "), (5, [1] * 5, "1 thread ")]
)
def test_workers_share_the_threads_of_the_cpu_and_have_one_each_at_least(
    monkeypatch: pytest.MonkeyPatch, workers: int, threads: list[int], words: str
) -> None:
    computer_with(monkeypatch, 1)
    devices = choose_devices("none", workers)
    assert [worker.threads for worker in devices.workers] == threads
    assert not devices.is_in_process
    assert f"{workers} worker processes of {words}" in devices.description


def test_workers_of_the_cpu_beside_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    computer_with(monkeypatch, 2)
    with pytest.raises(UserError, match="leave --workers out, or give --gpus none too"):
        choose_devices("all", 2)
