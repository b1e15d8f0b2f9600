"""A record of each kind that docs/protocol.json lists, for docs/vectors/records.json: those that no log has, made up.

A field is filled by its type and its name, and where a record's conditions want something else, by ``FIELDS``.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from manta_swarm.network import wrong_group
from manta_swarm.peer.features.two_views.views import ID_BYTES
from manta_swarm.protocol.auditing import WantedFate
from manta_swarm.protocol.cosignatures import cosign
from manta_swarm.protocol.encoding import NOT_ENCODED
from manta_swarm.protocol.private import Measure
from manta_swarm.protocol.reputation import FALSE, Fault
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import sha256
from tests.docs.logs import ONE, OPERATOR, STRANGER
from tests.docs.protocol_tables import records
from tests.docs.whole import ADAMW
from tests.runs import EXCHANGE


def vars_of(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


SIGNERS = {each.public_key: each for each in (ONE, OPERATOR)}
OF_OPERATORS = ("operator", "operators", "gateway")
PLACE = ("192.0.2.1", 4001)
FIELDS: dict[str, dict[str, Any]] = {  # by record, or by module and record; of each field the value
    "AdmissionRule": {"how": "list", "keys": (ONE.public_key,)},
    "Announcement": {"size": 4},
    "AskContributions": {"size": 9},
    "Assignment": {"is_late": 0, "lacks_room": 0},
    "AuditRules": {"kept_rounds": 2, "pending_rounds": 5},
    "Begin": {"id": b"i" * ID_BYTES},
    "ClaimStep": {"last": 3, "skipped": (2,)},
    "Consistency": {"proof": (sha256(b"proof"),)},
    "Cosigned": {"cosignature": cosign("a note's text\n", 1_700_000_000, STRANGER)},
    "CreditWord": {"faults": (Fault(1, FALSE, sha256(b"contribution")),)},
    "DialledBack": {"hosts": (("192.0.2.1", (4001,)),)},
    "EnterRequest": {"admission": ()},
    "EvaluationWord": {"wait_ms": 0},
    "Greeting": {"places": (PLACE,), "host": b"h" * 16, "socket": b"s" * 16},
    "HeaderAnswer": {"blamed": (), "there": b""},
    "JoinAnswer": {"members": (ONE.public_key,)},
    "MicrobatchName": {"architecture": "r28 u1.0:k3e2"},
    "Optimizer": vars_of(ADAMW),
    "PartReport": {"digests": sha256(b"part"), "norms": bytes(7) + b"\1"},
    "ListenPlaces": {"places": (PLACE,)},
    "Plan": {"owners": (ONE.public_key,), "members": (ONE.public_key,)},
    "Position": {"host": b"h" * 16, "site": b"s" * 8, "distances": ((b"t" * 8, 3),)},
    "PrivateData": {"classes": ("cat", "dog")},
    "Question": {"part": "search", "nonce": b"n" * 16, "architectures": ("r28 u1.0:k3e2",)},
    "Recipe": {"decay": "matrices"},
    "Result": {"losses": (12_345).to_bytes(4, "little"), "wrong": b"\1"},
    "ShutdownNotice": {"reason": "until tomorrow"},
    "Site": {"view": "right"},
    "Taken": {"digests": b""},
    "VectorSummary": {"digests": sha256(b"part"), "norms": bytes(7) + b"\1", "linked": (ONE.public_key,)},
    "WantedOf": {"fate": int(WantedFate.BRING)},
    "Exchange": vars_of(EXCHANGE),
    "SiteExchange": {"id": b"i" * ID_BYTES},
}


def kinds() -> list[type]:
    """Return the classes of records; one that is asked for a measure, but is none, has the place of the one that is signed."""
    return [kind for kind in records() if kind is not wrong_group.MeanShape and kind is not Measure] + [Measure]


class Messages:
    """Makes records; ``known`` are those that are there already, by their names."""

    def __init__(self, known: Mapping[str, object]) -> None:
        self._known = known

    def all(self) -> Iterator[tuple[str, object]]:
        """Yield a record of each kind, by its name, and a signed one of each that is signed."""
        for kind in kinds():
            yield kind.__name__, self.one(kind)
            if hasattr(kind, "signing"):
                yield f"Signed{kind.__name__}", self.value(Signed[kind], "")  # type: ignore[valid-type]

    def one(self, kind: type) -> Any:
        """Return a record of a class."""
        known = self._known.get(kind.__name__)
        if type(known) is kind:
            return known
        own = FIELDS.get(kind.__name__, {})
        hints = get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind) if field.metadata != NOT_ENCODED]
        return kind(**{name: own[name] if name in own else self.value(hints[name], name) for name in names})

    def value(self, kind: Any, name: str) -> Any:
        """Return a value of a type, for a field of this name."""
        kind = getattr(kind, "__supertype__", kind)
        origin, of = get_origin(kind), get_args(kind)
        if origin is tuple:
            return (self.value(of[0], name),) if of[1:] == (...,) else tuple(self.value(each, name) for each in of)
        if origin is Signed:
            known, record = self._known.get(f"Signed{of[0].__name__}"), self.one(of[0])
            by = getattr(record, of[0].signing.by) if of[0].signing.by else OPERATOR.public_key
            return known or Signed.sign(record, SIGNERS[by])
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            return self.one(kind)
        if kind is bytes:
            return OPERATOR.public_key if name in OF_OPERATORS else ONE.public_key if "key" in name else sha256(name.encode())
        return {int: 1, str: "here"}[kind]
