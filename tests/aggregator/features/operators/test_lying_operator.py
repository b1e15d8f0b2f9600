"""What an operator passes on is its word alone: it takes nothing from a key that comes another way, nor from an honest operator."""

from pathlib import Path

import pytest

from manta_swarm.aggregator.features.operators.forwarding import FORWARD, Forwarded, Switch
from manta_swarm.aggregator.intake.refusals import NotTheirs, is_too_much, noted, passed_on_by, refused_of
from manta_swarm.network.log_client import MAX_ANSWER_BYTES, BodyPart, HandIn, HeaderAnswer
from manta_swarm.network.rates import FAULTS_FORGIVEN, CallerFaults
from manta_swarm.network.rpc import Handler
from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.signing import Identity, PublicKey
from tests.aggregator.made import Clock, Made
from tests.aggregator.service import OPERATOR, PEERS, Service, says_no
from tests.clocks import ManualClock

A, B = PEERS[:2]
HONEST, LIAR = Identity(b"\x02" * 32), Identity(b"\x03" * 32)
JUNK = b"no header"
MANY = range(FAULTS_FORGIVEN + 1)


class Operators:
    """All of them are there, and this one writes."""

    leader_key = OPERATOR.public_key

    def is_quorum(self) -> bool:
        return True

    def among_operators(self, handler: Handler) -> Handler:
        return handler


class LeadersService(Service):
    """A leader's, which takes what the other operators pass on."""

    async def start(self) -> None:
        await super().start()
        endpoint = self.network.endpoints[OPERATOR.public_key]
        switch, handlers = Switch(endpoint, Operators(), Operators()), dict(endpoint.handlers)
        await switch.start()
        for method in ("header", "body"):
            await switch.serve(method, handlers[method])


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return LeadersService(tmp_path / "bodies", Clock())


async def passed_on(service: Service, by: Identity, peer: Identity, method: str, request: bytes) -> bytes:
    """Return what the leader answers an operator that says a peer sent this."""
    endpoint = service.network.endpoint(by.public_key)
    return await endpoint.call(OPERATOR.public_key, FORWARD, pack(Forwarded(peer.public_key, method, request)), timeout_s=20)


async def header(service: Service, made: Made, by: Identity) -> HeaderAnswer:
    """Return the answer to a header that an operator passes on."""
    return unpack(HeaderAnswer, await passed_on(service, by, made.peer, "header", pack(made.header)), max_bytes=MAX_ANSWER_BYTES)


async def part(service: Service, made: Made, place: int, by: Identity, data: bytes | memoryview | None = None) -> bytes:
    """Return the answer to a group of a body that an operator passes on."""
    data = made.groups[place] if data is None else data
    return await passed_on(service, by, made.peer, "body", BodyPart(made.digest, place, data).pack())


async def is_handed_in(service: Service, made: Made, by: Identity) -> bool:
    """Have an operator pass a contribution on; return whether there is an inclusion promise for it."""
    if (await header(service, made, by)).status != HandIn.SEND_BODY:
        return False
    assert await part(service, made, 0, by) == b""
    return service.opened(await part(service, made, 1, by)).contribution == made.digest


async def test_what_an_operator_says_of_a_key_counts_by_its_way_alone(service: Service) -> None:
    for _ in MANY:
        await says_no(passed_on(service, LIAR, A, "header", JUNK), "cut")
    assert service.refused(A) == {}
    assert refused_of(service.intake.faults) == {}
    assert (await header(service, service.made(A), LIAR)).status == HandIn.LATER
    assert (await service.hand_in(service.made(A))).round == 1  # by itself
    for _ in MANY:
        await says_no(passed_on(service, LIAR, B, "header", JUNK), "cut")
    assert await is_handed_in(service, service.made(B), HONEST)  # by way of another one


async def test_an_operator_whom_strangers_bring_junk_is_listened_to(service: Service) -> None:
    for _ in MANY:
        await says_no(passed_on(service, HONEST, B, "header", JUNK), "cut")
    assert await is_handed_in(service, service.made(A), HONEST)


async def test_what_a_key_sends_itself_counts_against_it_whatever_way_it_names_later(service: Service) -> None:
    for _ in MANY:
        await says_no(service.call(A, "header", JUNK), "cut")
    assert service.refused(A) == {"malformed": len(MANY)}
    assert (await service.header(service.made(A))).status == HandIn.LATER


async def test_headers_whose_bodies_an_operator_keeps_back_or_spoils_are_no_fault_of_their_keys(service: Service) -> None:
    made = service.made(A)
    for place in (0, 1):
        assert (await header(service, made, LIAR)).status == HandIn.SEND_BODY
        await part(service, made, 1 - place, LIAR)
        await says_no(part(service, made, place, LIAR, bytes(len(made.groups[place]))), "does not have the root")
    assert (await header(service, made, LIAR)).status == HandIn.SEND_BODY  # and then nothing
    await service.hand_in(service.made(B))
    service.commit()
    assert service.refused(A) == {}
    assert service.intake.faults.by_reason == {"bad body": 2, "no body by the deadline": 1}


async def test_no_operator_spoils_or_takes_over_a_body_that_its_founder_brings_itself(service: Service) -> None:
    made = service.made(A)
    assert (await header(service, made, LIAR)).status == HandIn.SEND_BODY  # it was brought there first
    assert (await service.header(made)).status == HandIn.SEND_BODY
    assert await service.part(made, 0) == b""
    await header(service, made, LIAR)
    await says_no(part(service, made, 1, LIAR, bytes(len(made.groups[1]))), "another member brings this body")
    assert service.opened(await service.part(made, 1)).contribution == made.digest


async def test_a_founder_goes_on_by_way_of_another_operator_at_once(service: Service) -> None:
    made = service.made(A)
    await header(service, made, HONEST)
    await part(service, made, 0, HONEST)
    assert await is_handed_in(service, made, LIAR)  # which does not lie this time


async def test_faults_in_whatever_an_operator_passes_on_are_counted_by_its_way() -> None:
    faults, key = CallerFaults(ManualClock()), PublicKey(A.public_key)

    async def call(operator: Identity | None) -> bool:
        """Do something wrong too often; return whether that is too much."""
        if operator is not None:
            with passed_on_by(operator.public_key):
                return await call(None)
        for _ in MANY:
            with pytest.raises(NotTheirs), noted(faults, key):
                raise NotTheirs("it is wrong")
        return is_too_much(faults, key)

    assert await call(LIAR)
    assert not is_too_much(faults, key)
    assert refused_of(faults) == {}
    assert await call(None)
    assert refused_of(faults) == {key: {"another's identity": len(MANY)}}
