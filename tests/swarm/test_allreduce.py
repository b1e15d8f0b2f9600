"""The recursive reduce in memory: against the exact mean in float64, over many shapes, with members that fall silent or lie."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from protocol.errors import AttemptFailed, EncodingError
from protocol.signing import PublicKey, sha256
from swarm.allreduce import PART_BYTES, Branch, Leaf, Part, Reduction, _Header, leaves, owner
from swarm.codec import encoded_size
from swarm.mean import Mean
from swarm.memory import MemoryEndpoint, MemoryNetwork
from tests.swarm.members import run, settle

ATTEMPT = b"attempt".ljust(20, b".")
Shape = int | list["Shape"]  # a weight, or a group
Meddle = Callable[[PublicKey, PublicKey, bytes], bytes]


def key_of(number: int) -> PublicKey:
    return PublicKey(sha256(b"member %d" % number))


def tree_of(shape: Shape) -> Branch:
    """Return the tree of a shape; its peers are numbered from the left."""
    numbers = iter(range(1_000))

    def node(part: Shape) -> Branch | Leaf:
        return Leaf(key_of(next(numbers)), part) if isinstance(part, int) else Branch(tuple(map(node, part)))

    root = node(shape)
    assert isinstance(root, Branch)
    return root


def vectors_of(root: Branch, size: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in leaves(root)]


def exact_mean(root: Branch, vectors: Sequence[Tensor]) -> Tensor:
    weights = [leaf.weight for leaf in leaves(root)]
    return sum(weight * vector.double() for weight, vector in zip(weights, vectors, strict=True)) / sum(weights)  # type: ignore[return-value]


class Reducers:
    """Everybody's part in one reduce, on one network. ``meddle`` may change a message on its way."""

    def __init__(
        self,
        root: Branch,
        vectors: Sequence[Tensor],
        codecs: Sequence[str],
        network: MemoryNetwork | None = None,
        meddle: Meddle = lambda _sender, _receiver, message: message,
        own_trees: dict[PublicKey, Branch] | None = None,
    ) -> None:
        self.network = network or MemoryNetwork()
        self.meddle = meddle
        self.messages: list[tuple[PublicKey, PublicKey, bytes]] = []
        self.reductions: dict[PublicKey, Reduction] = {}
        for leaf, vector in zip(leaves(root), vectors, strict=True):
            endpoint = self.network.endpoint(leaf.key)
            tree = (own_trees or {}).get(leaf.key, root)
            self.reductions[leaf.key] = Reduction(endpoint, ATTEMPT, tree, codecs, vector)

    async def serve(self) -> None:
        for key, endpoint in self.network.endpoints.items():
            await self._serve(key, endpoint)

    async def _serve(self, key: PublicKey, endpoint: MemoryEndpoint) -> None:
        async def on_part(sender: PublicKey, message: bytes) -> bytes:
            self.messages.append((sender, key, message))
            self.reductions[key].receive(sender, Part.open(self.meddle(sender, key, message)))
            return b""

        await endpoint.serve("part", on_part)

    async def run(self) -> list[Mean]:
        await self.serve()
        return list(await asyncio.gather(*(reduction.run() for reduction in self.reductions.values())))

    async def outcomes(self) -> dict[PublicKey, Mean | BaseException]:
        await self.serve()
        tasks = {key: asyncio.create_task(reduction.run()) for key, reduction in self.reductions.items()}
        await settle()
        for task in tasks.values():
            task.cancel()
        found = await asyncio.gather(*tasks.values(), return_exceptions=True)
        return dict(zip(tasks, found, strict=True))

    def sent_bytes(self, group: Sequence[PublicKey]) -> int:
        """Return the payload bytes that left a group of peers, headers not counted."""
        return sum(len(Part.open(message).data) for sender, receiver, message in self.messages if sender in group and receiver not in group)


def reduced(root: Branch, vectors: Sequence[Tensor], codecs: Sequence[str], **settings: Any) -> tuple[list[Mean], Reducers]:
    reducers = Reducers(root, vectors, codecs, **settings)
    return run(reducers.run()), reducers


