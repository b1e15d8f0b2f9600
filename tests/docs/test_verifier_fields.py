"""docs/verifier.py and the program take the same values of each field: of a manifest, and of whatever an entry of the log has in it."""

import copy
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manta_swarm.protocol.encoding import decode, encode, pack
from manta_swarm.protocol.errors import RemoteFault
from manta_swarm.protocol.ledger import Ledger
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.signing import Identity, sha256
from tests.contributions import PEERS
from tests.docs.ledgers import MADE, OTHER_SECRETS
from tests.docs.logs import AUDITORS, ONE, OPERATOR, SECRET, STRANGER, Log
from tests.docs.verifiers import fault_of, verifier

POWERS = [2**power + more for power in (8, 9, 10, 11, 12, 16, 20, 23, 24, 30, 32, 40, 48, 62) for more in (-1, 0, 1)]
NUMBERS = [*range(-2, 9), 16, 17, 31, 32, 33, 63, 64, 65, 94, 95, -200, -201, 100, 101, 200, 201, 3_600_001, 86_400_001, 2**63 - 1, *POWERS]
BYTES = [b"", bytes(31), bytes(32), sha256(b"another"), OPERATOR.public_key, ONE.public_key, AUDITORS[0].public_key]
TEXTS = [
    *("", "a", "A", "-a", "a.b", "x" * 40, "x" * 41, "x" * 64, "x" * 65, "é", "cat\u0301", " cat", "cat ", "Cat", ".cat", "c/at", "a\nb"),
    *("0", "1", "00", "0.0", "1.0", ".5", "1e5", "0.999999999999", "0.9999999999999", "999999999", "1000000000"),
    *("int8", "topk-1-2", "topk-2048-8", "topk-2049-2", "topk-256-9", "topk-0-4", "topk-01-4", "adamw", "sgd", "matrices", "all"),
    *("open", "list", "invitation", "private", "shared", "token", "affinity", "stereo", "shrinking", "model-parallel"),
    *("guest", "member", "proven", "peer", "here.size-1", "there"),
]
VALUES: list[Any] = [*NUMBERS, *BYTES, *TEXTS, (), ((),), (1,)]
SIGNERS = {each.public_key: each for each in (*PEERS, *AUDITORS, OPERATOR, STRANGER, SECRET, *OTHER_SECRETS)}
Path = tuple[int, ...]


@functools.cache
def log_named(name: str) -> Log:
    return MADE[name]()


@functools.cache
def kept_before(name: str, index: int) -> tuple[Ledger, Any]:
    log = log_named(name)
    if not index:
        return log.until(0).ledger, verifier.Ledger(*verifier.open_manifest(pack(log.signed)))
    both = both_before(name, index - 1)
    for each in both:
        each.append(log.entries[index - 1])
    return both


def both_before(name: str, index: int) -> tuple[Ledger, Any]:
    """Return the program's ledger of the first so many entries of a log, and the verifier's."""
    ours, theirs = kept_before(name, index)
    return ours.copy(), copy.deepcopy(theirs)


def paths(value: Any, before: Path = ()) -> Iterator[Path]:
    """Yield where each value is."""
    yield before
    for place, each in enumerate(value) if isinstance(value, tuple) else ():
        yield from paths(each, (*before, place))


def at(value: Any, path: Path) -> Any:
    for place in path:
        value = value[place]
    return value


def put(value: Any, path: Path, new: Any) -> Any:
    """Return a value in which another one is at a place."""
    if not path:
        return new
    place, *rest = path
    return (*value[:place], put(value[place], tuple(rest), new), *value[place + 1 :])


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """A value with a change somewhere."""
    path = draw(st.sampled_from(list(paths(value))))
    old = at(value, path)
    others = [*VALUES, old + 1, old - 1] if type(old) is int else VALUES
    if isinstance(old, tuple) and draw(st.booleans()):
        return put(value, path, draw(st.sampled_from([(*old, *old[-1:]), old[:-1], old[::-1], old * 2])))
    return put(value, path, draw(st.sampled_from(others)))


def signed(kind: str, payload: bytes, signer: Identity) -> tuple[bytes, bytes]:
    return payload, signer.sign(kind, payload)


def value_of(data: bytes) -> Any:
    return decode(data, max_bytes=2**20)


def encoded(value: Any) -> bytes:
    """Return the bytes of a value, of nothing where it has none."""
    try:
        return encode(value)
    except ValueError:
        return b""


@pytest.mark.parametrize("name", ["plain", "accused", "private", "listed", "sparse", "invited"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_same_manifests_are_taken(name: str, data: st.DataObject) -> None:
    payload = encoded(data.draw(changed(value_of(log_named(name).signed.payload))))
    manifest = SignedManifest(*signed("manifest", payload, OPERATOR))
    faults = fault_of(manifest.open, RemoteFault), fault_of(lambda: verifier.open_manifest(pack(manifest)), verifier.Refused)
    assert (faults[0] is None) == (faults[1] is None), faults


@st.composite
def entries(draw: st.DrawFn, entry: bytes) -> bytes:
    """An entry with a change in a record of it, which is signed again, and so is what names it by its digest."""
    kind, body = value_of(entry)
    record = value_of(body)
    if kind in ("round", "settlement"):
        return encoded((kind, encoded(draw(changed(record)))))
    if kind in ("verdict", "revocation"):
        said = value_of(record[0])
        return encoded((kind, encoded(signed(kind, encoded(draw(changed(said))), SIGNERS[said[1]]))))
    if kind == "admission":
        (invitation, signature), key = value_of(record[0])
        said = value_of(invitation)
        if draw(st.booleans()):
            invitation, signature = signed("invitation", encoded(draw(changed(said))), SIGNERS[said[1]])
        else:
            key = draw(st.sampled_from(BYTES))
        return encoded((kind, encoded(signed(kind, encoded(((invitation, signature), key)), SIGNERS[said[2]]))))
    contribution, claims = value_of(record[0][0]), [list(claim) for claim in record[1]]
    if draw(st.booleans()):
        place = draw(st.integers(0, len(claims) - 1))
        said = value_of(claims[place][0])
        claims[place] = list(signed("claim", encoded(draw(changed(said))), SIGNERS[said[3]]))
        contribution = put(contribution, (4,), tuple(sha256(encode(tuple(claim))) for claim in claims))
        founder = SIGNERS[contribution[3]]
    else:
        founder = SIGNERS[contribution[3]]
        contribution = draw(changed(contribution))
    return encoded((kind, encoded((signed("contribution", encoded(contribution), founder), tuple(map(tuple, claims))))))


@pytest.mark.parametrize("name", ["late", "cohorts", "invited", "listed", "sparse", "audited", "accused"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_same_entries_are_taken(name: str, data: st.DataObject) -> None:
    log = log_named(name)
    index = data.draw(st.integers(0, len(log.entries) - 1))
    entry = data.draw(entries(log.entries[index]))
    ours, theirs = both_before(name, index)
    faults = fault_of(lambda: ours.append(entry), RemoteFault), fault_of(lambda: theirs.append(entry), verifier.Refused)
    assert (faults[0] is None) == (faults[1] is None), faults
