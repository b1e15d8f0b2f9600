"""What is read of other nodes' answers: a record's value, or a dictionary of records of a size that a name may have, and nothing else."""

import math

import msgpack
import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

from manta_swarm.network.dht_protocol import BoundedProtocol
from manta_swarm.network.dht_storage import MAX_BYTES_OF_A_NAME, MIN_RECORD_BYTES

MOST_RECORDS = MAX_BYTES_OF_A_NAME // MIN_RECORD_BYTES
loads = BoundedProtocol.serializer.loads


def packed(records: object, maxsize: object = math.inf, latest: object = 0.0) -> bytes:
    """Return a dictionary as hivemind packs it, whatever its parts are."""
    found: bytes = msgpack.packb(msgpack.ExtType(0x50, MSGPackSerializer.dumps([maxsize, latest, records])))
    return found


def test_what_hivemind_packs_is_read() -> None:
    dictionary = DictionaryDHTValue()
    with dictionary.freeze():
        for number in range(MOST_RECORDS):
            dictionary.store(b"owner %d" % number, bytes(600), 5.0 + number)
    found = loads(MSGPackSerializer.dumps(dictionary))
    assert isinstance(found, DictionaryDHTValue)
    assert found.data == dictionary.data
    assert loads(MSGPackSerializer.dumps(bytes(2048))) == bytes(2048)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90" * 1000,
        MSGPackSerializer.dumps("text"),
        MSGPackSerializer.dumps({}),
        MSGPackSerializer.dumps((1, 2)),
        MSGPackSerializer.dumps(bytes(3000)),
        packed([]) + b"x",
        packed([[b"owner", b"value", 5]]),
        packed([[7, b"value", 5.0]]),
        packed([[b"owner", "value", 5.0]]),
        packed([[b"owner", b"value", 5.0, 6.0]]),
        packed([[b"owner", bytes(3000), 5.0]]),
        packed([b"record"]),
        packed({}),
        packed([], "many", "never"),
        packed([(b"a", b"tuple", 5.0)]),
        packed([[[[[]]]]] * 10),
        packed([[b"owner", b"", 5.0]] * (MOST_RECORDS + 1)),
        packed([[b"owner", bytes(1000), 5.0]] * 800),
        msgpack.packb(msgpack.ExtType(0x51, b"")),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - why is msgpack's matter
        loads(data)