SHAPES: list[Shape] = [
    [[1]],
    [[5, 7]],
    [[1], [1]],
    [[1, 2, 3, 4]],
    [[1, 2], [3, 4]],
    [[16], [16, 32], [48, 16, 16]],
    [[1], [2], [3], [4], [5]],
    [[9, 1, 1, 1, 1, 1, 1], [1, 1, 1], [2, 2]],
    [[1] * 7, [2] * 11],  # more pieces than are cut: 77
    [[[1, 2], [3]], [[4], [5, 6, 7]]],
    [[[1], [2, 3]], [[4, 5, 6, 7], [8]], [[9]]],
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("codec", ["fp32", "fp16"])
def test_everybody_ends_with_the_same_bytes_and_they_are_the_exact_mean(shape: Shape, codec: str) -> None:
    root = tree_of(shape)
    vectors = vectors_of(root, 1003)
    levels = 3 if isinstance(shape[0][0], list) else 2  # type: ignore[index]
    before = [vector.clone() for vector in vectors]
    means, _ = reduced(root, vectors, ["fp32"] * (levels - 1) + [codec])
    assert len({mean.digest for mean in means}) == 1
    assert len({mean.data for mean in means}) == 1
    bound = 1e-6 if codec == "fp32" else 2.0**-11 * 5 * 2  # rounded twice: on the way between cohorts, and as the mean; values to 5
    assert (means[0].values.double() - exact_mean(root, vectors)).abs().max() < bound
    assert all(vector.equal(copy) for vector, copy in zip(vectors, before, strict=True))
    parsed = Mean.parse(means[0].data, 1003, codec)
    assert parsed.values.equal(means[0].values)


cohorts = st.lists(st.lists(st.integers(1, 2**20), min_size=1, max_size=4), min_size=1, max_size=4)


@given(cohorts, st.integers(1, 70), st.sampled_from(["fp32", "fp16"]), st.sampled_from(["fp32", "fp16"]), st.integers(0, 2**30))
@example([[1, 1, 1, 1], [1, 1, 1]], 1, "fp16", "fp16", 0)  # fewer values than pieces
@settings(deadline=None, max_examples=50)
def test_any_cohorts_reach_the_mean_with_any_codecs(shape: list[list[int]], size: int, low: str, high: str, seed: int) -> None:
    root = tree_of(shape)
    vectors = vectors_of(root, size, seed)
    means, _ = reduced(root, vectors, [low, high])
    assert len({mean.data for mean in means}) == 1
    bound = 1e-5 if (low, high) == ("fp32", "fp32") else 0.01
    assert (means[0].values.double() - exact_mean(root, vectors)).abs().max() < bound


def test_a_vector_of_many_parts_arrives_whole() -> None:
    root = tree_of([[1, 3], [2]])
    vectors = vectors_of(root, 3 * PART_BYTES // 4 + 17)  # cut in two: the first cohort's pieces have two parts each
    means, reducers = reduced(root, vectors, ["fp32", "fp32"])
    assert max(Part.open(message).header.offset for _, _, message in reducers.messages) == PART_BYTES
    assert len({mean.digest for mean in means}) == 1
    assert (means[0].values.double() - exact_mean(root, vectors)).abs().max() < 1e-6


@pytest.mark.parametrize("members", [1, 2, 3, 6])
@pytest.mark.parametrize("num_cohorts", [2, 3])
def test_a_cohort_sends_about_one_vector_over_its_boundary_however_many_members_it_has(members: int, num_cohorts: int) -> None:
    size = 6 * 6 * 6
    root = tree_of([[1] * members] * num_cohorts)
    _, reducers = reduced(root, vectors_of(root, size), ["fp32", "fp16"])
    # Each cohort owns 1/k of the vector among k cohorts: it sends the rest up to the other owners, and its share down to them.
    once = encoded_size("fp16", size)
    for cohort in root.children:
        sent = reducers.sent_bytes([leaf.key for leaf in leaves(cohort)])
        assert sent == pytest.approx(2 * (num_cohorts - 1) / num_cohorts * once, rel=0.15)  # a piece has two bytes more: small pieces here


def test_a_flat_group_would_send_more_over_the_same_boundary() -> None:
    size = 24_000
    two = tree_of([[1] * 4] * 2)
    flat = tree_of([[1] * 8])
    half = [leaf.key for leaf in leaves(two)[:4]]
    recursive = reduced(two, vectors_of(two, size), ["fp32", "fp32"])[1].sent_bytes(half)
    direct = reduced(flat, vectors_of(flat, size), ["fp32", "fp32"])[1].sent_bytes(half)
    assert recursive == 4 * size
    assert direct == 4 * 4 * size


def test_the_work_is_shared_out_evenly_in_every_cohort() -> None:
    root = tree_of([[1, 1], [1, 1, 1]])
    vectors = vectors_of(root, 6_000)
    _, reducers = reduced(root, vectors, ["fp32", "fp32"])
    received: Counter[PublicKey] = Counter()
    for sender, receiver, message in reducers.messages:
        part = Part.open(message)
        if part.header.direction == 0 and len(part.header.path) == 1:
            received[receiver] += len(part.data)
            assert owner(next(c for c in root.children if sender in {leaf.key for leaf in leaves(c)}), part.header.path) == receiver
    assert received == {key_of(i): 4 * 6_000 // 2 for i in (0, 1)} | {key_of(i): 2 * 4 * 6_000 // 3 for i in (2, 3, 4)}


def test_the_bytes_sent_are_counted() -> None:
    root = tree_of([[1, 2], [3]])
    _, reducers = reduced(root, vectors_of(root, 100), ["fp32", "fp32"])
    for key, reduction in reducers.reductions.items():
        assert reduction.sent_bytes == sum(len(message) for sender, _, message in reducers.messages if sender == key) > 0


def test_weights_are_the_tables_whatever_a_member_believes_of_itself() -> None:
    root, greedy = tree_of([[10, 30]]), tree_of([[10, 10**6]])
    vectors = vectors_of(root, 1000)
    means, reducers = reduced(root, vectors, ["fp32", "fp32"], own_trees={key_of(1): greedy})
    exact = exact_mean(root, vectors)
    first_half = means[0].values[:500]  # the honest member owns it
    assert (first_half.double() - exact[:500]).abs().max() < 1e-6
    assert means[0].digest == means[1].digest  # its own half it may falsify: that is for the follower to find
    header_fields = {len(message) - len(Part.open(message).data) for _, _, message in reducers.messages}
    assert max(header_fields) < 40  # attempt, direction, path, offset: no room and no field for a weight


def test_a_part_that_comes_twice_or_late_changes_nothing() -> None:
    root = tree_of([[1, 2], [3]])
    vectors = vectors_of(root, 100)
    expected, _ = reduced(root, vectors, ["fp32", "fp32"])

    async def twice() -> list[Mean]:
        reducers = Reducers(root, vectors, ["fp32", "fp32"])
        await reducers.serve()
        tasks = [asyncio.create_task(reduction.run()) for reduction in reducers.reductions.values()]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            for sender, receiver, message in list(reducers.messages):
                reducers.reductions[receiver].receive(sender, Part.open(message))
        for sender, receiver, message in reducers.messages:  # with other bytes, and when all is over
            part = Part.open(message)
            reducers.reductions[receiver].receive(sender, Part(part.header, memoryview(bytes(len(part.data)))))
        return [task.result() for task in tasks]

    assert [mean.data for mean in run(twice())] == [mean.data for mean in expected]


def test_a_part_that_comes_twice_does_not_stand_for_the_one_that_is_missing() -> None:
    root = tree_of([[1, 1]])
    vectors = [torch.full((2 * 2 * PART_BYTES // 4,), float(number)) for number in range(2)]  # two parts to a piece
    here, there = key_of(0), key_of(1)
    reduction = Reducers(root, vectors, ["fp32", "fp32"]).reductions[here]
    bytes_of = {number: memoryview(torch.full((PART_BYTES // 4,), number).numpy().tobytes()) for number in (1.0, 7.0)}
    first, second = (_Header(ATTEMPT, 0, (0,), offset) for offset in (0, PART_BYTES))
    reduction.receive(there, Part(first, bytes_of[1.0]))
    reduction.receive(there, Part(first, bytes_of[7.0]))  # and the first one stays
    assert reduction.waiting_for() == {there}
    reduction.receive(there, Part(second, bytes_of[1.0]))
    reduction.receive(there, Part(second, bytes_of[7.0]))
    arrival = reduction._arrivals[0, (0,), there]
    assert arrival.done.is_set()
    assert bytes(arrival.buffer) == bytes(bytes_of[1.0]) * 2


@pytest.mark.parametrize(
    ("header", "size", "reason"),
    [
        (_Header(ATTEMPT, 0, (0,), 0), 199, "wrong length"),
        (_Header(ATTEMPT, 0, (0,), 0), 201, "wrong length"),
        (_Header(ATTEMPT, 0, (0,), 0), 0, "wrong length"),
        (_Header(ATTEMPT, 0, (0,), 1), 199, "nobody waits"),
        (_Header(ATTEMPT, 0, (0,), -PART_BYTES), 200, "nobody waits"),
        (_Header(ATTEMPT, 0, (0,), PART_BYTES), 200, "nobody waits"),
        (_Header(ATTEMPT, 0, (1,), 0), 200, "nobody waits"),  # the sender's own piece does not come up
        (_Header(ATTEMPT, 1, (0,), 0), 200, "nobody waits"),  # nor ours down from it
        (_Header(ATTEMPT, 0, (0, 0, 0), 0), 200, "nobody waits"),
        (_Header(ATTEMPT, 2, (0,), 0), 200, "nobody waits"),
    ],
)
def test_a_part_that_is_not_expected_is_refused_and_changes_nothing(header: _Header, size: int, reason: str) -> None:
    root = tree_of([[1, 2]])
    vectors = vectors_of(root, 100)
    expected, _ = reduced(root, vectors, ["fp32", "fp32"])

    async def refused() -> list[Mean]:
        reducers = Reducers(root, vectors, ["fp32", "fp32"])
        with pytest.raises(EncodingError, match=reason):
            reducers.reductions[key_of(0)].receive(key_of(1), Part(header, memoryview(bytes(size))))
        return await reducers.run()

    assert [mean.data for mean in run(refused())] == [mean.data for mean in expected]


def test_a_part_from_a_stranger_is_refused() -> None:
    root = tree_of([[1, 2]])
    reducers = Reducers(root, vectors_of(root, 100), ["fp32", "fp32"])
    with pytest.raises(EncodingError, match="nobody waits"):
        reducers.reductions[key_of(0)].receive(key_of(9), Part(_Header(ATTEMPT, 0, (0,), 0), memoryview(bytes(200))))


@given(st.binary(max_size=80))
@settings(deadline=None)
def test_bytes_that_are_no_part_are_refused(message: bytes) -> None:
    try:
        part = Part.open(message)
    except EncodingError:
        return
    assert part.pack() == message  # what is a part is written in one way only


def test_a_part_travels_as_it_is() -> None:
    part = Part(_Header(ATTEMPT, 1, (3, 0), PART_BYTES), memoryview(b"bytes"))
    opened = Part.open(part.pack())
    assert opened.header == part.header
    assert opened.attempt == ATTEMPT
    assert bytes(opened.data) == b"bytes"
    with pytest.raises(EncodingError):
        Part.open(part.pack()[:10])


@pytest.mark.parametrize("shape", [[[1, 1, 1]], [[1, 1], [1, 1]], [[1], [1], [1]]], ids=str)
def test_a_member_that_vanishes_fails_the_attempt_and_is_named(shape: Shape) -> None:
    root = tree_of(shape)
    gone = key_of(0)
    network = MemoryNetwork(lost=lambda sender, receiver, _method: gone in (sender, receiver))
    vectors = vectors_of(root, 100)
    outcomes = run(Reducers(root, vectors, ["fp32", "fp32"], network).outcomes())
    named = [outcome for key, outcome in outcomes.items() if key != gone and isinstance(outcome, AttemptFailed)]
    assert named
    assert all(failure.suspects == {gone} for failure in named)
    assert not any(isinstance(outcome, Mean) for outcome in outcomes.values())


def test_a_member_that_refuses_is_not_suspected() -> None:
    root = tree_of([[1, 1]])

    def refuse(_sender: PublicKey, receiver: PublicKey, message: bytes) -> bytes:
        if receiver == key_of(1):
            raise AttemptFailed("that attempt is over here")
        return message

    outcomes = run(Reducers(root, vectors_of(root, 100), ["fp32", "fp32"], meddle=refuse).outcomes())
    failure = outcomes[key_of(0)]
    assert isinstance(failure, AttemptFailed)
    assert failure.suspects == frozenset()
    assert "over here" in str(failure)


@pytest.mark.parametrize("poison", [b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00\x00\x00\x7f"], ids=["nan", "inf", "huge"])
@pytest.mark.parametrize("direction", [0, 1])
def test_a_member_that_sends_what_would_poison_the_mean_fails_the_attempt_and_is_named(poison: bytes, direction: int) -> None:
    root = tree_of([[1, 1], [1, 1]])
    liar = key_of(3)

    def meddle(sender: PublicKey, _receiver: PublicKey, message: bytes) -> bytes:
        part = Part.open(message)
        if sender != liar or part.header.direction != direction:
            return message
        return Part(part.header, memoryview(poison + bytes(part.data[4:]))).pack()

    outcomes = run(Reducers(root, vectors_of(root, 100), ["fp32", "fp32"], meddle=meddle).outcomes())
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, AttemptFailed)]
    assert failures
    assert all(failure.suspects == {liar} for failure in failures)


def test_the_largest_values_of_everybody_at_once_still_have_a_mean() -> None:
    root = tree_of([[2**48, 2**47 + 1, 3], [2**48, 2**48]])
    vectors = [torch.full((10,), 2.0**64) for _ in leaves(root)]
    means, _ = reduced(root, vectors, ["fp16", "fp16"])
    assert means[0].values.equal(vectors[0])


@pytest.mark.parametrize("place", [0, 9])  # in the piece that it owns itself, and in another's
def test_an_own_vector_that_is_not_finite_is_sent_to_nobody(place: int) -> None:
    root = tree_of([[1, 1]])
    vectors = vectors_of(root, 10)
    vectors[0][place] = float("nan")
    reducers = Reducers(root, vectors, ["fp32", "fp32"])
    outcomes = run(reducers.outcomes())
    failure = outcomes[key_of(0)]
    assert isinstance(failure, AttemptFailed)
    assert not [message for sender, _, message in reducers.messages if sender == key_of(0)]


def test_a_silent_member_is_waited_for_and_those_that_wait_for_it_as_well_are_not_blamed() -> None:
    root = tree_of([[1, 1, 1], [1, 1]])
    silent = key_of(1)

    async def wait() -> dict[PublicKey, set[PublicKey]]:
        reducers = Reducers(root, vectors_of(root, 100), ["fp32", "fp32"])
        await reducers.serve()
        tasks = [asyncio.create_task(reduction.run()) for key, reduction in reducers.reductions.items() if key != silent]
        await settle()
        waiting = {key: reduction.waiting_for() for key, reduction in reducers.reductions.items() if key != silent}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return waiting

    waiting = run(wait())
    assert waiting[key_of(0)] == waiting[key_of(2)] == {silent}  # its own cohort knows
    assert key_of(3) not in waiting[key_of(4)]  # the other cohort waits for owners of the first, not for each other
    assert key_of(4) not in waiting[key_of(3)]


def test_nobody_is_waited_for_when_all_has_come() -> None:
    root = tree_of([[1, 1], [1]])
    _, reducers = reduced(root, vectors_of(root, 100), ["fp32", "fp32"])
    assert all(reduction.waiting_for() == set() for reduction in reducers.reductions.values())
