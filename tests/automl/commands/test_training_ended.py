"""manta-search train, ended by hand."""

import signal
from pathlib import Path

from tests.command import Home, environment, home
from tests.network.processes import wait_for
from tests.peer.forked_home import ForkedHome

__all__ = ["environment", "home"]


def test_a_second_ctrl_c_ends_a_round_that_takes_for_ever(home: Home, tmp_path: Path) -> None:
    out, home = tmp_path / "out", ForkedHome(home.directory, home.temporary)
    process = home.start("manta_swarm.automl.cli", "train", "--out", out, "--target-batch", str(10**12), "--threads", "1")
    wait_for(lambda: (out / "round-00000000.safetensors").exists(), "the first state is kept")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "press Ctrl-C again to stop at once" not in (line := process.stderr.readline()):
        assert line, home.end_of(process)
    ended = home.interrupted(process)
    assert (ended.exit_code, "the same command goes on from here" in ended.errors) == (130, True)
    assert [path.name for path in out.glob("*.safetensors")] == ["round-00000000.safetensors"]
