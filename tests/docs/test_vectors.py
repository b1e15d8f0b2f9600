"""docs/vectors: the files are what the script makes, and Manta and docs/verifier.py both take the ten ledgers and refuse the hundred."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.protocol.encoding import decode, encode, pack, unpack
from manta_swarm.protocol.errors import EncodingError, RemoteFault
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.verified import Verified
from tests.docs.messages import kinds
from tests.docs.vectors import FOLDER, files
from tests.docs.verifiers import ledger as verifier_ledger
from tests.docs.verifiers import records, verifier
from tests.documents import ROOT

LEDGERS, INVALID, RECORDS, VERDICTS = (
    json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in ("ledgers", "invalid", "records", "verdicts")
)
BY_NAME = {each["name"]: each for each in LEDGERS}
VERIFIED = Verified(2**16)
DOCUMENT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def ours(manifest: bytes) -> Ledger:
    signed = SignedManifest.read(manifest)
    return Ledger(signed, RunTrainingSpec(signed.open()), VERIFIED)


def test_the_files_are_what_the_script_makes() -> None:
    made = files()
    assert sorted(made) == sorted(FOLDER.iterdir())
    assert not [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]


def test_there_are_ten_that_hold_and_a_hundred_that_do_not() -> None:
    assert (len(LEDGERS), len({each["name"] for each in INVALID})) == (10, 100)


def test_each_rule_of_the_fold_refuses_one_of_the_hundred() -> None:
    fold = {rule for rule in records.RULES if re.match("[EBS]", rule)} | {"M1", "M2"}
    assert fold == {each["rule"] for each in INVALID}


def test_the_rules_are_those_of_the_document_in_its_order() -> None:
    named = re.findall(r"^- \*\*([BSME][0-9]+)\*\* ", DOCUMENT, re.MULTILINE)
    assert named == [rule for rule in records.RULES if rule[0] in "BSME" and rule != "M3"]


@pytest.mark.parametrize("name", BY_NAME)
def test_both_take_a_valid_ledger_to_the_same_end(name: str) -> None:
    said = BY_NAME[name]
    run, manifest = verifier.open_manifest(bytes.fromhex(said["manifest"]))
    ledger, theirs = ours(bytes.fromhex(said["manifest"])), verifier.Ledger(run, manifest)
    assert (ledger.run, run) == (bytes.fromhex(said["run"]),) * 2
    for entry in map(bytes.fromhex, said["entries"]):
        ledger.append(entry)
        theirs.append(entry)
    assert (ledger.round, ledger.last_commit.hex(), ledger.settled) == (said["round"], said["commit"], said["settled"])
    assert (theirs.round, theirs.rounds[-1].commit.hex()) == (said["round"], said["commit"])
    for credits, earned in ((ledger.credits(), ledger.reputation.earned), (theirs.credits, theirs.earned)):
        assert {key.hex(): amount for key, amount in credits.items() if amount} == said["credits"]
        assert {key.hex(): amount for key, amount in earned.items() if amount} == said["earned"]


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case["name"])
def test_both_refuse_the_last_entry_of_an_invalid_ledger_the_verifier_by_the_rule_that_is_named(case: dict[str, Any]) -> None:
    of = BY_NAME[case["ledger"]] if "ledger" in case else {"manifest": case["manifest"], "entries": []}
    manifest, entries = bytes.fromhex(of["manifest"]), [*of["entries"][: case.get("entries", 0)], *case["then"]]
    if case["then"]:
        both = ours(manifest), verifier.Ledger(*verifier.open_manifest(manifest))
        *before, last = map(bytes.fromhex, entries)
        for entry in before:
            for each in both:
                each.append(entry)
        with pytest.raises(RemoteFault):
            both[0].append(last)
        with pytest.raises(verifier.Refused) as caught:
            both[1].append(last)
    else:
        with pytest.raises((RemoteFault, ValueError)):
            ours(manifest)
        with pytest.raises(verifier.Refused) as caught:
            verifier.open_manifest(manifest)
    assert caught.value.rule == case["rule"]


def test_each_record_that_is_signed_has_a_vector_with_its_signature() -> None:
    assert {f"Signed{kind.__name__}" for kind in kinds() if hasattr(kind, "signing")} <= {record["record"] for record in RECORDS}


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}")
def test_a_record_is_read_from_its_vector(kind: type) -> None:
    packed = [bytes.fromhex(record["packed"]) for record in RECORDS if record["record"] == kind.__name__]
    found = [data for data in packed if is_read(kind, data)]
    assert len(found) == 1


def is_read(kind: type, data: bytes) -> bool:
    try:
        return bool(pack(unpack(kind, data, max_bytes=2**20)) == data)
    except EncodingError:
        return False


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["record"])
def test_a_record_has_its_canonical_bytes(record: dict[str, Any]) -> None:
    packed = bytes.fromhex(record["packed"])
    assert encode(decode(packed, max_bytes=2**20)) == packed == verifier.encode(records.decode(packed, 2**20))
    if "digest" in record:
        signed = unpack(SignedManifest, packed, max_bytes=MAX_SIGNED_MANIFEST_BYTES) if record["record"] == "SignedManifest" else None
        payload, signature, *_ = records.decode(packed, 2**20)
        digest = records.sha256(packed) if signed else verifier.digest_of(SimpleNamespace(payload=payload, signature=signature))
        assert digest.hex() == record["digest"]


def test_draws_follow_from_the_beacon() -> None:
    beacon = bytes.fromhex(VERDICTS["beacon"])
    for what, contribution, number in VERDICTS["numbers"]:
        assert verifier_ledger.number(what, beacon, bytes.fromhex(contribution)) == number
    for case in VERDICTS["draws"]:
        rules = SimpleNamespace(audit_percent=case["audit_percent"], newcomer_percent=case["newcomer_percent"])
        rows = [
            SimpleNamespace(digest=bytes.fromhex(digest), counted=samples, proven=(proven,), keys=(known,))
            for digest, samples, proven, known in case["candidates"]
        ]
        assert sorted(each.hex() for each in verifier_ledger.drawn(rules, beacon, rows, {True: 1, False: 0})) == case["drawn"]


def test_verdicts_come_to_the_same() -> None:
    for case in VERDICTS["outcomes"]:
        said, named = case["said"], list(range(len(case["said"])))
        ledger = SimpleNamespace(rules=SimpleNamespace(named=named))
        verdicts = {auditor: SimpleNamespace(outcomes=(each,)) for auditor, each in zip(named, said, strict=True) if each is not None}
        audit = SimpleNamespace(auditor=0, verdicts=verdicts)
        assert verifier.Ledger.outcome(ledger, audit, 0) == case["outcome"], said


def test_pools_are_shared_out_alike() -> None:
    for case in VERDICTS["shares"]:
        assert verifier_ledger.share_out(case["pool"], case["weights"], case["cap"]) == case["shares"]


@pytest.mark.parametrize("name", VERDICTS["ledgers"])
def test_each_round_of_an_audited_ledger_comes_to_what_is_said(name: str) -> None:
    ledger = verifier.Ledger(*verifier.open_manifest(bytes.fromhex(BY_NAME[name]["manifest"])))
    entries = list(map(bytes.fromhex, BY_NAME[name]["entries"]))
    for said in VERDICTS["ledgers"][name]:
        for entry in entries[ledger.size : said["entries"]]:
            ledger.append(entry)
        found = {
            digest.hex(): {"round": audit.round, "auditor": audit.auditor.hex(), "outcomes": list(audit.outcomes)}
            for digest, audit in ledger.audits.items()
        }
        assert found == said["audits"]
        assert {key.hex(): amount for key, amount in ledger.credits.items()} == said["credits"]
        keys = {key for row in ledger.rounds[-1].listed for key in row.keys} | ledger.given
        assert {key.hex() for key in keys if ledger.is_proven(key)} == set(said["proven"])
