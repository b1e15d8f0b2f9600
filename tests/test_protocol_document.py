"""docs/protocol.md and docs/training.md against the code: the table of search spaces and the vectors are those that it computes."""

import dataclasses
import importlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from manta_swarm.automl.models.networks import build
from manta_swarm.automl.spaces.space import SearchSpace, space_named
from manta_swarm.automl.training.update import known_digest
from manta_swarm.codec.mean import Sum
from manta_swarm.network import log_client, log_proofs
from manta_swarm.peer.sync.split_view_monitor import MAX_HISTORIES_BYTES
from manta_swarm.protocol import auditing
from manta_swarm.protocol.evaluations import MAX_QUESTION_BYTES, MAX_WORD_BYTES
from manta_swarm.protocol.records import (
    MAX_HEADER_BYTES,
)
from manta_swarm.protocol.table import (
    MAX_WEIGHED_BYTES,
    weights,
)
from manta_swarm.protocol.versions import PROGRAM, PROTOCOL
from tests.docs.examples import MIN_EXPONENTS, OUTCOME, PARSED, WEIGHING, counted_weights, examples

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENT = (DOCS / "protocol.md").read_text(encoding="utf-8")
TRAINING = (DOCS / "training.md").read_text(encoding="utf-8")
SPACES = [space_named(name) for name in ("classifier-tiny", "classifier-base", "stereo-tiny", "stereo-base")]

BLOCKS = {  # records that the document has as a block of fields, by the module that has them
    "manta_swarm.protocol.admission": "AdmissionRule Invitation Admission Revocation",
    "manta_swarm.protocol.affinity": "Position",
    "manta_swarm.protocol.auditing": "Placed AskWanted WantedOf Wanted Page AskVector AskAssignments Needed Assignment Assignments "
    "Need Finding",
    "manta_swarm.protocol.rewards": "RoundContributions",
    "manta_swarm.protocol.exchange": "Exchange",
    "manta_swarm.protocol.manifest": "SignedManifest Manifest Optimizer Recipe TravellingShards",
    "manta_swarm.protocol.private": "Measure PrivateData",
    "manta_swarm.peer.commands.tables": "TableOffer",
    "manta_swarm.protocol.records": "Announcement Entry ClaimStep Claim StepMean Contribution Header Threshold Round InclusionPromise "
    "Receipt Included Listing",
    "manta_swarm.protocol.table": "Weighed",
    "manta_swarm.protocol.verdicts": "AuditRules Verdict Settlement",
    "manta_swarm.network.log_client": "CreditWord",
}
TOLD = {  # records that the document tells in a sentence
    "manta_swarm.peer.features.two_views.partner": "Site",
    "manta_swarm.peer.features.two_views.views": "MicrobatchName Begin",
    "manta_swarm.protocol.admission": "AdmissionProof AskRevoked Revoked",
    "manta_swarm.protocol.evaluations": "Question Result Answer EvaluationWord",
    "manta_swarm.protocol.histories": "Histories",
    "manta_swarm.protocol.light": "Welcome EnterRequest LeaseRequest Lease LeaseAnswer LightReturn LightWord",
    "manta_swarm.network.blobs": "ProvenPiece",
    "manta_swarm.network.invitation": "Token",
    "manta_swarm.network.light_pay": "LightPay",
    "manta_swarm.network.pushes": "BodyOffer Shown Push Heard",
    "manta_swarm.network.wrong_group": "WrongGroup",
}


def named(modules: dict[str, str]) -> list[type]:
    """Return the records of these names."""
    return [getattr(importlib.import_module(module), name) for module, names in modules.items() for name in names.split()]


def search_space_row(space: SearchSpace) -> str:
    """Return a space as its table has it."""
    resolutions, stem = (", ".join(map(str, values)) for values in (space.resolutions, (space.stem_width,)))
    widths = " / ".join(", ".join(map(str, unit.widths)) for unit in space.units if unit.widths) or ", ".join(map(str, space.widths))
    choices = [[", ".join(map(str, getattr(unit, what))) for unit in space.units] for what in ("depths", "kernels", "expansions")]
    each = [texts[0] if len(set(texts)) == 1 else " / ".join(texts) for texts in choices]
    channels, classes, disparities = space.image_channels, space.num_classes or "-", space.num_disparities or "-"
    cells = [f"`{space.name}`", space.task, resolutions, widths, stem, *each, channels, classes, disparities]
    return f"| {' | '.join(map(str, cells))} |"


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_the_search_spaces_are_those_of_the_document(space: SearchSpace) -> None:
    assert search_space_row(space) in TRAINING
    assert f"{build(space).num_weights:,} for `{space.name}`" in " ".join(TRAINING.split())


def test_each_of_the_small_vectors_is_stored_as_it_is_computed() -> None:
    assert json.loads((DOCS / "vectors" / "examples.json").read_text(encoding="utf-8")) == examples()


def test_the_self_test_is_that_of_the_document() -> None:
    assert known_digest() in TRAINING


