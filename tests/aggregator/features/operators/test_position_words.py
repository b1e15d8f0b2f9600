"""What ``manta-aggregator status`` says of an operator among several."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from manta_swarm.aggregator.commands.folder import status
from manta_swarm.runtime.disk import only_process

FOUND = {"name": "r", "run": "0123", "round": 3, "num_rounds": 9, "ledger_size": 12, "ledger_root": "ab", "pid": 1}


@pytest.mark.parametrize(
    ("position", "said"),
    [
        ({"acts_as": "leader", "term": 4, "leader": "A", "heard": ["B"]}, "writes, term 4; hears 1 others"),
        ({"acts_as": "follower", "term": 4, "leader": "A", "heard": ["A"]}, "does not write; A does, term 4; hears 1 others"),
        ({"acts_as": "follower", "term": 0, "leader": None, "heard": []}, "does not write, and hears nobody who does; hears 0 others"),
        (
            {"acts_as": "newcomer", "term": 0, "leader": "A", "heard": ["A"], "waits_for": ["B", "C"], "from_round": 8},
            "begins anew, and takes part once B, C answered; hears 1 others",
        ),
        (
            {"acts_as": "newcomer", "term": 0, "leader": "A", "heard": ["A"], "waits_for": [], "from_round": 8},
            "begins anew, and takes part once round 8 is in; hears 1 others",
        ),
    ],
)
def test_where_an_operator_stands_is_said_in_a_line(tmp_path: Path, position: dict[str, Any], said: str) -> None:
    (tmp_path / "status.json").write_text(json.dumps({**FOUND, "operators": position}))
    with only_process(tmp_path):
        shown = CliRunner().invoke(status, ["--dir", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert said in shown.output.splitlines()
