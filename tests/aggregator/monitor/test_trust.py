"""What the monitor says of trust: who is proven, what was audited and what it came to, what was found out, and what is paid."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from manta_swarm.protocol.signing import Identity, peer_name
from manta_swarm.protocol.verdicts import Outcome
from tests.aggregator.audited_log import AuditedRun
from tests.aggregator.monitor.asgi import Shown, looked
from tests.aggregator.monitor.test_kept import assert_same
from tests.audited import AUDITOR, AUDITORS, audit_of, verdict_of
from tests.contributions import PEERS, cohort_header_of, header_of

LIAR, HONEST, DOUBTED = PEERS[:3]
FIRST, SECOND = AUDITORS[:2]


def audited_run(directory: Path, num_rounds: int = 40) -> AuditedRun:
    """Return three rounds of a run with two auditors: one peer is guilty, one is in doubt, one was found good."""
    run = AuditedRun(directory, num_rounds, auditors=2, proven=(LIAR, HONEST), proven_after=1)
    run.round()
    run.round()
    ledger = run.ledger
    word = FIRST if audit_of(ledger, HONEST).auditor == FIRST.public_key else SECOND
    run.round(
        verdict_of(ledger, LIAR, Outcome.VOID, auditor=FIRST),
        verdict_of(ledger, LIAR, Outcome.VOID, auditor=SECOND),
        verdict_of(ledger, DOUBTED, Outcome.VOID, auditor=FIRST),
        verdict_of(ledger, HONEST, auditor=word),
    )
    return run


def demoted_run(directory: Path) -> AuditedRun:
    """Return seven rounds of a run of nine in which a cohort of two did not show its work of the first round; that one is paid now."""
    run = AuditedRun(directory, num_rounds=9, proven=(LIAR, HONEST, DOUBTED))
    run.hand_in([cohort_header_of(run.ledger, [LIAR, HONEST])])
    for _ in range(4):
        run.round(peers=[DOUBTED])
    run.round(verdict_of(run.ledger, HONEST, Outcome.DEMOTED, Outcome.UNPAID, round=1), peers=[DOUBTED])
    run.round(peers=[DOUBTED])
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    """A run with two auditors, which stays as it is."""
    return audited_run(tmp_path_factory.mktemp("audited") / "run")


@pytest.fixture(scope="module")
def shown(run: AuditedRun) -> Shown:
    return looked(run.directory)


@pytest.fixture(scope="module")
def demoted(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    """A run whose first round is paid, which stays as it is."""
    return demoted_run(tmp_path_factory.mktemp("demoted") / "run")


def name(peer: Identity) -> str:
    return peer_name(peer.public_key)


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("make", [partial(audited_run, num_rounds=12), demoted_run])
def test_the_view_folds_a_log_as_its_ledger_does_and_what_it_added_up_is_kept(
    tmp_path: Path, make: Callable[[Path], AuditedRun], is_over: bool
) -> None:
    made = make(tmp_path / "run")
    if is_over:
        made.rounds_to_the_end(peers=[HONEST, DOUBTED])
        made.settle(verdict_of(made.ledger, DOUBTED))
    sight, again = looked(made.directory).sight, looked(made.directory).sight
    assert {alarm.cause.kind for alarm in sight.alarms.on} <= {"silent"}
    ours, theirs = sight.view.reputation, made.ledger.reputation
    assert (ours.paid, ours.pending, ours.audits, ours.good) == (theirs.paid, theirs.pending, theirs.audits, theirs.good)
    assert (ours.faults, ours.guilty, ours.lost, ours.given) == (theirs.faults, theirs.guilty, theirs.lost, theirs.given)
    assert (sight.view.is_settled, sight.view.settlement) == (made.ledger.settled, made.ledger.settlement)
    assert sight.size == again.num_read == made.log.head.size
    assert_same(sight.view, again.view)


def test_the_overview_says_who_is_trusted_what_was_audited_and_what_is_in_doubt(run: AuditedRun, shown: Shown) -> None:
    found = shown.json("/api/trust")
    assert (found["mode"], found["round"], found["guilty"], found["demoted"], found["faults"]) == ("audited", 3, 1, 0, 1)
    proven = [run.ledger.reputation.is_proven(peer.public_key) for peer in (LIAR, HONEST, DOUBTED)]
    assert (found["computers"], found["proven"]) == (3, sum(proven)) == (3, 1)
    assert (found["drawn"], found["undecided"], found["share"]) == (6, 4, 1)  # the third round's beacon is not there yet
    assert found["claims"] == {"good": 1, "void": 1, "undecided": 4}
    (doubt,) = found["in_doubt"]
    assert (doubt["round"], doubt["founder"], doubt["claims"]) == (1, name(DOUBTED), [{"peer": name(DOUBTED), "outcome": "undecided"}])
    assert (found["auditors"], found["quorum"]) == ([name(FIRST), name(SECOND)], 2)
    assert (found["last_paid_round"], found["last_before_settlement"], found["is_settled"]) == (0, 34, False)


def test_of_how_many_computers_are_proven_is_told_as_the_page_counts_them(tmp_path: Path) -> None:
    run = AuditedRun(tmp_path / "run", num_rounds=9, proven=(HONEST, DOUBTED))
    for peers in ((LIAR, HONEST, DOUBTED), (LIAR, HONEST), (LIAR, HONEST)):
        run.round(peers=peers)
    shown = looked(run.directory)
    for is_over in (False, True):
        if is_over:
            run.rounds_to_the_end(peers=(LIAR, HONEST))
        shown.look()
        found, peers = shown.json("/api/trust"), shown.json("/api/now")["peers"]
        assert (found["is_finished"], found["computers"]) == (is_over, peers["took_part" if is_over else "present"])
        assert found["proven"] == (2 if is_over else 1)  # one of them has left, and took part


def test_what_was_found_out_is_shown_with_the_verdicts_in_the_log(run: AuditedRun, shown: Shown) -> None:
    (fault,) = shown.json("/api/trust/faults")["faults"]
    assert (fault["peer"], fault["round"], fault["reason"]) == (name(LIAR), 3, "false")
    found = shown.json(f"/api/trust/contributions/{fault['contribution']}")
    assert (found["round"], found["claims"]) == (1, [{"peer": name(LIAR), "outcome": "void"}])
    assert [(one["auditor"], one["by"], one["outcomes"], one["round"]) for one in found["verdicts"]] == [
        (peer_name(verdict.auditor), peer_name(verdict.by), ["void"], 3) for verdict in audit_of(run.ledger, LIAR, 1).verdicts
    ]
    for one in found["verdicts"]:
        entry = shown.json(f"/api/ledger/entries/{one['index']}")
        assert (entry["kind"], entry["peer"], entry["round"]) == ("verdict", one["auditor"], 1)
        assert (entry["fields"]["contribution"], entry["fields"]["outcomes"]) == (fault["contribution"], [3])
    entry = shown.json(f"/api/ledger/entries/{found['index']}")
    assert (entry["kind"], entry["fields"]["digest"]) == ("contribution", fault["contribution"])


def test_what_was_not_shown_stays_to_be_looked_up_after_its_round_is_paid(demoted: AuditedRun) -> None:
    shown = looked(demoted.directory)
    (fault,) = shown.json("/api/trust/faults")["faults"]
    assert (fault["reason"], demoted.ledger.reputation.standing(LIAR.public_key).paid) == ("withheld", 0)
    found = shown.json(f"/api/trust/contributions/{fault['contribution']}")
    assert 1 not in demoted.ledger.reputation.pending
    assert {one["outcome"] for one in found["claims"]} == {"demoted", "unpaid"}
    assert found["verdicts"][0]["round"] == 6
    overview = shown.json("/api/trust")
    assert (overview["demoted"], overview["guilty"], overview["last_paid_round"], overview["last_before_settlement"]) == (1, 0, 1, 3)
    drawn = [one["round"] for one in shown.json("/api/trust/audits")["audits"]]
    assert drawn == [6, 5, 4, 3, 2]
    assert shown.json("/api/trust/audits?offset=1&limit=1")["audits"][0]["may_be_brought_until"] == 5 + 3


def test_after_the_settlement_all_is_paid_and_its_entry_is_shown(tmp_path: Path) -> None:
    run = demoted_run(tmp_path / "run")
    run.rounds_to_the_end(peers=[DOUBTED])
    shown = looked(run.directory)
    before = shown.json("/api/ledger/credits")
    assert (before["is_settled"], shown.json("/api/trust")["settlement"]) == (False, None)
    assert before["pool_pending"] > 0
    run.settle(verdict_of(run.ledger, DOUBTED))
    shown.look()
    found, credits_ = shown.json("/api/trust"), shown.json("/api/ledger/credits")
    assert (found["is_settled"], found["settlement"], found["last_paid_round"]) == (True, run.ledger.settlement, 9)
    assert (credits_["pool_paid"], credits_["pool_pending"]) == (sum(run.ledger.credits().values()), 0)
    assert {one["account"]: one["trains"] for one in credits_["credits"]}[name(AUDITOR)] is False  # it is paid for audits alone
    assert (found["drawn"], found["undecided"], found["unjudged"]) == (8, 0, 8 - 2)  # the last round is not drawn
    entry = shown.json(f"/api/ledger/entries/{found['settlement']}")
    assert (entry["kind"], entry["peer"], entry["round"]) == ("settlement", None, None)
    assert entry["fields"] == {"run": run.ledger.run.hex(), "commit": run.ledger.last_commit.hex()}
    assert shown.json("/api/rounds/9")["round"] == 9


def test_credit_is_what_is_paid_and_what_is_pending_wherever_it_is_shown(tmp_path: Path) -> None:
    owner = Identity(b"\x51" * 32)
    for made in (audited_run(tmp_path / "audited"), demoted_run(tmp_path / "demoted")):
        made.round(peers=[HONEST], payout=owner.public_key)
        shown, reputation = looked(made.directory), made.ledger.reputation
        keys = {one["peer"]: one for one in shown.json("/api/trust/keys")["keys"]}
        peers = {one["peer"]: one["credit"] for one in shown.json("/api/peers")["peers"]}
        for peer in (LIAR, HONEST, DOUBTED):
            standing, one = reputation.standing(peer.public_key), keys[name(peer)]
            assert (one["paid"], one["paid"] + one["pending"]) == (standing.paid, standing.credit)
            assert peers[name(peer)] == standing.credit
            assert (one["is_proven"], one["is_guilty"]) == (reputation.is_proven(peer.public_key), peer.public_key in reputation.guilty)
            assert (one["found_good"], len(one["faults"])) == (reputation.good[peer.public_key], len(standing.faults))
            of_peer = shown.json(f"/api/peers/{name(peer)}")
            assert of_peer["trust"] == {field: value for field, value in one.items() if field != "peer"}
            assert sum(claim["credit"] for claim in of_peer["claims_list"]) == standing.credit  # audits pay nobody of these
        credits_ = shown.json("/api/ledger/credits")
        assert {bytes.fromhex(one["key"]): one["paid"] for one in credits_["credits"] if one["paid"]} == made.ledger.credits()
        for which in ("paid", "pending"):
            assert credits_[f"pool_{which}"] == sum(one[which] for one in credits_["credits"])
        (of_owner,) = [one for one in credits_["credits"] if one["key"] == owner.public_key.hex()]
        assert (of_owner["peers"], of_owner["credit"], of_owner["trains"]) == ([name(HONEST)], of_owner["pending"], False)


def test_a_round_says_what_each_claim_came_to_and_whether_it_is_paid(run: AuditedRun, shown: Shown, demoted: AuditedRun) -> None:
    rows = {row["founder"]: row for row in shown.json("/api/rounds/1")["contributions_list"]}
    assert [rows[name(peer)]["claims"][0]["outcome"] for peer in (LIAR, HONEST, DOUBTED)] == ["void", "good", None]
    assert {(row["is_audited"], row["is_paid"]) for row in rows.values()} == {(True, False)}
    assert rows[name(HONEST)]["claims"][0]["credit"] == run.ledger.reputation.expected(1)[HONEST.public_key]
    assert rows[name(LIAR)]["claims"][0]["credit"] == 0
    assert {row["is_audited"] for row in shown.json("/api/rounds/3")["contributions_list"]} == {None}  # it is not drawn yet
    (row,) = looked(demoted.directory).json("/api/rounds/1")["contributions_list"]
    assert (row["is_audited"], row["is_paid"], [claim["credit"] for claim in row["claims"]]) == (True, True, [0, 0])


def test_a_claim_that_is_listed_unpaid_has_no_credit_and_its_other_one_has_it(tmp_path: Path) -> None:
    run = AuditedRun(tmp_path / "run", local_steps=2, proven=(LIAR, HONEST))
    together, alone = cohort_header_of(run.ledger, [LIAR, HONEST]), header_of(run.ledger, HONEST)
    run.hand_in([together, alone])
    shown, expected = looked(run.directory), run.ledger.reputation.expected(1)
    assert shown.sight.view.reputation.pending == run.ledger.reputation.pending
    by_founder = {one["founder"]: one["claims"] for one in shown.json("/api/rounds/1")["contributions_list"]}
    assert [claim["credit"] for claim in by_founder[name(HONEST)]] == [expected[HONEST.public_key]]
    assert {claim["peer"]: claim["credit"] for claim in by_founder[name(LIAR)]} == {name(LIAR): expected[LIAR.public_key], name(HONEST): 0}
    for _ in range(6):
        run.round(peers=[LIAR])
    shown.look()
    assert 1 not in run.ledger.reputation.pending
    claims = shown.json(f"/api/peers/{name(HONEST)}")["claims_list"]
    assert sorted(claim["credit"] for claim in claims) == [0, run.ledger.reputation.earned[HONEST.public_key]]


def test_keys_with_faults_come_first_and_a_page_has_as_many_as_asked_for(shown: Shown) -> None:
    found = shown.json("/api/trust/keys")
    assert (found["total"], [bool(one["faults"]) for one in found["keys"]]) == (3, [True, False, False])
    page = shown.json("/api/trust/keys?offset=1&limit=1")
    assert page["keys"] == found["keys"][1:2]


@pytest.mark.parametrize(
    "target",
    [
        "/api/trust/contributions/x",
        f"/api/trust/contributions/{'0' * 64}",
        "/api/trust/keys?limit=201",
        "/api/trust/claims/x",
        "/api/trust/faults?limit=0",
    ],
)
def test_what_nobody_can_answer_is_told(shown: Shown, target: str) -> None:
    assert shown.get(target).status in (400, 404)


def test_metrics_say_what_audits_come_to(shown: Shown) -> None:
    text = shown.get("/metrics").body.decode()
    for line in (
        'manta_keys{reputation="proven"} 1.0',
        'manta_keys{reputation="guilty"} 1.0',
        "manta_audits_drawn_total 6.0",
        "manta_audits_undecided 4.0",
        "manta_audits_in_doubt 1.0",
        'manta_claims_audited{outcome="void"} 1.0',
        'manta_claims_audited{outcome="demoted"} 0.0',
        "manta_settled 0.0",
    ):
        assert f"\n{line}\n" in text, line


def test_an_open_run_has_no_trust_to_speak_of(played: tuple[Path, object]) -> None:
    found = Shown(played[0])
    overview = found.json("/api/trust")
    assert (overview["mode"], overview["drawn"], overview["share"], overview["auditors"]) == ("unaudited", 0, None, [])
    assert found.json("/api/trust/faults") == {"total": 0, "offset": 0, "faults": []}
    assert found.json("/api/trust/keys")["keys"] == []
    assert found.json(f"/api/peers/{found.get('/api/peers').json['peers'][0]['peer']}")["trust"] is None