def blocks() -> dict[str, list[str]]:
    """Return the names of the fields of each record that stands in a block of code: its name, then lines that begin with two spaces."""
    found: dict[str, list[str]] = {}
    for block in re.findall(r"^```\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL):
        for name, fields in re.findall(r"^([A-Z]\w+)\b[^\n]*\n((?: {2}\w[^\n]*\n| {30,}[^\n]*\n)+)", block, re.MULTILINE):
            assert name not in found
            found[name] = re.findall(r"^  (\w+)", fields, re.MULTILINE)
    return found


@pytest.mark.parametrize("record", named(BLOCKS), ids=lambda record: record.__name__)
def test_a_block_of_fields_has_those_of_its_record_in_their_order(record: type) -> None:
    assert blocks()[record.__name__] == [field.name for field in dataclasses.fields(record)]


def test_the_document_has_no_other_blocks() -> None:
    assert sorted(blocks()) == sorted(name for names in BLOCKS.values() for name in names.split())


def in_order(words: Iterable[str], text: str) -> bool:
    """Return whether the words stand in a text, one after the other."""
    for word in words:
        found = re.search(rf"\b{word}\b", text)
        if found is None:
            return False
        text = text[found.end() :]
    return True


@pytest.mark.parametrize("record", named(TOLD), ids=lambda record: record.__name__)
def test_a_record_that_is_told_in_a_sentence_has_all_of_its_fields_there_in_their_order(record: type) -> None:
    """Up to where the next record begins; what the record has no field for is not found out."""
    told = [re.split(r"\*\*[A-Z]|\n\n", each)[0] for each in DOCUMENT.split(f"**{record.__name__}**")[1:]]
    fields = [field.name for field in dataclasses.fields(record)]
    assert any(in_order(fields, each) for each in told), fields


def test_the_bounds_of_answers_and_requests_are_those_of_the_document() -> None:
    """Of the methods whose bounds are more than what a few numbers take; and of a receipt."""
    bounds = {
        "header": (MAX_HEADER_BYTES, log_client.MAX_ANSWER_BYTES),
        "commit-after": (128, log_client.MAX_FEED_BYTES),
        "tree-head": (log_client.MAX_RECEIPT_BYTES + 16, log_proofs.MAX_SHOWN_HEAD_BYTES),
        "commit-at": (64, log_client.MAX_RECEIPT_BYTES),
        "histories": (MAX_HISTORIES_BYTES, "-"),
        "consistency": (log_proofs.MAX_ASK_CONSISTENCY_BYTES, log_proofs.MAX_CONSISTENCY_BYTES),
        "listing": (128, log_client.MAX_LISTING_BYTES),
        "weights": (128, MAX_WEIGHED_BYTES),
        "contributions": (128, log_client.MAX_CONTRIBUTIONS_BYTES),
        "entries": (log_proofs.MAX_ASK_ENTRIES_BYTES, log_proofs.MAX_ENTRIES_BYTES),
        "credit": (128, log_client.MAX_CREDIT_BYTES),
        "audit.wanted": (auditing.MAX_ASK_BYTES, auditing.MAX_WANTED_BYTES),
        "audit.bring": (auditing.MAX_PAGE_BYTES, 0),
        "audit.vector": (auditing.MAX_ASK_VECTOR_BYTES, auditing.PAGE_BYTES),
        "audit.assignments": (64, auditing.MAX_DUTIES_BYTES),
        "audit.finding": (auditing.MAX_SIGNED_FINDING_BYTES, 0),
        "audit.verdict": (auditing.MAX_SIGNED_VERDICT_BYTES, 0),
        "commit": (log_client.MAX_RECEIPT_BYTES, "-"),
        "evaluate": (MAX_QUESTION_BYTES, MAX_WORD_BYTES),
    }
    _, _, methods = DOCUMENT.partition("| method | served by |")
    shown = {
        cells[1].strip(" `"): cells[-3].strip() for cells in (line.split("|") for line in methods.partition("\n\n")[0].splitlines()[2:])
    }
    for name, each in bounds.items():
        assert shown[name] == ", ".join(f"{number:,}" if isinstance(number, int) and number > 9999 else str(number) for number in each), (
            name
        )
    assert f"\nReceipt ({log_client.MAX_RECEIPT_BYTES})\n" in DOCUMENT
    assert f"\nCreditWord ({log_client.MAX_CREDIT_BYTES})\n" in DOCUMENT


def test_every_section_that_is_referred_to_is_there_and_has_the_part_that_is_named() -> None:
    """Such as: section 5, Witnesses. Sections of RFCs have dots."""
    both = f"{DOCUMENT}\n{TRAINING}"
    sections = {
        number: body for number, _, body in (each.partition(". ") for each in re.split(r"^## (?=[0-9])", both, flags=re.MULTILINE)[1:])
    }
    assert sorted(map(int, sections)) == list(range(1, len(sections) + 1))
    for section, part in re.findall(r"[Ss]ections?\s+([0-9]+)(?!\.?[0-9])(?:,\s+([A-Z]\w+(?: \w+)?))?", both):
        assert section in sections
        assert not part or re.search(rf"^### {part}|\*\*{part}", sections[section], re.MULTILINE), (section, part)


def test_the_versions_are_those_of_the_document() -> None:
    assert f"as it is, version {PROTOCOL} of the protocol" in DOCUMENT
    assert f"The **protocol's version** is one number, {PROTOCOL}." in DOCUMENT
    assert f"the protocol's (section 25), {PROTOCOL}, for all kinds" in DOCUMENT
    assert re.search(rf"^  protocol  .* this version: {PROTOCOL}$", DOCUMENT, re.MULTILINE)
    assert f"version {PROTOCOL} has program `{PROGRAM}`" in DOCUMENT


def test_the_mean_of_the_document_is_that_of_its_rows_added_in_another_order() -> None:
    backwards = Sum(4, min(MIN_EXPONENTS))
    for body, min_exponent, weight in reversed(list(zip(PARSED, MIN_EXPONENTS, counted_weights(), strict=True))):
        backwards.add(body, min_exponent - min(MIN_EXPONENTS), weight)
    assert backwards.mean(sum(weights(WEIGHING))).tobytes() == OUTCOME.mean.tobytes()
