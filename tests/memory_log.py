"""A run's log in memory: the real rules, arithmetic and messages, but its rounds close when a test says so, and it can be told to fail."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from manta_swarm.aggregator.commit.feed import credit_word
from manta_swarm.aggregator.features.audits.brought import BroughtVectors
from manta_swarm.automl.spaces.cost import cost_table
from manta_swarm.automl.spaces.space import space_named
from manta_swarm.automl.training.coverage import RunTrainingSpec
from manta_swarm.automl.training.schedule import Plan
from manta_swarm.automl.training.update import State, initial_state, next_state, state_digest, state_pieces
from manta_swarm.codec.coding import body_groups, encode, group_sizes, parse
from manta_swarm.codec.mean import table_mean
from manta_swarm.codec.vectors import vector_groups
from manta_swarm.network import log_client, log_proofs
from manta_swarm.network.blobs import Blob, BlobStore
from manta_swarm.network.distances import serve_pings
from manta_swarm.network.memory import MemoryNetwork
from manta_swarm.network.rates import CallerFaults
from manta_swarm.network.vectors import serve_vectors
from manta_swarm.protocol.auditing import MAX_SIGNED_VERDICT_BYTES, VERDICT
from manta_swarm.protocol.cosignatures import cosign, with_cosignatures
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.errors import ClaimError, LedgerError, Unreachable
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.listed import Listed, open_ms_after, weighed_in
from manta_swarm.protocol.manifest import Manifest, SignedManifest
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import TreeHead, head_text, origin, sign_tree_head
from manta_swarm.protocol.operators import Operators
from manta_swarm.protocol.receipts import open_round_receipt
from manta_swarm.protocol.records import Header, Included, InclusionPromise, Listing, Receipt, Round, entry_of
from manta_swarm.protocol.reputation import Reputation
from manta_swarm.protocol.rewards import RoundContributions
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import Identity, PublicKey
from manta_swarm.protocol.table import Weighed, weighed_bytes, weights_root
from manta_swarm.protocol.verdicts import Verdict
from tests.clocks import ManualClock
from tests.contributions import header_of
from tests.runs import EXCHANGE, manifest_of

OPERATOR = Identity(b"\x01" * 32)
PEERS = [Identity(bytes([seed]) * 32) for seed in range(11, 15)]
MICROBATCH = 16  # samples
MICROBATCHES = 2  # that a claim has at most
DEADLINE_S = 240.0


@cache
def start_of(plan: Plan) -> State:
    """Return a run's first state, made once."""
    return initial_state(plan)


CLAIMS_PAGE = 2  # contributions
SMALL_EXCHANGE = replace(EXCHANGE, max_claim_samples=MICROBATCHES * MICROBATCH, weight_cap=MICROBATCHES * MICROBATCH)


def signed_manifest(**changes: Any) -> SignedManifest:
    """Return the manifest of a small run with real prices and a real first state; claims have at most ``MICROBATCHES`` microbatches."""
    settings = {"exchange": SMALL_EXCHANGE, "num_rounds": 100, "microbatch_samples": MICROBATCH, **changes}
    keys = tuple(each.public_key for each in settings.pop("operators", (OPERATOR,)))
    quorum = len(keys) // 2 + 1
    manifest = manifest_of(OPERATOR, costs=cost_table(space_named("classifier-tiny")), operators=keys, quorum=quorum, **settings)
    return SignedManifest.sign(replace(manifest, initial_state=state_digest(start_of(Plan.of(manifest)))), OPERATOR)


