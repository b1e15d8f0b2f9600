"""What became of what light contributors brought back, for as long as they may ask: by the digest of the bytes, the newest of them."""

from collections import OrderedDict
from collections.abc import Mapping

from manta_swarm.peer.cohort.cohort_session import Accepted
from manta_swarm.protocol.light import Fate, LightWord

_REMEMBERED_WORDS, _REMEMBERED_ROSTERS = 4096, 8


class Returns:
    """A gateway's, in one life."""

    def __init__(self) -> None:
        self.num_taken = 0  # claims that the log has
        self._words: OrderedDict[bytes, LightWord] = OrderedDict()
        self._rosters: OrderedDict[bytes, frozenset[bytes]] = OrderedDict()  # contribution -> keys of its claims

    def word(self, name: bytes) -> LightWord | None:
        """Return what became of a return; None: it is not known here."""
        return self._words.get(name)

    def roster(self, contribution: bytes) -> frozenset[bytes]:
        """Return the keys whose claims one of the newest contributions of this gateway has; none of another one."""
        return self._rosters.get(contribution, frozenset())

    def held(self, name: bytes) -> None:
        """It is good, and is handed in with the gateway's own work."""
        self._remember(name, LightWord(int(Fate.HELD), "", (), (), 0))

    def lost(self, reasons: Mapping[bytes, str]) -> None:
        """They are not in what the gateway hands in, each for a reason."""
        for name, reason in reasons.items():
            self._remember(name, lost(reason))

    def taken(self, reasons: Mapping[bytes, str], accepted: Accepted, keys: frozenset[bytes]) -> None:
        """The log has the gateway's contribution, which has claims of these keys: all of them but those with a reason."""
        for name, reason in reasons.items():
            if reason:
                self._remember(name, lost(reason))
            else:
                self._remember(name, LightWord(int(Fate.TAKEN), "", (accepted.contribution,), (accepted.inclusion_promise,), 0))
                self.num_taken += 1
        self._rosters[accepted.contribution.digest] = keys
        if len(self._rosters) > _REMEMBERED_ROSTERS:
            self._rosters.popitem(last=False)

    def _remember(self, name: bytes, word: LightWord) -> None:
        self._words.pop(name, None)
        self._words[name] = word
        if len(self._words) > _REMEMBERED_WORDS:
            self._words.popitem(last=False)


def lost(reason: str) -> LightWord:
    """Return what is said of a return that is lost."""
    return LightWord(int(Fate.LOST), reason[:200], (), (), 0)
