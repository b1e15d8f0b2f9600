"""docs/researchers.md: its console blocks are typed as they stand, one after the other in one folder, and print what the page shows.

Measured numbers, digests and chosen architectures differ from machine to machine: of them the test compares only that they are there.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manta_swarm.automl.evaluation.held_out import CALIBRATION_SAMPLES
from manta_swarm.automl.training.settings import usual
from tests.command import typed
from tests.docs.test_guide_commands import commands_of
from tests.documents import ROOT
from tests.test_documents import group_of

PAGE = (ROOT / "docs" / "researchers.md").read_text(encoding="utf-8")
CLASSES = ("cat", "cow", "dog")


def masked(line: str) -> str:
    """Return a line without what a machine measures or a search chooses."""
    line = re.sub(r"\b[0-9a-f]{64}\b", "<digest>", line.rstrip())
    line = re.sub(r"r\d+( u\d+\.\d+:k\de\d)+", "<architecture>", line)
    line = re.sub(r"latencies: of .*", "latencies: of <device>", line)
    line = re.sub(r"(: )(u\d+|rest) \d+%(, (u\d+|rest) \d+%)*", ": <parts>", line)
    return re.sub(r"(?<![\w-])\d[\d.,]*(e-\d+)?(?=\D|$)", "#", re.sub(" +", " ", line))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with pictures of one's own; few samples make a round or a measurement: as much is printed."""
    monkeypatch.chdir(tmp_path)
    few = replace(usual("classification"), microbatch_samples=16, target_batch=64)
    monkeypatch.setattr("manta_swarm.automl.commands.train.usual", lambda _: few)
    monkeypatch.setitem(CALIBRATION_SAMPLES, "classification", 64)
    generator = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(70):
            image = Image.fromarray(generator.integers(0, 255, (32, 32), np.uint8))
            image.save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path


def test_what_the_guide_types_prints_what_it_shows(folder: Path) -> None:
    typed_commands = list(commands_of(PAGE))
    assert len(typed_commands) >= 10
    for (program, *arguments), said in typed_commands:
        ended = typed(group_of(program), *arguments)
        assert ended.exit_code == 0, (arguments, ended)
        printed = [masked(line) for line in (ended.output + ended.errors).splitlines()]
        for line in said.splitlines():
            if line != "...":
                assert masked(line) in printed, (arguments, line, printed)
                printed = printed[printed.index(masked(line)) + 1 :]
    assert (folder / "exported" / "best" / "README.md").is_file()
    assert (folder / "run.toml").is_file()
