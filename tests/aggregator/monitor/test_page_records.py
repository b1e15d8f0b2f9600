"""What the page reads entries by is what the records are: names and versions, compared without a browser."""

import re
from dataclasses import fields
from pathlib import Path

import manta_swarm.aggregator.monitor
from manta_swarm.protocol.admission import Admission, Revocation
from manta_swarm.protocol.records import _ENTRIES, Claim, Contribution, Round
from manta_swarm.protocol.verdicts import Settlement, Verdict
from manta_swarm.protocol.versions import PROTOCOL

RECORDS = {
    "admission": Admission,
    "revocation": Revocation,
    "claim": Claim,
    "contribution": Contribution,
    "round": Round,
    "verdict": Verdict,
    "settlement": Settlement,
}
ENTRIES = (Path(manta_swarm.aggregator.monitor.__file__).parent / "static" / "js" / "entries.js").read_text(encoding="utf-8")


def test_the_page_knows_the_fields_of_the_records() -> None:
    found = dict(re.findall(r'^  ([a-z]+): "([a-z_ ]+)"\.split', ENTRIES, re.MULTILINE))
    assert found.keys() == RECORDS.keys() == {"claim", *_ENTRIES}
    for kind, record in RECORDS.items():
        assert found[kind].split(" ") == [field.name for field in fields(record)]


def test_the_page_checks_signatures_of_the_present_version() -> None:
    assert re.findall(r"^const PROTOCOL = ([0-9]+);", ENTRIES, re.MULTILINE) == [str(PROTOCOL)]


def test_the_page_knows_who_signs_each_kind_of_entry_but_those_that_only_the_tree_head_signs() -> None:
    (signers,) = re.findall(r"^const SIGNERS = \{\n(.*?)^\};", ENTRIES, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"^  ([a-z]+):", signers, re.MULTILINE)) == {"claim", *_ENTRIES} - {"round", "settlement"}
