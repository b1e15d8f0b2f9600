"""What the two sites of a stereo run say to each other, of which one has the left views and the other the right ones."""

from dataclasses import dataclass

from automl.data.views import LEFT, VIEWS, PartDigests, StereoDataset
from automl.spaces.space import MAX_TEXT
from protocol.encoding import encode
from protocol.errors import RemoteFault
from protocol.exchange import MAX_LOCAL_STEPS
from protocol.fields import check_digest
from protocol.recipe import MAX_PERCENT
from protocol.signing import sha256

MEET, BEGIN, LEAD, EXCHANGE = "views.meet", "views.begin", "views.lead", "views.exchange"  # methods; all but LEAD are the left site's

MAX_SMALL_BYTES = 8192
PART_BYTES = 1024 * 1024  # of what goes either way in one exchange
MAX_PART_BYTES = PART_BYTES + 256
ID_BYTES = 16
_MAX_SCENES = 2**40


class OtherData(RemoteFault):
    """The site with the other view has pairs of other scenes, or not those of the run."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a site has."""

    view: str
    count: int  # of its scenes
    scenes: bytes  # digest of their names
    parts: tuple[bytes, ...]  # digests of its views, and at the left site of the disparities

    def __post_init__(self) -> None:
        if self.view not in VIEWS or not 1 <= self.count < _MAX_SCENES or len(self.parts) != (2 if self.view == LEFT else 1):
            raise ValueError("a site without a view, or without scenes")
        for digest in (self.scenes, *self.parts):
            check_digest(digest, "digest")

    @classmethod
    def of(cls, dataset: StereoDataset, view: str) -> "Site":
        """Return what the site with this view of a data set's pairs has."""
        left, right, disparity = dataset.part_digests
        scenes = sha256(b"".join(encode(scene) for scene in (str(dataset.num_train), *dataset.scenes)))
        return cls(view, len(dataset.scenes), scenes, (left, disparity) if view == LEFT else (right,))

    def check(self, other: "Site", dataset: StereoDataset, digest: bytes) -> None:
        """Check that the two sites together have the run's data set, whose digest is given; ``dataset`` is this one's part of it.

        Raises:
            OtherData: they have not.
        """
        if other.view == self.view:
            raise OtherData(f"both sites have the {self.view} views: start one of them with the other --view")
        if (other.count, other.scenes) != (self.count, self.scenes):
            raise OtherData(
                f"the other site has {other.count} scenes of other names, or holds out others ({other.scenes.hex()[:12]}; here are "
                f"{self.count}, {self.scenes.hex()[:12]}): both need files of equal names, and the same stereo.json"
            )
        left, right = (self, other) if self.view == LEFT else (other, self)
        if dataset.digest_of(PartDigests(left.parts[0], right.parts[0], left.parts[1])) != digest:
            raise OtherData("the views of both sites together are not the run's data set: get the pairs that the operator names")


@dataclass(frozen=True, slots=True)
class LotName:
    """Which lot, of whom, on which weights; what is in it follows from that."""

    base: bytes
    step: int
    key: bytes
    index: int
    architecture: str
    weights: bytes  # digest of what it is trained on, and of its teacher
    augmentation: int  # percent of the usual strength

    def __post_init__(self) -> None:
        for digest in (self.base, self.key, self.weights):
            check_digest(digest, "digest")
        if not (0 <= self.step < MAX_LOCAL_STEPS and 0 <= self.index < 2**53 and len(self.architecture) <= MAX_TEXT):
            raise ValueError("a lot out of range")
        if not 0 <= self.augmentation <= MAX_PERCENT:
            raise ValueError("an augmentation out of range")


@dataclass(frozen=True, slots=True)
class Begin:
    """The left site begins a lot; ``id`` names this try of it."""

    id: bytes
    lot: LotName

    def __post_init__(self) -> None:
        _check_id(self.id)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A part of what the left site gives, in exchange for as large a part at most of what the right one gives, which is the answer."""

    id: bytes
    place: int  # of the part in its lot, from 0
    data: bytes

    def __post_init__(self) -> None:
        _check_id(self.id)
        if self.place < 0 or len(self.data) > PART_BYTES:
            raise ValueError("an exchange out of range")


def _check_id(identity: bytes) -> None:
    if len(identity) != ID_BYTES:
        raise ValueError("no name of a lot's try")
