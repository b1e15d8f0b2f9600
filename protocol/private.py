"""What a run says of images that stay with their peers: the names of their classes, how they are augmented, what work on them may earn.

Nobody but their peer has them, so nobody can compute its microbatches again: its credits are unaudited for good, and capped.
"""

import unicodedata
from dataclasses import dataclass

SHARED, PRIVATE = "shared", "private"
DATA = (SHARED, PRIVATE)
NO_LEASES = "in this run data stay with their owners, and leases would hand them out: leave --gateway out"
MAX_CLASSES = 2048
MAX_CLASS_NAME = 64  # characters; a class's name is that of a folder
_SEPARATORS = frozenset('/\\:*?"<>|')  # of paths, and what some file systems refuse


@dataclass(frozen=True, slots=True)
class PrivateData:
    """What peers need to know to prepare images of their own for one run, and what these may earn them."""

    classes: tuple[str, ...]  # names of the classes' folders, in the order of the labels
    mirrored: int  # 1: a mirrored image is of the same class, and microbatches mirror them; else 0
    credit_percent: int  # of a round's pool that one key earns at most; rounded up

    def __post_init__(self) -> None:
        if not 2 <= len(self.classes) <= MAX_CLASSES:
            raise ValueError(f"private data have 2 to {MAX_CLASSES} classes, not {len(self.classes)}")
        for name in self.classes:
            check_class_name(name)
        if len({name.casefold() for name in self.classes}) != len(self.classes):
            raise ValueError("two classes have one name: some file systems tell no capitals from small letters")
        if self.mirrored not in (0, 1):
            raise ValueError("mirrored is 0 or 1")
        if not 1 <= self.credit_percent <= 100:
            raise ValueError("credit_percent is between 1 and 100")


def check_class_name(name: str) -> None:
    """Refuse what cannot be the name of a folder everywhere: 1-64 printable characters in Unicode's form C, no separators or dot in front.

    Raises:
        ValueError: the name is refused.
    """
    is_plain = 0 < len(name) <= MAX_CLASS_NAME and name.isprintable() and unicodedata.is_normalized("NFC", name)
    if not is_plain or name.startswith(".") or name != name.strip() or not _SEPARATORS.isdisjoint(name):
        raise ValueError(f"a class needs a name that a folder can have, not {name!r}")
