"""Forged folders: each function here changes one thing in the folder of a run that ``docs/verifier.py`` then has to refuse.

``FORGERIES`` has them by their names, with the rule, the place and the words of the refusal. Some change files and no more. In the others
whoever forges has the operator's key, and where it is said the peers' keys too: entries, tree, database and heads fit each other and are
signed, so that only what the entries say can be wrong.
"""

import json
from dataclasses import replace

from manta_swarm.protocol.encoding import encode, pack, unpack
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.records import Header, Receipt, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import sha256
from manta_swarm.protocol.verdicts import Settlement, Verdict
from tests.contributions import with_contribution
from tests.docs.forging import (
    FORGERIES,
    HEAD,
    MANIFEST,
    RECEIPT,
    WORK,
    Folder,
    NotOfThisRun,
    bodies_of,
    forgery,
    founder,
    header_in,
    is_of,
    receipt_of,
    rewrite_bodies,
    round_in,
    show,
    snapshot_of,
    tell,
    verdicts_in,
    with_field,
)
from tests.docs.logs import ONE, STRANGER, THREE, Log, resigned, tree_of
from tests.docs.whole import UNKNOWN, WholeRun

__all__ = ["FORGERIES"]

# Files alone.


@forgery("S2", "manifest.cbor", "a manifest of")
def the_manifest_is_changed(folder: Folder) -> None:
    signed = folder.signed
    folder.write(MANIFEST, pack(replace(signed, payload=signed.payload[:-1] + bytes([signed.payload[-1] ^ 2]))))


@forgery("S2", "entry 3", "signed by the key that has to sign it (a contribution of")
def a_byte_of_a_signature_is_flipped(folder: Folder) -> None:
    at = next(at for at, entry in enumerate(folder.entries) if at > RECEIPT and is_of(entry, Header))
    header = header_in(folder.entries[at])
    signature = bytes([header.contribution.signature[0] ^ 1]) + header.contribution.signature[1:]
    changed = replace(header, contribution=replace(header.contribution, signature=signature))
    folder.execute("UPDATE entries SET bytes = ? WHERE position = ?", entry_of(changed), at)


@forgery("B2", "entry 0", "nothing after them")
def a_byte_follows_an_entry(folder: Folder) -> None:
    folder.execute("UPDATE entries SET bytes = ? WHERE position = 0", folder.entries[0] + b"\0")


@forgery("T3", "log.sqlite3", "an entry is missing")
def an_entry_is_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM entries WHERE position = 4")


@forgery("T3", "the tree", "the database says 29 entries, and has 21")
def the_last_entries_are_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM entries WHERE position >= ?", len(folder.before(folder.last)))


@forgery("T3", "the tree", "the database says another root")
def a_mean_is_another_than_the_one_that_was_signed(folder: Folder) -> None:
    *_, last = folder.entries_of(folder.last)
    end = folder.ends[-1] - 1
    folder.execute("DELETE FROM entries WHERE position > ?", end)
    folder.execute("UPDATE log SET size = ?", end + 1)
    folder.execute("UPDATE entries SET bytes = ? WHERE position = ?", last.replace(round_in([last]).mean, UNKNOWN), end)


@forgery("T4", "node 1/0", "another hash")
def a_stored_node_is_another(folder: Folder) -> None:
    folder.execute("UPDATE nodes SET hash = zeroblob(32) WHERE level = 1 AND position = 0")


@forgery("T4", "the tree", "53 stored nodes of 54")
def a_stored_node_is_missing(folder: Folder) -> None:
    folder.execute("DELETE FROM nodes WHERE level = 2 AND position = 1")


@forgery("T4", "node 1/99", "it is of no entries")
def a_stored_node_is_of_entries_that_there_are_not(folder: Folder) -> None:
    folder.execute("UPDATE nodes SET position = 99 WHERE level = 1 AND position = 0")


@forgery("T3", "the tree", "of another run or operator")
def the_database_is_another_operators(folder: Folder) -> None:
    folder.execute("UPDATE log SET operator = ?", STRANGER.public_key)


