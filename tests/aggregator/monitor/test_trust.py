"""What the monitor says of trust: verdicts with the findings that led to them, each key's standing, and what audits took."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aggregator.audits.trust_file import FILE, TrustFile, read_trust
from aggregator.log.log import Log
from aggregator.monitor.metrics import metrics_text
from protocol.audits import DIFFERS, HOLDS
from protocol.manifest import SignedManifest
from protocol.signing import Identity, peer_name
from tests.aggregator.monitor.asgi import Shown
from tests.audited import OPERATOR, SECOND, audited_ledger, claimed_of, finding_of, go_on
from tests.contributions import PEERS
from tests.runs import FixedCourse

LIAR, HONEST, DOUBTED = PEERS[:3]


class Run:
    """An audited run's folder, whose log grows as a ledger does."""

    def __init__(self, directory: Path, num_rounds: int = 40) -> None:
        self.directory = directory
        # Two named auditors: one that speaks against a claim alone puts it in doubt.
        self.ledger = audited_ledger(num_rounds, auditors=(SECOND.public_key,), proven_samples=1)
        signed = SignedManifest.sign(self.ledger.manifest, OPERATOR)
        self.log = Log.create(directory, signed, OPERATOR, course_of=lambda _: FixedCourse())
        self.shown_in = TrustFile(directory)

    def round(self, *extras: Any, peers: Sequence[Identity] = (LIAR, HONEST, DOUBTED), payout: bytes | None = None) -> None:
        """Commit a round of these peers, after these extras, as an aggregator would; their claims name ``payout``."""
        entries = list[bytes]()
        append = self.ledger.append
        self.ledger.append = lambda entry: (entries.append(entry), append(entry))[1]  # type: ignore[method-assign]
        go_on(self.ledger, peers, extras, payout=payout)
        del self.ledger.append
        self.log.commit(entries)
        done = {"claims": 3, "lots": 3, "against": 2, "withheld": 0, "missed": 0, "cpu_ms": 30}
        asyncio.run(self.shown_in.tell(self.log.ledger, self.log.ledger.standing.due(), done))


def audited_run(directory: Path, num_rounds: int = 40) -> Run:
    """Return a run in which one is found guilty by two auditors, one is in doubt, and one is good."""
    made = Run(directory, num_rounds)
    made.round()
    made.round()
    ledger = made.ledger
    made.round(
        finding_of(ledger, OPERATOR, LIAR, DIFFERS),
        finding_of(ledger, SECOND, LIAR, DIFFERS),
        finding_of(ledger, OPERATOR, DOUBTED, DIFFERS),
        finding_of(ledger, SECOND, HONEST, HOLDS),
    )
    return made


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """That run."""
    return audited_run(tmp_path / "run")


@pytest.fixture
def shown(run: Run) -> Shown:
    found = Shown(run.directory, course_of=lambda _: FixedCourse())
    found.look()
    return found


def name(peer: Identity) -> str:
    return peer_name(peer.public_key)


def test_the_overview_says_who_is_trusted_and_what_is_in_doubt(run: Run, shown: Shown) -> None:
    found = shown.get("/api/trust").json
    assert (found["mode"], found["round"], found["guilty"], found["verdicts"]) == ("audited", 3, 1, 1)
    assert found["proven"] == sum(map(run.ledger.standing.is_proven, [peer.public_key for peer in (LIAR, HONEST, DOUBTED)])) == 1
    (doubt,) = found["in_doubt"]
    assert (doubt["peer"], [vote["outcome"] for vote in doubt["votes"]]) == (name(DOUBTED), ["differs"])
    assert found["done"]["cpu_ms"] == 30
    assert found["share"] == 30 / found["done"]["claimed_ms"]


