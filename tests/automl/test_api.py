"""What ``import manta_swarm`` gives, used as a researcher does."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import manta_swarm as manta
from manta_swarm.automl import api
from manta_swarm.automl.data.images import ImageDataset
from manta_swarm.automl.models.supernet import Supernet
from manta_swarm.automl.search.evaluators import LocalEvaluator
from manta_swarm.automl.training.snapshot import save_snapshot
from manta_swarm.automl.training.update import State, state_digest

ROOT = Path(__file__).parents[2]
FEW = manta.Effort(population=4, generations=2)


@pytest.fixture
def snapshot(tmp_path: Path, supernet: Supernet, monkeypatch: pytest.MonkeyPatch) -> manta.Snapshot:
    """A snapshot of the tiny classifier, in the folder to work in."""
    monkeypatch.chdir(tmp_path)
    path = Path("run") / "round-00000020.safetensors"
    path.parent.mkdir()
    state = State(20, supernet.flat_weights_N.clone(), (torch.zeros(supernet.num_weights),))
    save_snapshot(path, state, {"supernet": "classifier-tiny", "dataset": "digits", "state": state_digest(state).hex()})
    return manta.open_snapshot(path)


def test_importing_the_package_loads_no_torch_and_says_what_it_has() -> None:
    program = """
import sys, manta_swarm
assert set(manta_swarm.__all__) <= set(dir(manta_swarm))
assert not {"torch", "numpy", "manta_swarm.automl"} & sys.modules.keys(), sys.modules.keys()
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=300).returncode == 0


def test_every_name_of_the_api_is_one_of_the_package_and_no_other() -> None:
    assert manta.__all__ == api.__all__
    assert all(getattr(manta, name) is getattr(api, name) for name in api.__all__)
    assert not hasattr(manta, "nothing")


def test_the_documents_example_runs_as_it_stands(
    snapshot: manta.Snapshot, few: ImageDataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(manta, "load_dataset", {"digits": few}.__getitem__)
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "researchers.md").read_text(encoding="utf-8"), re.M | re.S)
    said: dict[str, object] = {}
    exec(example, said)
    found, network = said["found"], said["network"]
    assert isinstance(found, manta.Found)
    assert isinstance(network, manta.ExportedNetwork)
    assert manta.macs(found.best.architecture, snapshot.space) <= 1.2e6
    assert network.description.architecture == found.best.architecture
    first, qualities, exported = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{found.best.architecture.text} ")
    assert eval(exported) == pytest.approx(eval(qualities)[0])
    assert (Path("exported") / "best" / "README.md").is_file()


def test_a_search_keeps_every_limit_and_is_the_same_by_an_evaluator_of_ones_own(snapshot: manta.Snapshot, few: ImageDataset) -> None:
    class Counting:
        """Measures as this process does, and counts."""

        def __init__(self) -> None:
            self.num_measured = 0
            self._local = LocalEvaluator(snapshot.supernet, few)

        def measure(self, architectures: Sequence[manta.Architecture], part: str) -> Iterator[manta.Measured]:
            self.num_measured += len(architectures)
            return self._local.measure(architectures, part)

    counting = Counting()
    found = manta.search(snapshot, None, evaluator=counting, max_macs=1.2e6, max_weights=8e4, effort=FEW)
    assert counting.num_measured >= 8
    assert all(manta.macs(each.architecture, snapshot.space) <= 1.2e6 for each in found.points)
    assert all(manta.num_weights(each.architecture, snapshot.space) <= 8e4 for each in found.points)
    again = manta.search(snapshot, few, max_macs=1.2e6, max_weights=8e4, effort=FEW)
    assert [each.architecture for each in again.points] == [each.architecture for each in found.points]
    assert again.best.architecture == found.best.architecture


def test_what_cannot_be_searched_is_said(snapshot: manta.Snapshot, digits: ImageDataset) -> None:
    with pytest.raises(manta.UserError, match="nearest feasible value"):
        manta.search(snapshot, digits, max_macs=10)
    with pytest.raises(ValueError, match="needs a latency table"):
        manta.search(snapshot, digits, max_latency_ms=1.0)
    with pytest.raises(ValueError, match="give a data set"):
        manta.search(snapshot, None)
    with pytest.raises(manta.UserError, match="no device 'toaster'"):
        manta.open_snapshot(snapshot.path, "toaster")
    with pytest.raises(ValueError, match="no int8 model"):
        manta.export(manta.cut(snapshot, snapshot.space.smallest(), digits), "out", formats=["int8"])
