"""Whom a peer expects in its next group, and what it tells the others, over an in-memory network."""

import asyncio
from collections.abc import Awaitable, Callable

from peer.mates import Mates
from protocol.encoding import pack, unpack
from protocol.records import Announcement, Receipt, SignedManifest
from protocol.rounds import RoundMachine, Standing
from protocol.signing import Identity, PublicKey, sha256
from swarm.memory import MemoryEndpoint, MemoryNetwork
from tests.runs import manifest_of

OPERATOR = Identity(b"\x01" * 32)
OWN, ONE, TWO, THREE = (Identity(bytes([seed]) * 32) for seed in (11, 12, 13, 14))
SIGNED = SignedManifest.sign(manifest_of(OPERATOR, max_claim_samples=80), OPERATOR)
MANIFEST, RUN = SIGNED.open(), SIGNED.run
RECEIPT = Receipt(b"entry", 0, (), "a note")


class Scene:
    """One peer in its first round, among others that announce what the test says."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.machine = RoundMachine(MANIFEST, RUN, OWN.public_key, Standing.start(MANIFEST, RUN))
        self.mates = Mates(self.network.endpoint(OWN.public_key), RUN, MANIFEST, self.machine, "home")
        self.told: dict[PublicKey, list[tuple[str, bytes]]] = {}

    async def member(
        self, identity: Identity, samples: int, *, round_: int = 1, commit: bytes = RUN, ready: bool = False
    ) -> MemoryEndpoint:
        """Let somebody announce where it stands; what it is told is kept."""
        endpoint = self.network.endpoint(identity.public_key)
        heard = self.told.setdefault(identity.public_key, [])
        for method in ("announce", "commit"):

            async def hear(_sender: PublicKey, data: bytes, method: str = method) -> bytes:
                heard.append((method, data))
                return b""

            await endpoint.serve(method, hear)
        record = Announcement(RUN, identity.public_key, "home", commit, round_, samples, int(ready), 1)
        await endpoint.call(OWN.public_key, "announce", pack(record), timeout_s=1)
        return endpoint

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def in_scene(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def play() -> None:
        scene = Scene()
        await scene.mates.start()
        await story(scene)

    asyncio.run(play())


def test_samples_of_this_round_and_commit_count_each_up_to_the_cap() -> None:
    async def story(scene: Scene) -> None:
        await scene.member(ONE, 30)
        await scene.member(TWO, 5_000)  # a liar counts for no more than one claim may weigh
        await scene.member(THREE, 30, commit=sha256(b"another commit"))
        assert scene.mates.swarm_samples() == 30 + 80
        scene.machine.lot_trained(1, 16)
        assert scene.mates.swarm_samples() == 30 + 80 + 16

    in_scene(story)


def test_members_of_this_round_and_the_one_before_are_expected_but_not_who_let_an_attempt_down() -> None:
    async def story(scene: Scene) -> None:
        await scene.member(ONE, 30, ready=True)
        await scene.member(TWO, 30)
        await scene.member(THREE, 30, round_=3)
        assert {member.key for member in scene.mates.expected()} == {ONE.public_key, TWO.public_key}
        assert scene.mates.not_ready() == {TWO.public_key}
        scene.mates.suspect(frozenset({ONE.public_key}))
        assert {member.key for member in scene.mates.expected()} == {TWO.public_key}

    in_scene(story)


def test_only_who_stands_on_the_newest_commit_is_asked_for_its_state() -> None:
    async def story(scene: Scene) -> None:
        await scene.member(ONE, 30)
        await scene.member(TWO, 30, commit=sha256(b"another commit"))
        assert scene.mates.standing_with_us() == [ONE.public_key]

    in_scene(story)


def test_a_peer_that_leaves_says_that_it_has_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.member(ONE, 30)
        scene.machine.lot_trained(1, 16)
        await scene.mates.withdraw()
        ((method, data),) = scene.told[ONE.public_key]
        assert method == "announce"
        assert unpack(Announcement, data, max_bytes=1024).samples == 0

    in_scene(story)


def test_a_commit_is_told_to_the_group_and_to_the_others_once_and_to_nobody_twice() -> None:
    async def story(scene: Scene) -> None:
        for identity in (ONE, TWO):
            await scene.member(identity, 30)
        scene.mates.push(RECEIPT, (OWN.public_key, TWO.public_key, THREE.public_key))  # the third has gone
        await scene.settle()
        assert scene.told == {key: [("commit", pack(RECEIPT))] for key in (ONE.public_key, TWO.public_key)}

    in_scene(story)