def test_of_how_many_computers_are_proven_is_told_as_the_page_counts_them(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", num_rounds=9)
    for peers in ((LIAR, HONEST, DOUBTED), (LIAR, HONEST), (LIAR, HONEST)):
        run.round(peers=peers)
    assert read_trust(run.directory).num_keys == 3  # one of them has left
    shown = Shown(run.directory, course_of=lambda _: FixedCourse())
    for is_over in (False, True):
        while is_over and not run.ledger.finished:
            run.round(*([finding_of(run.ledger, SECOND, HONEST, HOLDS)] if run.ledger.round == 3 else []), peers=(LIAR, HONEST))
        shown.look()
        found, peers = shown.get("/api/trust").json, shown.get("/api/now").json["peers"]
        assert (found["is_finished"], found["computers"]) == (is_over, peers["took_part" if is_over else "present"])
        assert (found["computers"], found["proven"]) == ((3, 1) if is_over else (2, 0))


def test_a_verdict_has_its_findings_with_the_places_where_they_stand_in_the_log(run: Run, shown: Shown) -> None:
    (verdict,) = shown.get("/api/trust/verdicts").json["verdicts"]
    claimed = claimed_of(run.ledger, LIAR, 1)
    assert (verdict["peer"], verdict["reason"], verdict["round"], verdict["claim"]) == (name(LIAR), DIFFERS, 3, claimed.digest.hex())
    found = shown.get(f"/api/trust/claims/{verdict['claim']}").json
    assert {one["auditor"] for one in found["findings"]} == {name(OPERATOR), name(SECOND)}
    for one in found["findings"]:
        entry = shown.get(f"/api/ledger/entries/{one['index']}").json
        assert (entry["kind"], entry["peer"], entry["fields"]["claim"]) == ("finding", one["auditor"], verdict["claim"])
        assert one["claimed"]["projection"] != one["found"] == (b"p" * 32).hex()
    entry = shown.get(f"/api/ledger/entries/{found['index']}").json
    assert (entry["kind"], verdict["claim"] in [one["digest"] for one in entry["fields"]["claims"]]) == ("contribution", True)
    doubt = shown.get("/api/trust").json["in_doubt"][0]
    assert len(shown.get(f"/api/trust/claims/{doubt['claim']}").json["findings"]) == 1


def test_the_credit_of_an_accounts_machines_adds_up_also_after_a_restart(run: Run) -> None:
    owner = Identity(b"\x51" * 32)
    for _ in range(2):
        run.round(peers=(HONEST, DOUBTED), payout=owner.public_key)
    for rounds in (2, 3):  # the second one begins with what the first has kept
        shown = Shown(run.directory, course_of=lambda _: FixedCourse())
        shown.look()
        found = {one["account"]: one for one in shown.get("/api/ledger/credits").json["credits"]}
        peers = [peer_name(key) for key in sorted((HONEST.public_key, DOUBTED.public_key))]
        credit = run.ledger.credit_of(owner.public_key)
        assert found[name(owner)] == {
            "account": name(owner),
            "key": owner.public_key.hex(),
            "credit": credit,
            "num_peers": 2,
            "peers": peers,
            "trains": False,
        }
        assert {key: one["credit"] for key, one in found.items() if one["credit"]} == {
            peer_name(key): amount for key, amount in run.ledger.credits().items()
        }
        honest = shown.get(f"/api/peers/{name(HONEST)}").json
        assert (honest["account"], honest["credit"]) == (name(owner), run.ledger.standing.account(HONEST.public_key).credit)
        assert found[name(HONEST)]["credit"] == run.ledger.credit_of(HONEST.public_key) < honest["credit"]
        (run.directory / "monitor" / FILE).unlink(missing_ok=True)  # then only the log says it: before verdicts
        unjudged = Shown(run.directory, course_of=lambda _: FixedCourse())
        unjudged.look()
        shown_credits = unjudged.get("/api/ledger/credits").json
        assert shown_credits["said_by"] == "log, before verdicts"
        assert {one["account"]: one["credit"] for one in shown_credits["credits"]}[name(owner)] == rounds * run.ledger.manifest.work_pool
        run.round(peers=(HONEST, DOUBTED), payout=owner.public_key)
    assert (run.directory / "monitor" / "view.kept").exists()


def test_what_somebody_has_is_one_figure_wherever_it_is_shown(run: Run, shown: Shown) -> None:
    credits = run.ledger.credits()
    assert credits[OPERATOR.public_key] > 0 == run.ledger.credit_of(LIAR.public_key)  # an auditor is paid, and a liar's pay taken back
    found = shown.get("/api/ledger/credits").json
    assert (found["said_by"], found["pool_paid"]) == ("aggregator", sum(credits.values()))
    assert {one["account"]: one["credit"] for one in found["credits"]} == {
        name(LIAR): 0,
        **{peer_name(key): credit for key, credit in credits.items()},
    }
    peers = {one["peer"]: one["credit"] for one in shown.get("/api/peers").json["peers"]}
    keys = {one["peer"]: one["final"] + one["pending"] for one in shown.get("/api/trust/keys").json["keys"]}
    for peer in (LIAR, HONEST, DOUBTED):
        one = shown.get(f"/api/peers/{name(peer)}").json
        assert one["credit"] == peers[name(peer)] == keys[name(peer)] == run.ledger.credit_of(peer.public_key)
    assert one["credit_share"] == one["credit"] / found["pool_paid"]


def test_each_key_has_its_standing_and_what_is_pending_until_when(run: Run, shown: Shown) -> None:
    keys = {one["peer"]: one for one in shown.get("/api/trust/keys").json["keys"]}
    for peer in (LIAR, HONEST, DOUBTED):
        account = run.ledger.standing.account(peer.public_key)
        one = keys[name(peer)]
        assert (one["final"], one["pending"], one["void"]) == (
            account.final,
            sum(amount for _, amount in account.pending),
            sum(each.amount for each in account.void),
        )
        assert shown.get(f"/api/peers/{name(peer)}").json["trust"] == {field: value for field, value in one.items() if field != "peer"}
    assert (keys[name(LIAR)]["is_guilty"], keys[name(LIAR)]["pending"], keys[name(HONEST)]["until"]) == (True, 0, 3 + 8)
    page = shown.get("/api/trust/keys?offset=1&limit=1").json
    assert (len(page["keys"]), page["total"] >= 3) == (1, True)


def test_what_of_the_credit_stays_pending_is_said_of_the_run_and_of_each_key(tmp_path: Path) -> None:
    made = Run(tmp_path / "run", num_rounds=9)  # credit is pending for 8 rounds: what the first one pays is final with the last one
    made.round()
    made.round()
    shown = Shown(made.directory, course_of=lambda _: FixedCourse())
    shown.look()
    found = shown.get("/api/trust").json
    assert (found["pending_rounds"], found["num_rounds"], found["last_final_round"]) == (8, 9, 1)
    (first, of_first), (second, of_second) = made.ledger.standing.account(HONEST.public_key).pending
    assert (first, second) == (1, 2)
    (one,) = [one for one in shown.get("/api/trust/keys").json["keys"] if one["peer"] == name(HONEST)]
    assert (one["pending"], one["until"], one["stays_pending"]) == (of_first + of_second, 9, of_second)


@pytest.mark.parametrize("target", ["/api/trust/claims/x", f"/api/trust/claims/{'0' * 64}", "/api/trust/keys?limit=201"])
def test_what_is_not_there_or_too_much_is_refused(shown: Shown, target: str) -> None:
    assert shown.get(target).status in (400, 404)


def test_prometheus_is_told_what_audits_found_and_took(shown: Shown) -> None:
    text = metrics_text(shown.sight, shown.present, streams=0, streams_refused=0, now=0)
    for line in (
        'manta_keys{standing="guilty"} 1',
        "manta_claims_in_doubt 1",
        "manta_audit_cpu_seconds_total 0.03",
        'manta_findings_against_total{outcome="differs"} 2',
    ):
        assert line in text.replace("0.029999999999999999", "0.03").splitlines()


def test_a_damaged_file_is_said_and_what_was_read_before_stays(run: Run, shown: Shown) -> None:
    (run.directory / "monitor" / FILE).write_text("{")
    shown.look()
    assert shown.get("/api/trust").json["round"] == 3
    assert "trust.json is damaged" in shown.get("/api/now").json["alarms"][0]["text"]


def test_where_nothing_was_said_there_is_nothing_to_show(tmp_path: Path) -> None:
    made = Run(tmp_path / "run")
    found = Shown(made.directory, course_of=lambda _: FixedCourse())
    found.look()
    assert found.get("/api/trust").json["round"] is None
    assert found.get("/api/trust/verdicts").json == {"total": 0, "offset": 0, "verdicts": []}
    assert found.get("/api/ledger/credits").json["said_by"] == "log, before verdicts"