class MemoryLog:
    """The log of one run on a network in memory. Where it has several operators, all answer, and are of one mind at once."""

    def __init__(
        self, network: MemoryNetwork, operators: Sequence[Identity] = (OPERATOR,), *, directory: Path | None = None, **changes: Any
    ) -> None:
        """Make the run of ``signed_manifest``; ``start`` answers from then on. What peers bring is kept under ``directory``."""
        self.network = network
        self.operators = operators
        self.signers = operators  # of its heads, OPERATOR in front
        self.signed = signed_manifest(operators=operators, **changes)
        self.manifest: Manifest = self.signed.open()
        self.training_spec = RunTrainingSpec(self.manifest)
        self.plan = self.training_spec.plan
        self.ledger = Ledger(self.signed, self.training_spec)
        self.state = start_of(self.plan)
        self.num_weights = self.state.parameters.numel()
        self.endpoints = {each.public_key: network.endpoint(each.public_key) for each in operators}
        self.endpoint = self.endpoints[OPERATOR.public_key]
        self.blob_store = BlobStore(max_bytes=2**28)
        self.blob_store.put(Blob.of(state_pieces(self.state)), "state")
        self.means: list[Blob] = []
        self.brought: dict[bytes, BroughtVectors] = {}  # by operator, where contributions are audited
        self._directory = directory
        self.headers: list[Header] = []  # as they came
        self.rounds: dict[bytes, int] = {}  # by contribution: the round that it counts in
        self.handed: dict[bytes, tuple[Header, Blob]] = {}  # with their bodies
        self.verdicts: dict[bytes, Signed[Verdict]] = {}  # that wait for a round
        self.left_ms = 60_000
        # What it does wrong.
        self.says_later = False
        self.refuses: str | None = None  # headers, and why
        self.blames: bytes | None = None  # a key that it takes for a liar's
        self.counts_in_next = False  # headers come too late for the round that is open
        self.loses: set[bytes] = set()  # contributions that it will not list, whatever it said
        self.pays_more = 0  # units, as it says
        self.shows: Callable[[bytes], bytes] = lambda entry: entry  # in the place of a round's contributions
        self._bodies: dict[bytes, list[bytes | None]] = {}
        self._tree = Tree()
        self._receipts: dict[int, Receipt] = {}
        self._first: dict[int, int] = {}  # by round, as its entry says
        self._entries: list[bytes] = []
        self._weights: dict[int, tuple[Weighed, ...]] = {}  # by round
        self.tables: dict[int, list[Listed]] = {}  # by round
        self._changed = asyncio.Event()

    # The test's side.

    async def start(self) -> "MemoryLog":
        """Answer calls from now on."""
        for key, endpoint in self.endpoints.items():
            await self.blob_store.serve(endpoint)
            await serve_pings(endpoint)
            if self._directory is not None and self.manifest.audit_rules is not None:
                directory = self._directory / key.hex()[:8]
                facts, faults = _Facts(self), CallerFaults(ManualClock())
                brought = self.brought[key] = BroughtVectors(
                    directory, facts, num_weights=self.num_weights, max_bytes=1 << 30, faults=faults
                )
                await brought.serve(endpoint)
                await serve_vectors(endpoint, brought.folder)
            for method, handler in (
                ("header", self._on_header),
                ("body", self._on_body),
                ("commit-after", partial(self._on_commit_after, key)),
                ("listing", self._on_listing),
                ("weights", self._on_weights),
                ("contributions", self._on_contributions),
                ("credit", self._on_credit),
                (VERDICT, self._on_verdict),
                ("tree-head", self._on_tree_head),
                ("consistency", self._on_consistency),
            ):
                await endpoint.serve(method, handler)
        return self

    def go_away(self, key: PublicKey = OPERATOR.public_key) -> None:
        """Let an operator be unreachable until ``come_back``; who waits for an answer gets none."""
        self.network.endpoints.pop(key, None)
        self._wake()

    def come_back(self, key: PublicKey = OPERATOR.public_key) -> None:
        """Let it answer again."""
        self.network.endpoints[key] = self.endpoints[key]

    def in_round(self) -> list[bytes]:
        """Return the contributions that are promised for the open round, but for those of members whose cohort's is in it too."""
        found = [each for each in self.handed if self.rounds[each] == self.ledger.round + 1 and each not in self.loses]
        keys = {each: {claim.open().key for claim in self.handed[each][0].claims} for each in found}
        return [each for each in found if not any(keys[each] < keys[other] for other in found)]

    async def wait_for(self, count: int) -> None:
        """Return once so many contributions are in the open round."""
        await until(lambda: len(self.in_round()) >= count)

    def give(self, peer: Identity, seed: int = 0, *, age: int = 0, **changes: Any) -> bytes:
        """Put a contribution of random numbers, on a base so many commits old, in the open round; return its digest.

        ``changes`` are its claim's.
        """
        base = self.ledger.round - age
        values = (torch.randn(self.num_weights, generator=torch.Generator().manual_seed(seed)) / 100).numpy()
        codec = self.manifest.exchange.codec
        blob = Blob.of(body_groups(codec, encode(codec, values, self.ledger.min_exponent_at(base)), self.num_weights))
        work = (self.manifest.exchange.local_steps,) + (0,) * (len(self.training_spec.costs(base + 1, "here")) - 1)
        header = header_of(self.ledger, peer, round=base + 1, microbatches=work, body=blob.root, **changes)
        digest = header.contribution.digest
        self.handed[digest], self.rounds[digest] = (header, blob), self.ledger.round + 1
        return digest

    def commit(self, **lies: Any) -> Round:
        """Close the open round with what is in it, and tell everybody who waits; ``lies`` take the place of what is true."""
        round_ = self.ledger.round + 1
        found = [(self.ledger.listed(self.handed[each][0], round_), *self.handed[each]) for each in self.in_round()]
        found.sort(key=lambda one: one[0].founder)
        listed_ = [listed for listed, _, _ in found]
        self.tables[round_] = listed_
        table = [listed.weighing for listed in listed_]
        bodies = [parse(self.manifest.exchange.codec, blob.join(), self.num_weights) for _, _, blob in found]
        min_exponents = [self.ledger.min_exponent_at(listed.round - 1) for listed, _, _ in found]
        masks = [self.training_spec.coverage(listed.round, listed.cohort) for listed, _, _ in found]
        result = table_mean(
            table, bodies, min_exponents, self.ledger.thresholds, self.ledger.min_exponent_at(round_ - 1), self.num_weights, masks
        )
        self._weights[round_] = weighed_in(listed_, result.weights, result.clipped)
        self.state = next_state(self.state, torch.from_numpy(result.mean), self.plan)
        mean, state = Blob.of(vector_groups(result.mean)), Blob.of(state_pieces(self.state))
        self.means.append(mean)
        for blob, kind in (*((blob, "body") for _, _, blob in found), (mean, "mean"), (state, "state")):
            self.blob_store.put(blob, kind)
        entry = Round(
            run=self.ledger.run,
            round=round_,
            base=self.ledger.last_commit,
            first=self.ledger.size + len(self.verdicts),
            contributions=len(found),
            weights=weights_root(self._weights[round_]),
            mean=mean.root,
            state=state.root,
            thresholds=result.thresholds,
            min_exponent=result.min_exponent,
            open_ms=open_ms_after(self.ledger.manifest.exchange, self.ledger.open_ms, listed_),
        )
        entry = replace(entry, **lies)
        verdicts = [entry_of(self.verdicts[digest]) for digest in sorted(self.verdicts)]
        self.verdicts.clear()
        self._first[round_] = entry.first
        for data in (*verdicts, *map(entry_of, [header for _, header, _ in found]), entry_of(entry)):
            self.ledger.append(data)
            self._entries.append(data)
            self._tree.append(leaf_hash(data))
        self._receipts[round_] = self._receipt(entry_of(entry))
        self._wake()
        return entry

    def judge(self, signed: Signed[Verdict]) -> None:
        """Have a verdict stand before the next round's contributions."""
        self.ledger.check_verdict(signed)
        self.verdicts[signed.digest] = signed

    def receipt(self, round_: int | None = None) -> Receipt:
        """Return the receipt of a committed round, of the newest if none is named."""
        return self._receipts[self.ledger.round if round_ is None else round_]

    # What it answers.

    async def _on_header(self, _caller: PublicKey, request: bytes) -> bytes:
        header = unpack(Header, request, max_bytes=2**20)
        digest = header.contribution.digest
        self.headers.append(header)
        if self.refuses is not None:
            raise LedgerError(self.refuses)
        for round_ in range(1, self.ledger.round + 1):
            if any(header.claims[0].digest in listed.claims for listed in self.ledger.table_at(round_) or ()):
                return pack(log_client.HeaderAnswer(int(log_client.HandIn.LISTED), round_, self.left_ms, ()))
        round_ = self.rounds.get(digest, self.ledger.round + 1 + self.counts_in_next)
        if round_ <= self.ledger.round:
            round_ = self.ledger.round + 1
        try:
            self.ledger.listed(header, round_)
            if self.blames in [claim.open().key for claim in header.claims]:
                raise ClaimError("a lie, as the test says", (self.blames,))
        except ClaimError as error:
            if len(header.claims) == 1:
                raise
            return pack(log_client.HeaderAnswer(int(log_client.HandIn.WITHOUT), round_, self.left_ms, (), error.keys))
        if self.says_later:
            return pack(log_client.HeaderAnswer(int(log_client.HandIn.LATER), round_, self.left_ms, ()))
        self.rounds[digest] = round_
        if digest in self.handed:
            return pack(
                log_client.HeaderAnswer(int(log_client.HandIn.HAVE_PROMISE), round_, self.left_ms, (self._inclusion_promise(digest),))
            )
        self._bodies.setdefault(digest, [None] * len(group_sizes(self.manifest.exchange.codec, self.num_weights)))
        return pack(log_client.HeaderAnswer(int(log_client.HandIn.SEND_BODY), round_, self.left_ms, ()))

    async def _on_body(self, _caller: PublicKey, request: bytes) -> bytes:
        part = log_client.BodyPart.open(request)
        groups = self._bodies[part.contribution]
        groups[part.place] = bytes(part.data)
        whole = [group for group in groups if group is not None]
        if len(whole) < len(groups):
            return b""
        header = next(each for each in self.headers if each.contribution.digest == part.contribution)
        blob = Blob.of(whole)
        assert blob.root == header.contribution.open().body
        self.handed[part.contribution] = header, blob
        return pack(self._inclusion_promise(part.contribution))

    async def _on_commit_after(self, own: PublicKey, caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(log_client.AfterRound, request, max_bytes=128)
        while ask.waits_as and ask.round >= self.ledger.round and own in self.network.endpoints:
            await self._changed.wait()
        if self.ledger.round <= ask.round:
            return pack(log_client.FeedAnswer((), (), self.left_ms))
        found = self._included(self.ledger.round, caller)
        return pack(log_client.FeedAnswer((self.receipt(),), () if found is None else (found,), self.left_ms))

    async def _on_listing(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(log_client.AskListing, request, max_bytes=128)
        found = self._included(ask.round, ask.key)
        return b"" if found is None else pack(Listing(self.receipt(ask.round), found))

    async def _on_weights(self, _caller: PublicKey, request: bytes) -> bytes:
        round_ = unpack(log_client.AskRound, request, max_bytes=128).round
        if self.ledger.table_at(round_) is None:
            raise Unreachable("that table is not kept here any more, or not made yet")
        return weighed_bytes(self._weights[round_])

    async def _on_contributions(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(log_client.AskContributions, request, max_bytes=128)
        first, count = self._first[ask.round], len(self.ledger.table_at(ask.round) or ())
        entries = self._entries[first : first + count][ask.place : ask.place + CLAIMS_PAGE]
        shown = [self.shows(entry) for entry in entries]
        return pack(RoundContributions(tuple(shown), tuple(self._tree.range_proof(first, first + count, ask.size))))

    async def _on_credit(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(log_client.AskCredit, request, max_bytes=128)
        table = self.ledger.table_at(ask.round)
        earned = () if table is None else (self.ledger.shares(table).get(ask.key, 0) + self.pays_more,)
        return pack(credit_word(self.ledger, ask.key, earned))

    async def _on_verdict(self, _caller: PublicKey, request: bytes) -> bytes:
        self.judge(unpack(Signed[Verdict], request, max_bytes=MAX_SIGNED_VERDICT_BYTES))
        return b""

    async def _on_tree_head(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(log_proofs.HeldHead, request, max_bytes=2**20)
        held = [open_round_receipt(receipt, Operators.of_signed(self.signed)).tree_head.size for receipt in ask.receipt]
        proof = tuple(self._tree.consistency_proof(held[0])) if held and held[0] <= self._tree.size else ()
        return pack(log_proofs.ShownHead(self._note(), proof))

    async def _on_consistency(self, _caller: PublicKey, request: bytes) -> bytes:
        ask = unpack(log_proofs.AskConsistency, request, max_bytes=64)
        if ask.new > self._tree.size:
            raise Unreachable(f"a log of {self._tree.size} entries")
        return pack(log_proofs.Consistency(tuple(self._tree.consistency_proof(ask.old, ask.new))))

    # What the methods above share.

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _inclusion_promise(self, contribution: bytes) -> Signed[InclusionPromise]:
        return Signed.sign(InclusionPromise(self.ledger.run, self.rounds[contribution], contribution), self.operators[-1])

    def _receipt(self, entry: bytes) -> Receipt:
        index = self._tree.size - 1
        return Receipt(entry, index, tuple(self._tree.inclusion_proof(index)), self._note())

    def _note(self) -> str:
        name = origin(self.ledger.run)
        head = TreeHead(name, self._tree.size, self._tree.root())
        others = [cosign(head_text(head), 1_800_000_000, each) for each in self.signers[1:]]
        return with_cosignatures(sign_tree_head(head, name, OPERATOR), others)

    def _included(self, round_: int, key: bytes) -> Included | None:
        table = self.ledger.table_at(round_)
        if table is None:
            raise Unreachable("that table is not kept here any more, or not made yet")
        place = next((place for place, listed in enumerate(table) if key in listed.keys), None)
        if place is None:
            return None
        index, size = self._first[round_] + place, self._receipts[round_].index + 1
        return Included(self._entries[index], index, tuple(self._tree.inclusion_proof(index, size)))


async def until(condition: Any) -> None:
    """Return once ``condition()`` holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


class _Facts:
    """What a log says of what is audited."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    @property
    def reputation(self) -> Reputation:
        return self._log.ledger.reputation

    def header(self, round: int, contribution: bytes) -> Header:
        del round
        return self._log.handed[contribution][0]
