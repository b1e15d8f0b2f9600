"""What a light contributor learns of its pay: receipts of counted claims, proven here, and what the log says it paid, unproven.

Both come by way of its gateway. A receipt is checked before it is kept.
"""

import logging
import time
from collections import deque
from dataclasses import dataclass

from manta_swarm.automl.training.training_spec import ManifestTrainingSpec
from manta_swarm.network.light_pay import LightPay
from manta_swarm.peer.credit.payout_receipts import KeptCredit, PayoutReceiptFolder
from manta_swarm.peer.features.light.client import GatewayClient, NotKnown
from manta_swarm.peer.status import LiveStatus, credit_fields
from manta_swarm.peer.store import PAYOUT_RECEIPTS, PeerStore
from manta_swarm.protocol.errors import MantaError, RemoteFault
from manta_swarm.protocol.manifest import SignedManifest
from manta_swarm.protocol.payout_receipts import PayoutReceipt, prove
from manta_swarm.protocol.records import Claim
from manta_swarm.protocol.signed import Signed
from manta_swarm.runtime.atomic_file import DamagedFile

_OWED = 8  # claims whose pay is waited for, the newest ones
_AGAIN_S = (4.0, 30.0)  # until a gateway that does not know it yet is asked again, at first and later

logger = logging.getLogger("manta.light")


@dataclass
class _Owed:
    contribution: bytes
    claim: Signed[Claim]
    ask_s: float
    pause_s: float = _AGAIN_S[0]


class Pay:
    """Learns and keeps what a light contributor was paid in one run; used by the thread that works."""

    def __init__(self, signed: SignedManifest, key: bytes, store: PeerStore, live_status: LiveStatus) -> None:
        """Know what was kept at the last time.

        Raises:
            StorageError: the disk refuses.
        """
        self._manifest, self._run, self._key = signed.open(), signed.run, key
        self._training_spec = ManifestTrainingSpec(self._manifest)
        self._store = store
        self._live_status = live_status
        self._payout_receipts = PayoutReceiptFolder(store.run_path(signed.run) / PAYOUT_RECEIPTS)
        self._payout_receipts.begin(signed)
        self._owed: deque[_Owed] = deque(maxlen=_OWED)
        self._kept = KeptCredit()
        try:
            self._kept = store.credit(signed.run).load(KeptCredit) or self._kept
        except DamagedFile as error:  # the log says it again
            logger.warning("what was kept of the credit is passed over reason=%s", error)
        self._show()

    def counts(self, contribution: bytes, claim: Signed[Claim]) -> None:
        """The log has a claim in hand: a round will count it."""
        self._owed.append(_Owed(contribution, claim, time.monotonic() + _AGAIN_S[0]))

    def look(self, client: GatewayClient, *, at_once: bool = False) -> None:
        """Ask for what is due.

        Raises:
            Unreachable: the gateway is away.
            StorageError: the disk refuses.
        """
        for owed in list(self._owed):
            if at_once or time.monotonic() >= owed.ask_s:
                try:
                    self._take(owed, client.pay(owed.contribution, self._key))
                    self._owed.remove(owed)
                except NotKnown:
                    owed.pause_s = min(2 * owed.pause_s, _AGAIN_S[1])
                    owed.ask_s = time.monotonic() + owed.pause_s
                except RemoteFault as error:
                    self._owed.remove(owed)
                    self._live_status.say(f"no payout receipt: what the gateway shows of it does not hold: {error}")

    def _take(self, owed: _Owed, pay: LightPay) -> None:
        """Keep what a round paid, once it is proven.

        Raises:
            RemoteFault: it is not.
            StorageError: the disk refuses.
        """
        proven = prove(PayoutReceipt(pay.listing, owed.claim, pay.claims), self._manifest, self._run, self._training_spec)
        entry, paid = proven.round, pay.word.earned if proven.earned is None else (proven.earned,)
        self._payout_receipts.keep(entry.round, PayoutReceipt(pay.listing, owed.claim, pay.claims, paid))
        kept = self._kept.told(pay.word)
        if pay.claims:
            kept = kept.computed(entry.round, paid[0])
        self._kept = kept
        self._store.credit(self._run).save(kept)
        if paid and entry.round >= self._live_status.status.earned_round:
            self._live_status.update(earned_round=entry.round, earned=paid[0], earned_checked=bool(pay.claims))
        self._show()

    def _show(self) -> None:
        kept = self._kept
        word = credit_fields(kept.word[0], self._manifest.audit_rules) if kept.word else {}
        self._live_status.update(credit_checked=kept.checked, credit_rounds=kept.num_checked, **word)


def last_look(pay: Pay, client: GatewayClient) -> None:
    """Ask once more, at the end; a gateway that is gone changes nothing."""
    try:
        pay.look(client, at_once=True)
    except MantaError as error:
        logger.info("pay not told at the end reason=%s", error)
