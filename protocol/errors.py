"""The error tree. Each class says whose fault it is, and so what to do.

MantaError
├── UserError             the person's: a flag, a file, an address; one line, exit code 2
│   ├── SamplesMissing        a shard of the data set is missing or damaged here; do without the microbatches that need it
│   ├── NotThere              nobody of the run answers now; wait, where the address is known to be right (peer.contact.entering)
│   ├── NoSuchFile            a copy of a log has no file of that name (aggregator.log.copies)
│   ├── BrokenWeights         a snapshot's subnet is so bad that its quality is no number (automl.search.search)
│   └── NobodyRuns            no program runs on the directory of a command that tells it something (runtime.control)
├── RemoteFault           theirs: a peer broke the protocol; drop, count, name the reason
│   ├── EncodingError         bytes that are not the canonical form of anything we expect
│   ├── SignatureError        a signature or a public key that does not hold
│   ├── OtherVersion          nobody's fault: a run of another version of the protocol; say what to install (protocol.versions)
│   ├── ProofError            an inclusion or consistency proof that proves nothing
│   │   └── NothingProven         what was kept as a proof is whole, and shows no fault of anybody; exit code 5 (ledger check-proof)
│   │       └── RightGroup            what would prove a wrong group of a mean shows a right one (network.wrong_group)
│   ├── LedgerError           an entry that may not follow the log it is offered to
│   │   └── ClaimError            one that might, without the claims of some keys
│   ├── TableError            contributions, or weights, that are not those of a round (protocol.table)
│   ├── NotTaken              a header or a body that the open round has no place for (protocol.closing)
│   ├── Outdated              a leader whose ballot is older than one that was promised (protocol.ballots)
│   ├── NotNext               a batch that does not begin where this operator's log ends (protocol.ballots)
│   ├── Forked                a batch in whose place another was signed: an operator of the run lies (protocol.ballots)
│   ├── NotTheirs             a caller that may not bring this (aggregator.intake.refusals)
│   ├── NoOperator            a caller that is no operator of the run (aggregator.features.operators.service)
│   ├── NoRoom                what is fetched or handed in for a round has no room here (runtime.round_folder)
│   ├── OtherData             a site whose stereo views are of other scenes, or not the run's (peer.features.two_views.partner)
│   ├── NotAdmitted           a caller that the run has not let in (network.admission_filter)
│   ├── NotACohortPeer        a caller without the cohort's token (network.near_cohort_peers)
│   ├── NotCosigned           a tree head that a witness does not sign (aggregator.features.witness.rule)
│   │   ├── OtherLog              of a log that it does not know
│   │   ├── OtherSize             with a proof that does not begin where it stands
│   │   └── OtherTree             as large as the last one that it signed, and another: the log has two histories
│   ├── NotKnown              a gateway knows nothing of a lease's work (peer.features.light.client)
│   ├── NotLetIn              a gateway's run does not let this key in (peer.features.light.client)
│   ├── AskAnother            an operator cannot do what is asked now, another one may (network.operator_line)
│   ├── Unsettled             members contradict each other, and too few are there to tell who is right (network.asked_members)
│   └── Refused               a node answered a call with no (network.rpc)
├── Weather               nobody's: skip the round, go on
│   ├── Unreachable           a node does not answer, or not in time
│   │   ├── Busy                  by its own word: it may soon (network.rpc)
│   │   │   └── Deposed               an operator that does not lead any more (aggregator.features.operators.leader)
│   │   └── Lacking               parts of a cohort's mean are not here, or have other bytes than were told (peer.cohort.all_reduce)
│   ├── NotYet                a site is not at a microbatch's weights yet, or not any more (peer.features.two_views.views)
│   ├── NotNow                an auditor cannot judge a contribution now (peer.features.audit.fetching)
│   ├── ChildLost             a child process died, or stood still and was killed (runtime.child)
│   └── WorkerLost            a worker died, hung or was stopped in the middle of a microbatch (peer.workers.pool)
├── NoUse                 nobody's: what a lease's microbatches gave is not finite (peer.features.light.work)
├── LeaseOver             nobody's: a pause outlasted a lease, or the person left in it (peer.features.light.work_gate)
├── BudgetSpent           nobody's: another contribution would give away more than the person allows (peer.features.private.noise)
├── LogLied               the operator's: the log committed a mean that is not its table's; stop, show the proof (peer.sync.spot_checker)
├── OtherHistory          the operator's: the log lacks, or contradicts, what its key has signed for; stop, keep the evidence, exit code 3
├── FoundGuilty           the person's, or their computer's: audits found that the peer's work is not what it says; stop, exit code 4
├── Stopped               nobody's: a person or the system told a program to stop at once (peer.joining, aggregator.local.swarm)
└── OwnFault              ours: stop, and say what to do
    └── StorageError          the disk or the database failed, or holds less than we promised
        └── DamagedFile           a file is not what was written to it (runtime.atomic_file)
"""


class MantaError(Exception):
    """Any error that Manta raises on purpose."""


class UserError(MantaError):
    """The person's input cannot work; the message is one line that says what to do."""


class NoSuchFile(UserError):
    """A copy of a log has no file of that name."""


class SamplesMissing(UserError):
    """A shard of the data set that is needed is missing, damaged, or decodes to other pixels than where it was made."""


class RemoteFault(MantaError):
    """Another party broke the protocol; what it sent is dropped and counted."""


class EncodingError(RemoteFault):
    """Bytes are not the canonical encoding of the expected value."""


class SignatureError(RemoteFault):
    """A signature does not verify, or its public key is refused."""


class OtherVersion(RemoteFault):
    """A run is of a version of the protocol whose rules this program does not know."""


class ProofError(RemoteFault):
    """A Merkle proof is malformed or proves something else."""


class NothingProven(ProofError):
    """What was kept as a proof is whole and rightly signed, and shows no fault of anybody."""


class LedgerError(RemoteFault):
    """An entry is not a valid next entry of this log."""


class ClaimError(LedgerError):
    """Claims that may not stand in the log; what else is handed in with them might, without them.

    ``keys`` are those of the claims, ``key`` is the first of them.
    """

    def __init__(self, reason: str, keys: tuple[bytes, ...]) -> None:
        super().__init__(reason)
        self.keys = keys

    @property
    def key(self) -> bytes:
        """The first key whose claim may not stand there."""
        return self.keys[0]


class Weather(MantaError):
    """The network or a machine failed; nobody is to blame and nothing is lost."""


class Unreachable(Weather):
    """A node could not be reached, or did not answer before its deadline."""


class OtherHistory(MantaError):
    """The log that is here, or that answers, lacks or contradicts what its key has signed for; going on would make two histories."""


class FoundGuilty(MantaError):
    """Audits found this peer guilty: it works for nothing from now on; the message says of what, and what to do."""


class OwnFault(MantaError):
    """This program or its machine is at fault; going on would break a promise."""


class StorageError(OwnFault):
    """A file or database cannot be read or written as promised; never retried in place."""
