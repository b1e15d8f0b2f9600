"""The log's newest tree head in the DHT: under the run's name, a record of each operator, which is the receipt of the newest commit it has.

So a head that a log shows to some it shows to all, or others than those who hold its record find a second one.
"""

import contextlib

from manta_swarm.network.log_client import Commitment, LogClient
from manta_swarm.network.rpc import Endpoint
from manta_swarm.protocol.encoding import pack
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.records import Receipt

MAX_RECORD_BYTES = 2000  # a record in the DHT has at most 2048
LIVES_S = 900.0
PUBLISHED_S = (10.0, 300.0)  # shortest pause after a new one, and longest without one


def name_of(run: bytes) -> str:
    """Return under which name the heads of a run's logs are."""
    return f"manta-{run.hex()}-head"


async def publish_newest(endpoint: Endpoint, run: bytes, receipt: Receipt) -> bool:
    """Put a log's newest commit under its run's name, as its own record; False: it is too large for a record.

    Raises:
        MantaError: the DHT cannot be reached.
    """
    data = pack(receipt)
    if len(data) > MAX_RECORD_BYTES:
        return False
    await endpoint.publish(name_of(run), data, ttl_s=LIVES_S)
    return True


async def look_up_newest(endpoint: Endpoint, run: bytes, log: LogClient) -> list[Commitment]:
    """Return the commits that operators put under the run's name, proven; what does not hold is left out.

    Raises:
        MantaError: the DHT cannot be reached.
    """
    records = await endpoint.lookup(name_of(run))
    found = []
    for key in log.operators.keys:
        with contextlib.suppress(RemoteFault):  # an older record of another form, at worst: a head is what holds, or nothing
            if key in records:
                found.append(log.open(records[key]))
    return found
