"""Counting what strangers did wrong, by key and reason, in bounded memory; who does it too often is not listened to for a while."""

from collections import Counter, OrderedDict

from manta_swarm.runtime.clock import Clock

MAX_KEYS = 1024
FAULTS_FORGIVEN = 8  # of one key within ``FORGET_S``
FORGET_S = 60.0


class Faults:
    """Refusals by key and by reason."""

    def __init__(self, clock: Clock) -> None:
        """Know of none yet."""
        self._clock = clock
        self._by_key: OrderedDict[bytes, tuple[Counter[str], float, int]] = OrderedDict()  # reasons, since when, how many since then
        self.by_reason: Counter[str] = Counter()

    def note(self, key: bytes, reason: str) -> None:
        """Count one; ``reason`` is one of a few."""
        now = self._clock.now_s()
        reasons, since, recent = self._by_key.pop(key, (Counter(), now, 0))
        if now - since > FORGET_S:
            since, recent = now, 0
        reasons[reason] += 1
        self.by_reason[reason] += 1
        self._by_key[key] = (reasons, since, recent + 1)
        if len(self._by_key) > MAX_KEYS:
            self._by_key.popitem(last=False)

    def is_too_much(self, key: bytes) -> bool:
        """Return whether a key did so much wrong lately that its calls are not worth looking at."""
        found = self._by_key.get(key)
        return found is not None and found[2] > FAULTS_FORGIVEN and self._clock.now_s() - found[1] <= FORGET_S

    def by_key(self) -> dict[bytes, dict[str, int]]:
        """Return what each of the keys that were refused last was refused for."""
        return {key: dict(reasons) for key, (reasons, _, _) in self._by_key.items()}