@forgery("S2", "tree-head.txt", "a tree head")
def a_tree_head_says_another_size(folder: Folder) -> None:
    size = len(folder.entries)
    folder.write(HEAD, (folder.path / HEAD).read_bytes().replace(b"\n%d\n" % size, b"\n%d\n" % (size - 1)))


@forgery("T6", "snapshots/round-00000003.json", "the size or the root beside it is another")
def the_size_beside_a_snapshot_is_another(folder: Folder) -> None:
    name = snapshot_of(folder.snapshots()[1], "json")
    folder.write(name, json.dumps({**json.loads((folder.path / name).read_bytes()), "ledger_size": 1}).encode())


@forgery("T6", "snapshots/round-00000006.json", "it has not come to round 6")
def a_snapshot_is_proved_by_an_older_head(folder: Folder) -> None:
    _, older, *_, last = folder.snapshots()
    folder.write(snapshot_of(last, "json"), (folder.path / snapshot_of(older, "json")).read_bytes())


@forgery("D1", "round 2", "of 1 of 2 contributions it is missing")
def a_body_is_damaged(folder: Folder) -> None:
    folder.change(bodies_of(2), lambda data: data.__setitem__(-40, data[-40] ^ 1))


@forgery("D3", "round 6", "of 5 of 6 rounds")
def the_bodies_of_a_round_are_missing(folder: Folder) -> None:
    (folder.path / bodies_of(folder.last - 2)).unlink()


@forgery("D1", "round 2", "another root than the contribution of")
def a_body_is_that_of_another_contribution(folder: Folder) -> None:
    round_ = folder.round_with(Header, 2)
    one, other, *rest = folder.bodies(round_)
    rewrite_bodies(folder, round_, [replace(one, body=other.body), replace(other, body=one.body), *rest])


@forgery("D2", "round 2", "an exponent beyond its range")
def a_body_has_an_exponent_that_there_is_not(folder: Folder) -> None:
    one, *rest = folder.bodies(2)
    rewrite_bodies(folder, 2, [replace(one, body=b"\x18" + one.body[1:]), *rest])


@forgery("D1", "round 2", "claims beside it are others than the log has")
def a_claim_beside_a_body_is_another(folder: Folder) -> None:
    one, *rest = folder.bodies(2)
    other = folder.bodies(3)[0].header
    rewrite_bodies(folder, 2, [replace(one, header=replace(one.header, claims=other.claims)), *rest])


@forgery("U1", "snapshots/round-00000003.safetensors", "another digest")
def a_weight_in_a_snapshot_is_another(folder: Folder) -> None:
    folder.change(snapshot_of(folder.snapshots()[1]), lambda data: data.__setitem__(-2, data[-2] ^ 1))


@forgery("U1", "snapshots/round-00000006.safetensors", "it is of round 3")
def a_snapshot_is_that_of_another_round(folder: Folder) -> None:
    _, older, *_, last = folder.snapshots()
    folder.write(snapshot_of(last), (folder.path / snapshot_of(older)).read_bytes())


@forgery("U1", "snapshots/round-00000003.safetensors", "bytes that are of no vector")
def bytes_follow_a_snapshot(folder: Folder) -> None:
    folder.change(snapshot_of(folder.snapshots()[1]), lambda data: data.extend(b"more"))


@forgery("U1", "snapshots/round-00000003.safetensors", "it names another run or state")
def a_snapshot_names_another_run(folder: Folder) -> None:
    run, name = folder.signed.run.hex().encode(), snapshot_of(folder.snapshots()[1])
    folder.write(name, (folder.path / name).read_bytes().replace(run, run[::-1]))


@forgery("U3", "round 6", "3 of 6 states were computed")
def the_first_state_is_missing(folder: Folder) -> None:
    for suffix in ("safetensors", "json"):
        (folder.path / snapshot_of(0, suffix)).unlink()


