import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from manta_swarm.automl.commands.find import find
from manta_swarm.automl.environment import wait_asleep

CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOSEN:
        monkeypatch.setenv(name, "")  # is put back afterwards, whatever the tests do
        monkeypatch.delenv(name)


@pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP")
def test_threads_of_torch_wait_asleep_where_it_is_said_before_torch_is_loaded() -> None:
    """What torch has its threads from is loaded alone: torch would load it first of all."""
    package = Path(torch.__file__).parent
    library = next(path for folder in (package / "lib", package.with_name("torch.libs")) for path in folder.glob("libgomp*"))
    program = f"import ctypes; from manta_swarm.automl.environment import wait_asleep; wait_asleep(); ctypes.CDLL({str(library)!r})"
    environment = {**os.environ, "OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=True, env=environment, timeout=300)
    assert "GOMP_SPINCOUNT = '0'" in done.stderr


@pytest.mark.parametrize("name", CHOSEN)
def test_what_a_person_has_chosen_holds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "active")
    wait_asleep()
    assert {each: os.environ.get(each) for each in CHOSEN} == {**dict.fromkeys(CHOSEN), name: "active"}


def test_a_search_says_so_before_anything_else() -> None:
    assert CliRunner().invoke(find, []).exit_code == 2
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
