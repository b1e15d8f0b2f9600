"""What the API answers, against the log itself, and against the verifier of proofs that everybody else uses."""

import hashlib
from base64 import b64decode
from json import dumps
from pathlib import Path

import pytest

from manta_swarm.aggregator.log.log import Log
from manta_swarm.aggregator.monitor.people import LATE_MS
from manta_swarm.aggregator.monitor.quality import QUALITY
from manta_swarm.aggregator.states.opening import OpenedRun
from manta_swarm.protocol.merkle import verify_consistency, verify_inclusion
from manta_swarm.protocol.notes import open_tree_head, origin
from manta_swarm.protocol.records import Header, entry_of, open_entry
from manta_swarm.protocol.signing import peer_name
from tests.aggregator.monitor.asgi import Shown, live_of, looked, open_round, times_of, write_live
from tests.aggregator.real_run import OPERATOR, PEERS
from tests.aggregator.small_run import PEERS as SMALL_PEERS
from tests.aggregator.small_run import create, grow, header, signed_manifest
from tests.contributions import round_of

NAMES = [peer_name(peer.public_key) for peer in PEERS]
SMALL_KEYS = [peer.public_key for peer in SMALL_PEERS]
NEWCOMER = (bytes(31) + b"\x07").hex()


def test_the_run_is_described_by_its_manifest(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    run, manifest = shown.json("/api/run"), played[1].signed.open()
    assert run["run"] == played[1].signed.run.hex()
    assert (run["name"], run["task"], run["supernet"], run["num_rounds"]) == ("real", "classification", manifest.supernet, 9)
    assert "digits" in run["purpose"]
    assert run["ledger"]["operator"] == OPERATOR.public_key.hex()
    assert run["ledger"]["origin"] == origin(played[1].signed.run)
    assert run["join"] == ["manta-peer join"]


def test_now_has_the_round_the_peers_and_the_head(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    now, log = shown.json("/api/now"), played[1].log
    assert (now["round"], now["num_rounds"], now["is_finished"], now["state"]) == (3, 9, False, log.ledger.state.hex())
    assert now["head"] == {"size": log.head.size, "root": log.head.root.hex()}
    assert now["round_ms"] == 1_200
    assert now["left_ms"] == 6 * 1_200
    assert now["open"].items() >= {"round": 4, "stage": "open", "expected": 3, "handed": 2, "good": 1, "late": 0}.items()
    assert now["peers"] == {"known": 3, "took_part": 3, "present": 3, "counted": 3, "late": 0, "away": 0, "cohorts": 1}
    assert now["reading"] is None


def test_every_entry_can_be_proven_by_who_has_the_operators_key_alone(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    head, ledger = shown.json("/api/ledger/head"), shown.json("/api/run")["ledger"]
    signed = open_tree_head(head["note"], ledger["origin"], bytes.fromhex(ledger["operator"]))
    assert (signed.size, signed.root.hex()) == (head["size"], head["root"])
    for index in range(signed.size):
        shown_entry, proof = shown.json(f"/api/ledger/entries/{index}"), shown.json(f"/api/ledger/proof?index={index}&size={signed.size}")
        entry = b64decode(shown_entry["entry"], validate=True)
        assert entry == played[1].log.entry(index)
        leaf = hashlib.sha256(b"\x00" + entry).digest()
        assert shown_entry["leaf_hash"] == proof["leaf_hash"] == leaf.hex()
        verify_inclusion(leaf, index, signed.size, [bytes.fromhex(each) for each in proof["proof"]], signed.root)


def test_every_earlier_log_can_be_proven_a_part_of_the_newest(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    for old in range(11):
        answer = shown.json(f"/api/ledger/consistency?old={old}")
        proof = [bytes.fromhex(each) for each in answer["proof"]]
        verify_consistency(old, answer["new"], proof, shown.sight.log.root(old), played[1].log.head.root)


def test_an_entry_says_in_json_what_its_bytes_say(shown: Shown) -> None:
    for index in range(10):
        answer = shown.json(f"/api/ledger/entries/{index}")
        record = open_entry(b64decode(answer["entry"]))
        assert entry_of(record) == b64decode(answer["entry"])
        assert answer["kind"] == ("round" if index in (3, 7, 9) else answer["kind"])
        assert answer["fields"]["run"] == shown.json("/api/run")["run"]
        if answer["kind"] != "round":
            assert isinstance(record, Header)
            assert record.contribution.digest.hex() == answer["fields"]["digest"]
            assert [one["digest"] for one in answer["fields"]["claims"]] == [claim.digest.hex() for claim in record.claims]
        else:
            assert "digest" not in answer["fields"]


def test_entries_come_in_pages_the_newest_first_and_none_twice(shown: Shown) -> None:
    indices, before = [], ""
    while True:
        page = shown.json(f"/api/ledger/entries?limit=4&before={before}")
        indices += [entry["index"] for entry in page["entries"]]
        if page["more_before"] is None:
            break
        before = page["more_before"]
    assert indices == list(range(9, -1, -1))


def test_rounds_come_in_pages_and_each_has_who_gave_what(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    first, second = shown.json("/api/rounds?limit=2"), shown.json("/api/rounds?limit=2&before=2")
    assert [one["round"] for one in (*first["rounds"], *second["rounds"])] == [3, 2, 1]
    assert (first["more_before"], second["more_before"]) == (2, None)
    alone, together = shown.json("/api/rounds/2"), shown.json("/api/rounds/3")
    assert [len(row["claims"]) for row in alone["contributions_list"]] == [1, 1, 1]
    assert sorted(row["founder"] for row in alone["contributions_list"]) == sorted(NAMES)
    (row,) = together["contributions_list"]
    assert sorted(claim["peer"] for claim in row["claims"]) == sorted(NAMES)
    assert sum(claim["credit"] for claim in row["claims"]) == played[1].log.ledger.manifest.reward_pool
    assert [one["founder"] for one in shown.json("/api/rounds/2?offset=1&limit=1")["contributions_list"]] == [
        alone["contributions_list"][1]["founder"]
    ]


def test_a_rounds_timeline_says_what_was_seen_and_what_nobody_can_see(shown: Shown) -> None:
    spans = {span["name"]: span for span in shown.json("/api/rounds/3")["timeline"]["spans"]}
    assert {name: span["known"] for name, span in spans.items()} == {
        "train": "claimed",
        "average": "unknown",
        "publish": "measured",
        "close": "measured",
        "commit": "measured",
        "fetch": "measured",
        "update": "unknown",
    }
    assert (spans["publish"]["start_ms"], spans["publish"]["end_ms"]) == (600, 700)
    assert spans["commit"]["end_ms"] == 1_000
    assert [one["round"] for one in shown.json("/api/timeline?limit=2")["timelines"]] == [3, 2]


def test_a_peer_finds_its_work_by_its_name_its_key_or_the_end_of_its_name(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    key, name = PEERS[1].public_key, NAMES[1]
    answers = [shown.json(f"/api/peers/{text}") for text in (name, key.hex(), name[-8:])]
    assert all(answer["peer"] == name for answer in answers)
    credits = played[1].log.ledger.credits()
    assert answers[0]["credit"] == credits[key]
    assert answers[0]["credit_share"] == credits[key] / sum(credits.values())
    assert [claim["round"] for claim in answers[0]["claims_list"]] == [3, 2, 1]
    page = shown.json(f"/api/peers/{name}?limit=2")
    assert page["more_before"] == 2
    assert [claim["round"] for claim in shown.json(f"/api/peers/{name}?limit=2&before=2")["claims_list"]] == [1]
    for claim in answers[0]["claims_list"]:
        entry = shown.json(f"/api/ledger/entries/{claim['index']}")
        assert (entry["kind"], entry["fields"]["round"]) == ("contribution", claim["base_round"] + 1)
        assert key.hex() in [one["key"] for one in entry["fields"]["claims"]]


def test_peers_are_sorted_filtered_and_paged(shown: Shown) -> None:
    by_name = shown.json("/api/peers?sort=peer")["peers"]
    assert [one["peer"] for one in by_name] == sorted(NAMES)
    assert [one["peer"] for one in shown.json("/api/peers?sort=peer&order=desc&offset=1&limit=1")["peers"]] == [sorted(NAMES)[1]]
    credits = [one["credit"] for one in shown.json("/api/peers")["peers"]]
    assert credits == sorted(credits, reverse=True)
    assert shown.json(f"/api/peers?query={NAMES[2][-5:]}")["total"] == 1
    assert shown.json("/api/peers?cohort=nobody")["total"] == 0
    assert shown.json("/api/peers?state=counted&cohort=here")["total"] == 3
    assert {one["peer"]: one["open"] for one in by_name} == dict(zip(NAMES, ("good", "header", "none"), strict=True))


def test_the_whole_swarm_comes_in_columns(shown: Shown) -> None:
    swarm = shown.json("/api/swarm")
    columns = [swarm[name] for name in ("peer", "cohort", "state", "open", "is_founder", "last_samples")]
    assert {len(column) for column in columns} == {swarm["shown"]} == {3}
    assert swarm["cohorts"] == ["here"]
    assert sum(swarm["is_founder"]) == 1
    assert {shown.json(f"/api/peers/{peer}")["peer"] for peer in swarm["peer"]} == set(NAMES)


def test_credits_are_those_of_the_ledger(shown: Shown, played: tuple[Path, OpenedRun]) -> None:
    answer = shown.json("/api/ledger/credits")
    assert {bytes.fromhex(one["key"]): one["credit"] for one in answer["credits"]} == played[1].log.ledger.credits()
    assert answer["pool_paid"] == sum(one["credit"] for one in answer["credits"])


def test_a_log_that_grows_is_followed_and_a_peer_that_stays_away_is_seen(log: Log, directory: Path) -> None:
    grow(log, 1)
    shown = looked(directory)
    assert shown.json("/api/now")["round"] == 1
    grow(log, 2)
    shown.look()
    assert shown.json("/api/now")["round"] == 3
    assert [head["size"] for head in shown.json("/api/ledger/heads")["heads"]] == [12, 4]
    write_live(directory, live_of(open=open_round(4, SMALL_KEYS, {SMALL_KEYS[0]: "good"}, left_ms=-LATE_MS - 50)))
    shown.look()
    now = shown.json("/api/now")
    assert now["open"]["late_peers"] == sorted(peer_name(key) for key in SMALL_KEYS[1:])
    assert now["peers"]["late"] == 2
    assert shown.json(f"/api/peers/{peer_name(SMALL_KEYS[1])}")["state"] == "late"


@pytest.mark.parametrize(
    ("left_ms", "told_ms_ago"),
    [
        (-LATE_MS + 400, 0),  # the deadline of a short round: it will be closed in a moment
        (-LATE_MS - 400, 1_000),  # it is over for long by now, but was not when the aggregator told who had handed in
    ],
)
def test_nobody_is_late_by_less_than_can_be_seen_nor_by_what_was_told_before(
    log: Log, directory: Path, left_ms: int, told_ms_ago: int
) -> None:
    grow(log, 3)
    live = live_of(open=open_round(4, SMALL_KEYS, {}, left_ms=left_ms))
    write_live(directory, live.model_copy(update={"written_at": live.written_at - told_ms_ago}))
    shown = looked(directory)
    assert shown.json("/api/now")["open"]["late_peers"] == []
    assert set(shown.json("/api/swarm")["state"]) == {"counted"}


@pytest.mark.parametrize(("heard_ms", "is_there"), [(9_000, True), (15_000, False)])
def test_who_was_heard_of_but_is_in_no_table_yet_is_there_for_a_few_rounds_time(
    log: Log, directory: Path, heard_ms: int, is_there: bool
) -> None:
    grow(log, 2)
    live = live_of()
    times = tuple(times_of(round_, live.written_at - 1_000 * (3 - round_)) for round_ in (1, 2))  # a round takes a second
    write_live(directory, live.model_copy(update={"times": times, "heard": {NEWCOMER: live.written_at - heard_ms}}))
    shown = looked(directory)
    assert (NEWCOMER in [peer["key"] for peer in shown.json("/api/peers")["peers"]]) == is_there
    assert shown.json("/api/swarm")["cohort"].count(None) == is_there
    if is_there:
        peer = shown.json(f"/api/peers/{NEWCOMER}")
        assert (peer["state"], peer["claims"], peer["claims_list"], peer["rank"]) == ("present", 0, [], None)


def test_of_a_finished_run_nobody_is_at_work_and_it_is_said_who_took_part(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with create(directory, signed_manifest(num_rounds=2)) as log:
        grow(log, 2)
        keys = SMALL_KEYS
        live = live_of(open=open_round(2, keys, {keys[0]: "good"}, left_ms=-10_000))  # said before the last round's commit
        heard = {NEWCOMER: live.written_at, keys[0].hex(): live.written_at, keys[1].hex(): live.written_at - 300_000}
        write_live(directory, live.model_copy(update={"heard": heard}))
        shown = looked(directory)
        now = shown.json("/api/now")
        assert (now["is_finished"], now["open"]) == (True, None)
        told = {"known": 4, "took_part": 3, "present": 2, "counted": 3, "late": 0, "away": 0, "cohorts": now["peers"]["cohorts"]}
        assert now["peers"] == told
        peers = {one["key"]: one for one in shown.json("/api/peers")["peers"]}
        assert {key: one["state"] for key, one in peers.items()} == {NEWCOMER: "present", **{key.hex(): "counted" for key in keys}}
        assert {one["open"] for one in peers.values()} == {None}
        assert shown.json(f"/api/peers/{keys[0].hex()}")["is_finished"] is shown.json("/api/swarm")["is_finished"] is True


def test_who_was_in_the_round_before_the_last_one_has_left_a_finished_run(tmp_path: Path) -> None:
    for num_rounds, state in ((2, "away"), (3, "present")):
        directory = tmp_path / f"of-{num_rounds}"
        with create(directory, signed_manifest(num_rounds=num_rounds)) as log:
            grow(log, 1)
            headers = [header(log.ledger, peer) for peer in SMALL_PEERS[1:]]
            listed = [log.ledger.listed(one, 2) for one in headers]
            log.commit([*map(entry_of, headers), entry_of(round_of(log.ledger, listed))])
            found = looked(directory).json(f"/api/peers/{SMALL_PEERS[0].public_key.hex()}")
            assert (found["state"], found["is_finished"]) == (state, num_rounds == 2)


def test_curves_of_quality_and_fronts_come_from_the_evaluators_file(log: Log, directory: Path) -> None:
    grow(log, 3)
    write_live(directory, live_of())
    lines = []
    for round_ in (0, 1, 2):
        state = (log.ledger.state_at(round_) if round_ else log.ledger.manifest.initial_state).hex()
        points = [
            {"macs": 100, "kind": "smallest", "quality": 0.1 * round_, "loss": 2.0, "latency_ms": 3.0},
            {"macs": 150, "kind": "random", "quality": 0.05, "latency_ms": 1.5},
            {"macs": 200, "kind": "largest", "quality": 0.2 * round_, "loss": 1.0, "latency_ms": 2.0},
        ]
        if not round_:  # written before latencies were
            points = [{name: value for name, value in point.items() if name != "latency_ms"} for point in points]
        lines.append({"round": round_, "state": state, "at": 1, "seconds": 0.5, "held_out": 355, "points": points})
    text = "".join(dumps(line) + "\n" for line in lines)
    (directory / "monitor" / QUALITY).write_text(text + '{"round": 3, "sta')  # the evaluator is just writing
    shown = looked(directory)
    quality = shown.json("/api/quality")
    assert (quality["round"], quality["largest"], quality["held_out"]) == ([0, 1, 2], [0.0, 0.2, 0.4], 355)
    assert quality["random_median"] == [0.05, 0.05, 0.05]
    assert shown.json("/api/quality?from=1&to=1")["round"] == [1]
    front = shown.json("/api/fronts?limit=1")["fronts"][0]
    assert (front["round"], [point["on_front"] for point in front["points"]]) == (2, [True, False, True])
    assert shown.json("/api/fronts")["cost"] == "macs"
    by_latency = shown.json("/api/fronts?cost=latency")
    assert (by_latency["cost"], [one["round"] for one in by_latency["fronts"]]) == ("latency", [2, 1, 0])
    found = [(point["kind"], point["latency_ms"], point["on_front"]) for point in by_latency["fronts"][0]["points"]]
    assert found == [("random", 1.5, True), ("largest", 2.0, True), ("smallest", 3.0, False)]
    assert [point["latency_ms"] for point in by_latency["fronts"][-1]["points"]] == [1.5, 2.0, 3.0]  # the same subnets
    assert shown.json("/api/now")["quality"]["largest"] == 0.4
    assert shown.json("/api/now")["alarms"] == []