@forgery("C1", "credits.json", "has 1932, it says 11931")
def a_credit_is_too_high(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    said["accounts"][0]["paid"] += 9999
    tell(folder, said)


@forgery("C1", "credits.json", "has 500, it says 0")
def an_account_is_left_out_of_the_credits(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    least = min((account for account in said["accounts"] if account["paid"]), key=lambda account: account["paid"])
    tell(folder, {**said, "accounts": [account for account in said["accounts"] if account is not least]})


@forgery("C1", "credits.json", "is proven")
def whether_a_key_is_proven_is_said_wrongly(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    peer = said["accounts"][0]["peers"][0]
    peer["is_proven"] = not peer["is_proven"]
    tell(folder, said)


@forgery("C1", "credits.json", "of a log of another size")
def the_credits_are_of_an_older_log(folder: Folder) -> None:
    said = json.loads((folder.path.parent / "credits.json").read_bytes())
    tell(folder, {**said, "entries": said["entries"] - 1})


@forgery("T2", "receipt", "0 of 1 operators signed it")
def a_receipt_is_signed_by_another_key(folder: Folder) -> None:
    show(folder, receipt_of(folder.entries, RECEIPT, folder.signed.run, STRANGER))


@forgery("T5", "receipt", "a receipt")
def a_receipt_is_of_another_entry(folder: Folder) -> None:
    receipt = unpack(Receipt, (folder.path.parent / "receipt").read_bytes(), max_bytes=2**17)
    show(folder, pack(replace(receipt, entry=folder.entries[RECEIPT + 1])))


# With the operator's key.


@forgery("E1", "entry 0", "of another run")
def the_manifest_is_another_that_the_operator_signed(folder: Folder) -> None:
    signed = SignedManifest.sign(replace(folder.manifest, reward_pool=999), folder.operator)
    folder.write(MANIFEST, pack(signed))
    folder.execute("UPDATE log SET run = ?", signed.run)
    folder.seal(folder.entries)


@forgery("T2", "tree-head.txt", "0 of 1 operators signed it")
def a_tree_head_is_signed_by_another_key(folder: Folder) -> None:
    tree = tree_of(folder.entries)
    folder.write(HEAD, folder.head(tree.size, tree.root(), signer=STRANGER))


@forgery("T2", "tree-head.txt", "it is of manta/00000000")
def a_tree_head_is_of_another_run(folder: Folder) -> None:
    tree = tree_of(folder.entries)
    folder.write(HEAD, folder.head(tree.size, tree.root(), run=bytes(32)))


@forgery("T3", "tree-head.txt", "its root is another than that of the first 29 entries")
def a_tree_head_has_another_root(folder: Folder) -> None:
    folder.write(HEAD, folder.head(len(folder.entries), UNKNOWN))


@forgery("T3", "tree-head.txt", "it is of 30 entries, there are 29")
def a_tree_head_is_of_more_entries(folder: Folder) -> None:
    folder.write(HEAD, folder.head(len(folder.entries) + 1, UNKNOWN))


@forgery("T3", "the tree", "28 of 29 entries are under the signed head")
def a_tree_head_is_of_fewer_entries(folder: Folder) -> None:
    tree = tree_of(folder.entries[:-1])
    folder.write(HEAD, folder.head(tree.size, tree.root()))


@forgery("T3", "receipt", "another entry than the log has")
def a_receipt_is_of_a_second_history(folder: Folder) -> None:
    folder.seal_round(folder.last, mean=UNKNOWN)
    show(folder, receipt_of(folder.entries, folder.ends[-1] - 1, folder.signed.run, folder.operator))


@forgery("V1", "round 6", "they are 65535, 32767")
def the_weights_of_a_mean_are_others(folder: Folder) -> None:
    folder.seal_round(folder.last, weights=UNKNOWN)


@forgery("V2", "round 6", "the mean is that of the bodies (its root is")
def a_mean_is_another(folder: Folder) -> None:
    folder.seal_round(folder.last, mean=round_in(folder.entries_of(folder.last - 1)).mean)


@forgery("V3", "round 6", "the min exponent is -25, the entry says -24")
def a_min_exponent_is_another(folder: Folder) -> None:
    before, said = (round_in(folder.entries_of(round_)).min_exponent for round_ in (folder.last - 1, folder.last))
    folder.seal_round(folder.last, min_exponent=before if said != before else before + 1)


@forgery("V3", "round 6", "other thresholds")
def a_threshold_is_another(folder: Folder) -> None:
    thresholds = round_in(folder.entries_of(folder.last)).thresholds
    folder.seal_round(folder.last, thresholds=(replace(thresholds[0], norm=thresholds[0].norm * 2), *thresholds[1:]))


@forgery("U2", "round 6", "follows from the state and the mean (its digest is")
def a_state_is_that_of_the_round_before(folder: Folder) -> None:
    folder.seal_round(folder.last, state=round_in(folder.entries_of(folder.last - 1)).state)


@forgery("U2", "round 4", "follows from the state and the mean (its digest is")
def a_state_is_another_and_all_that_comes_after_it_follows_from_it(folder: Folder) -> None:
    """The peers go on from it, by their own keys."""
    if folder.run is None:
        raise NotOfThisRun
    run = WholeRun(folder.log(4), folder.run.rounds[2].after.state, folder.run.rounds[:3])
    table = folder.run.rounds[3].handed_in
    run.state = replace(run.state, moments=tuple(moment * 2 for moment in run.state.moments))
    run.commit(table, verdicts_in(folder.entries_of(4)))
    run.commit([run.made(THREE, seed=3, cohort="there")])
    folder.seal(run.log.entries)
    for round_ in (4, 5):
        rewrite_bodies(folder, round_, run.rounds[round_ - 1].handed_in)


@forgery("D1", "round 6", "another root than the contribution of")
def a_contribution_names_the_body_of_another_one(folder: Folder) -> None:
    """THREE signs it."""
    if folder.run is None:
        raise NotOfThisRun
    last, log = folder.last, folder.log(folder.last)
    kept = folder.bodies(last)
    headers = [each.header for each in kept]
    body = next(header for header in headers if founder(header) != THREE.public_key).contribution.open().body
    lying = [with_contribution(header, THREE, body=body) if founder(header) == THREE.public_key else header for header in headers]
    said = round_in(folder.entries_of(last))
    entries = log.round(lying, verdicts_in(folder.entries_of(last)), mean=said.mean, state=said.state, thresholds=said.thresholds)
    folder.seal([*log.entries, *entries])
    rewrite_bodies(folder, last, [replace(each, header=header) for each, header in zip(kept, lying, strict=True)])


@forgery("E1", "entry 21", "known kind, and of this run (bonus)")
def an_entry_is_of_an_unknown_kind(folder: Folder) -> None:
    folder.seal([*folder.before(folder.last), encode(("bonus", b""))])


@forgery("E13", "entry 10", "not a commit of this log")
def a_verdict_is_left_out(folder: Folder) -> None:
    """The operator says nothing of it in the round after it, either; what is computed from that round's state names another commit.

    Until then nobody has named that commit: there the log alone cannot show what is missing.
    """
    round_ = folder.round_with(Verdict)
    entries = folder.entries_of(round_)
    after = [header_in(entry) for entry in folder.entries[folder.ends[round_] : folder.ends[-1]] if is_of(entry, Header)]
    if not any(header.contribution.open().round > round_ for header in after):
        raise NotOfThisRun
    said = round_in(entries)
    rest = [entry for entry in folder.entries[folder.ends[round_] : folder.ends[-1]] if not is_of(entry, Verdict)]
    folder.seal([*folder.before(round_), *entries[1:-1], entry_of(replace(said, first=said.first - 1)), *rest])


@forgery("E9", "entry 7", "an auditor judges a contribution once")
def a_verdict_stands_twice(folder: Folder) -> None:
    round_ = folder.round_with(Verdict)
    folder.seal([*folder.before(round_), folder.entries_of(round_)[0], *folder.entries_of(round_)])


@forgery("E7", "entry 6", "a verdict is a named auditor's")
def a_verdict_is_by_another_auditor(folder: Folder) -> None:
    round_ = folder.round_with(Verdict)
    (verdict, *_) = verdicts_in(folder.entries_of(round_))
    said = replace(verdict.open(), auditor=STRANGER.public_key, by=STRANGER.public_key)
    folder.seal([*folder.before(round_), entry_of(Signed.sign(said, STRANGER))])


@forgery("E6", "entry 3", "not an operator's")
def a_revocation_is_signed_by_another_operator(folder: Folder) -> None:
    folder.seal([*folder.before(2), Log(folder.signed).revocation(ONE, operator=STRANGER), *folder.entries_of(2)])


@forgery("E25", "entry 4", "strictly sorted by founder")
def contributions_stand_in_another_order(folder: Folder) -> None:
    *before, one, other, last = folder.entries_of(round_ := folder.round_with(Header, 2))
    folder.seal([*folder.before(round_), *before, other, one, last])


@forgery("E27", "entry 4", "the places of the contributions right before it")
def a_contribution_is_dropped(folder: Folder) -> None:
    *before, one, _, last = folder.entries_of(round_ := folder.round_with(Header, 2))
    folder.seal([*folder.before(round_), *before, one, last])


def of_three(folder: Folder, round_: int) -> Header:
    """Return THREE's contribution to a round."""
    return next(one.header for one in folder.bodies(round_) if founder(one.header) == THREE.public_key)


@forgery("E23", "entry 24", "its work on this base is in the log")
def a_claim_is_counted_twice(folder: Folder) -> None:
    """The work of THREE in the round before."""
    folder.seal_contribution(lambda _: of_three(folder, folder.last - 1))


@forgery("E13", "entry 24", "too old")
def a_contribution_is_older_than_allowed(folder: Folder) -> None:
    folder.seal_contribution(lambda _: of_three(folder, 1))


@forgery("E13", "entry 24", "not a commit of this log")
def a_contribution_is_on_another_base(folder: Folder) -> None:
    folder.seal_contribution(lambda header: with_contribution(resigned(header, THREE, base=UNKNOWN), THREE, base=UNKNOWN))


@forgery("E20", "entry 24", "other architectures than its indices are of")
def a_claim_says_more_work_than_its_indices(folder: Folder) -> None:
    folder.seal_contribution(lambda header: with_field(header, WORK, (9,)))


@forgery("E15", "entry 24", "exactly the claims that come with it")
def a_claim_is_changed_after_it_was_listed(folder: Folder) -> None:
    folder.seal_contribution(lambda header: replace(header, claims=resigned(header, THREE, payout=ONE.public_key).claims))


@forgery("S2", "entry 24", "a claim of")
def a_claim_is_signed_by_another_key(folder: Folder) -> None:
    folder.seal_contribution(lambda header: resigned(header, STRANGER, payout=STRANGER.public_key))


@forgery("E26", "entry 25", "a round follows the one before it")
def a_round_names_another_base(folder: Folder) -> None:
    folder.seal_round(folder.last, base=UNKNOWN)


@forgery("E28", "entry 25", "by at most one exponent")
def a_min_exponent_moves_too_far(folder: Folder) -> None:
    folder.seal_round(folder.last, min_exponent=round_in(folder.entries_of(folder.last - 1)).min_exponent + 2)


@forgery("E29", "entry 25", "within the manifest's bounds")
def a_round_is_open_for_too_long(folder: Folder) -> None:
    folder.seal_round(folder.last, open_ms=folder.manifest.exchange.max_open_ms + 1)


@forgery("E2", "entry 16", "before the last round")
def a_settlement_comes_too_early(folder: Folder) -> None:
    before = folder.before(folder.last - 1)
    folder.seal([*before, entry_of(Settlement(folder.signed.run, sha256(before[-1])))])


@forgery("E30", "entry 28", "a settlement is on the last round's commit")
def a_settlement_is_on_another_commit(folder: Folder) -> None:
    if not is_of(folder.entries[-1], Settlement):
        raise NotOfThisRun
    folder.seal([*folder.entries[:-1], entry_of(Settlement(folder.signed.run, UNKNOWN))])


@forgery("E2", "entry 29", "the run is over")
def an_entry_follows_the_end(folder: Folder) -> None:
    folder.seal([*folder.entries, folder.entries[-1]])


@forgery("E2", "entry 25", "in the middle of a round")
def the_log_ends_before_a_rounds_entry(folder: Folder) -> None:
    folder.seal_last(folder.last, lambda entries: entries[:-1])
