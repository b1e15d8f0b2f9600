from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from manta_swarm.automl.cli import main
from manta_swarm.automl.export.files import TOLERANCE, exported_files, open_exported
from manta_swarm.automl.forms import PTE, check_targets
from manta_swarm.automl.models.networks import deployed
from manta_swarm.protocol.errors import UserError
from tests.automl.export.exports import random_subnet


@pytest.mark.parametrize("task", ["classification", "stereo"])
def test_a_program_for_executorch_computes_what_the_network_computes_and_says_what_it_is(task: str) -> None:
    pytest.importorskip("executorch", reason="the extra executorch is not installed")
    from manta_swarm.automl.export.pt2 import own_pte

    subnet = random_subnet(task)
    files, differences = exported_files(subnet, {PTE: "net.pte"})
    run, description = own_pte(files["net.pte"])
    assert description == subnet.description
    generator = torch.Generator().manual_seed(4)
    inputs = [torch.rand(2, *description.input_shape, generator=generator) for _ in description.input_names]
    expected = deployed(subnet.network, task)(*inputs)
    assert (run(*inputs) - expected).abs().max() <= TOLERANCE * max(1.0, float(expected.abs().max()))
    assert 0.0 < differences[PTE] < 1e-3


def test_without_executorch_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manta_swarm.automl.forms.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'manta-swarm\[executorch\]'"):
        check_targets(tmp_path, "net", [PTE], replace=False)


def test_a_program_for_executorch_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(b"anything")
    with pytest.raises(UserError, match="is not opened here"):
        open_exported(path)
    result = CliRunner().invoke(main, ["evaluate", str(path)])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
