"""What the page reads entries by is what the records are: names and versions, compared without a browser."""

import re
from dataclasses import fields
from pathlib import Path

import aggregator.monitor
from protocol.records import _ENTRIES, Claim, Contribution, Round
from protocol.versions import PROTOCOL

ENTRIES = (Path(aggregator.monitor.__file__).parent / "static" / "js" / "entries.js").read_text(encoding="utf-8")


def test_the_page_knows_the_fields_of_claims_contributions_and_rounds() -> None:
    found = dict(re.findall(r'^  ([a-z]+): "([a-z_ ]+)"\.split', ENTRIES, re.MULTILINE))
    for kind, record in (("claim", Claim), ("contribution", Contribution), ("round", Round)):
        assert found[kind].split(" ") == [field.name for field in fields(record)]


def test_the_page_checks_signatures_of_the_present_version() -> None:
    assert re.findall(r"^const PROTOCOL = ([0-9]+);", ENTRIES, re.MULTILINE) == [str(PROTOCOL)]


def test_the_page_knows_who_signs_each_kind_of_entry_but_rounds() -> None:
    (signers,) = re.findall(r"^const SIGNERS = \{\n(.*?)^\};", ENTRIES, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"^  ([a-z]+):", signers, re.MULTILINE)) == {"claim", *_ENTRIES} - {"round"}
