"""Writes docs/protocol.json from the code: records, methods, signatures, limits and refusals: python -m tests.docs.protocol_tables

A record is a frozen dataclass: its fields, what the code says of each, and what has to hold are read from its source. Of a method the
bounds are the code's where it names them.
"""

import ast
import dataclasses
import importlib
import inspect
import io
import json
import re
import textwrap
import tokenize
from enum import IntEnum
from typing import Any, get_args

from manta_swarm.aggregator.commit.feed import MAX_WAITING
from manta_swarm.network import (
    blobs,
    dht_protocol,
    dht_storage,
    dialling,
    link,
    log_client,
    log_proofs,
    near_cohort_peers,
    operator_line,
    rates,
    reach,
    rpc,
    streams,
    unary,
    validator,
)
from manta_swarm.network.admission_filter import NOT_ADMITTED, PUBLIC
from manta_swarm.network.light_pay import PAY
from manta_swarm.peer.sync.split_view_monitor import MAX_HISTORIES_BYTES
from manta_swarm.protocol import auditing, exchange, light
from manta_swarm.protocol import records as entry_records
from manta_swarm.protocol.cosignatures import MAX_COSIGNATURES
from manta_swarm.protocol.encoding import MAX_DEPTH, MAX_ITEMS
from manta_swarm.protocol.evaluations import MAX_QUESTION_BYTES, MAX_WORD_BYTES
from manta_swarm.protocol.manifest import MAX_MANIFEST_BYTES, MAX_OPERATORS, MAX_SIGNED_MANIFEST_BYTES
from manta_swarm.protocol.merkle import MAX_SIZE
from manta_swarm.protocol.notes import MAX_NOTE_BYTES, MAX_SIGNATURES
from manta_swarm.protocol.records import MAX_ENTRY_BYTES, MAX_HEADER_BYTES
from manta_swarm.protocol.table import MAX_WEIGHED_BYTES
from manta_swarm.protocol.versions import PROGRAM, PROTOCOL
from tests.documents import ROOT

FILE = ROOT / "docs" / "protocol.json"

RECORDS = {
    "manta_swarm.network.blobs": "ProvenPiece AskPiece",
    "manta_swarm.network.dialling": "ListenPlaces",
    "manta_swarm.network.invitation": "Token",
    "manta_swarm.network.light_pay": "LightPay",
    "manta_swarm.network.links": "Greeting",
    "manta_swarm.network.log_client": "CreditWord HeaderAnswer AfterRound FeedAnswer AskListing AskCredit AskRound AskContributions",
    "manta_swarm.network.log_proofs": "HeldHead ShownHead AskConsistency AskEntries Consistency Cosigned",
    "manta_swarm.network.near_cohort_peers": "Hello",
    "manta_swarm.network.pushes": "BodyOffer ShownOffer Push PushAnswer",
    "manta_swarm.network.reach": "AskDialBack DialledBack",
    "manta_swarm.network.shutdown_notices": "ShutdownNotice",
    "manta_swarm.network.wrong_group": "WrongGroup",
    "manta_swarm.peer.cohort.messages": "Join JoinAnswer VectorSummary Give GiveAnswer Plan PartReport PlanAnswer Add AddAnswer AskSum "
    "HandOver Taken Word",
    "manta_swarm.peer.commands.tables": "TableOffer",
    "manta_swarm.peer.features.two_views.partner": "Site",
    "manta_swarm.peer.features.two_views.views": "MicrobatchName Begin SiteExchange",
    "manta_swarm.protocol.admission": "AdmissionRule Invitation Admission AdmissionProof Revocation AskRevoked Revoked",
    "manta_swarm.protocol.affinity": "Position",
    "manta_swarm.protocol.auditing": "PlacedContribution AskWanted WantedOf WantedAnswer VectorPage AskVector AskAssignments Needed "
    "Assignment Assignments Need Finding",
    "manta_swarm.protocol.evaluations": "Question Result Answer EvaluationWord",
    "manta_swarm.protocol.exchange": "Exchange",
    "manta_swarm.protocol.histories": "Histories",
    "manta_swarm.protocol.light": "Welcome EnterRequest LeaseRequest Lease LeaseAnswer LightReturn LightWord",
    "manta_swarm.protocol.manifest": "SignedManifest Manifest Optimizer Recipe TravellingShards",
    "manta_swarm.protocol.private": "PrivateData Measure",
    "manta_swarm.protocol.records": "Announcement Entry ClaimStep Claim StepMean Contribution Header Threshold Round "
    "InclusionPromise Receipt Included Listing",
    "manta_swarm.protocol.rewards": "RoundContributions",
    "manta_swarm.protocol.table": "Weighed",
    "manta_swarm.protocol.verdicts": "AuditRules Verdict Settlement",
}

PARTS = {  # what fields of records, and methods, have that is no record by itself
    "manta_swarm.protocol.ballots": "Ballot Vote KeptUnderBallot",
    "manta_swarm.protocol.cosignatures": "Cosignature",
    "manta_swarm.protocol.reputation": "Fault",
}

COLUMNS = ("method", "served_by", "may_call", "request", "answer", "max_request", "max_answer", "timeout_s")
TIMETABLE, LEFT, RIGHT = "by the timetable of section 20", "the site with the left views", "the site with the right views"
METHODS: tuple[tuple[str | int, ...], ...] = (
    ("manifest", "aggregator, peers", "anybody", "ignored", "packed SignedManifest", "-", MAX_SIGNED_MANIFEST_BYTES, "20"),
    ("ping", "aggregator, peers", "anybody", "empty", "empty", "0", "0", "2"),
    ("announcement", "peers", "anybody", "its own, packed Announcement", "empty", "512", "0", "5"),
    (
        "header",
        "aggregator",
        "a key of its claims",
        "packed Header",
        "packed HeaderAnswer",
        MAX_HEADER_BYTES,
        log_client.MAX_ANSWER_BYTES,
        "20",
    ),
    (
        "body",
        "aggregator",
        "a key of its header's claims",
        "contribution (32) || place (2) || group",
        "empty, or packed Signed InclusionPromise",
        "34 + group",
        "2304",
        "120",
    ),
    (
        "commit-after",
        "aggregator, peers",
        "anybody",
        "packed AfterRound",
        "packed FeedAnswer",
        128,
        log_client.MAX_FEED_BYTES,
        "20; waits_as is not 0: section 9",
    ),
    (
        "tree-head",
        "aggregator",
        "anybody",
        "packed HeldHead",
        "packed ShownHead",
        log_client.MAX_RECEIPT_BYTES + 16,
        log_proofs.MAX_SHOWN_HEAD_BYTES,
        "20",
    ),
    ("commit-at", "peers", "anybody", "packed AskRound", "packed Receipt of that round", 64, log_client.MAX_RECEIPT_BYTES, "5"),
    ("histories", "peers", "anybody", "packed Histories", "empty", MAX_HISTORIES_BYTES, "-", "5"),
    (
        "consistency",
        "aggregator",
        "anybody",
        "packed AskConsistency",
        "packed Consistency",
        log_proofs.MAX_ASK_CONSISTENCY_BYTES,
        log_proofs.MAX_CONSISTENCY_BYTES,
        "20",
    ),
    (
        "entries",
        "aggregator",
        "anybody",
        "packed [first, count], count 1 to 256",
        "a bundle (section 5, As files) of entries from first on: at most count, as many as have "
        "1,048,576 bytes, and one at least; refused where there are not so many as count",
        log_proofs.MAX_ASK_ENTRIES_BYTES,
        log_proofs.MAX_ENTRIES_BYTES,
        "60",
    ),
    ("cosigned", "aggregator", "anybody, its own", "packed Cosigned", "empty", "192", "-", "20"),
    ("shutdown-notice", "peers", "an operator", "packed ShutdownNotice", "empty", "1024", "-", "5"),
    (
        "admission",
        "aggregator, where admission is by invitation",
        "anybody",
        "packed Signed Admission, or empty",
        "packed Signed AdmissionProof",
        "1152",
        "512",
        "20",
    ),
    ("revoked", "aggregator, where admission is not open", "anybody", "packed AskRevoked", "packed Revoked", "32", "90,112", "20"),
    (
        "admission-proof",
        "aggregator, peers, where admission is not open",
        "anybody",
        "packed Signed AdmissionProof: its own",
        "empty",
        "272",
        "0",
        "20",
    ),
    ("listing", "aggregator", "anybody", "packed AskListing", "packed Listing, or empty", 128, log_client.MAX_LISTING_BYTES, "20"),
    ("weights", "aggregator, peers", "anybody", "packed AskRound", "packed [list of Weighed]", 128, MAX_WEIGHED_BYTES, "20"),
    (
        "contributions",
        "aggregator",
        "anybody",
        "packed AskContributions",
        "packed RoundContributions: a page",
        128,
        log_client.MAX_CONTRIBUTIONS_BYTES,
        "20",
    ),
    ("credit", "aggregator", "anybody", "packed AskCredit", "packed CreditWord", 128, log_client.MAX_CREDIT_BYTES, "20"),
    (
        "audit.wanted",
        "operators",
        "a key of the contributions' claims",
        "packed AskWanted",
        "packed WantedAnswer",
        auditing.MAX_ASK_BYTES,
        auditing.MAX_WANTED_BYTES,
        "20",
    ),
    ("audit.bring", "operators", "a key of the contributions' claims", "packed VectorPage", "empty", auditing.MAX_PAGE_BYTES, 0, "120"),
    (
        "audit.vector",
        "operators, peers",
        "anybody",
        "packed AskVector",
        "the page: 1,048,576 bytes, or what is left",
        auditing.MAX_ASK_VECTOR_BYTES,
        auditing.PAGE_BYTES,
        "60",
    ),
    (
        "audit.assignments",
        "operators",
        "named auditors, proven keys",
        "packed AskAssignments",
        "packed Assignments",
        64,
        auditing.MAX_ASSIGNMENTS_BYTES,
        "20",
    ),
    ("audit.need", "operators", "named auditors", "packed Need", "empty", "64", "0", "20"),
    ("audit.finding", "operators", "the volunteer", "packed Signed Finding", "empty", auditing.MAX_SIGNED_FINDING_BYTES, 0, "20"),
    (
        "audit.verdict",
        "aggregator",
        "anybody",
        "packed Signed Verdict",
        "empty, once it is on the disk",
        auditing.MAX_SIGNED_VERDICT_BYTES,
        0,
        "20",
    ),
    ("blob", "aggregator, peers", "anybody", "packed AskPiece", "a piece, or hashes", "128", "1,114,112", "60"),
    ("commit", "peers", "anybody", "packed Receipt of a round", "empty", log_client.MAX_RECEIPT_BYTES, "-", "5"),
    ("offers", "peers", "anybody", "packed Push", "packed PushAnswer", "65,536", "64", "5"),
    ("near.hello", "peers with a token", "anybody", "packed Hello", "packed Hello", "2304", "2304", "10"),
    ("near.goodbye", "peers with a token", "anybody", "ignored", "empty: the caller is no cohort peer any more", "-", "-", "2"),
    ("near.join", "peers with a token", "cohort peers", "packed Join", "packed JoinAnswer", "4096", "4096", "its timeout + 1"),
    ("near.give", "the founder", "cohort peers", "packed Give", "packed GiveAnswer", "692,224", "565,248", TIMETABLE),
    ("near.hand-over", "the founder", "cohort peers", "packed HandOver", "packed Word", "692,224", "565,248", TIMETABLE),
    ("near.plan", "members", "their founder", "packed Plan", "packed PlanAnswer", "4096", "1,572,864", TIMETABLE),
    ("near.add", "members", "their founder", "packed Add", "packed AddAnswer", "4096", "1,572,864", TIMETABLE),
    ("near.sum", "the founder", "its roster", "packed AskSum", "a part of a mean", "4096", "262,144", TIMETABLE),
    ("views.meet", RIGHT, "cohort peers", "packed Site", "packed Site", "8192", "8192", "10"),
    ("views.begin", RIGHT, LEFT, "packed Begin", "empty, or why not yet", "8192", "8192", "3"),
    ("views.exchange", RIGHT, LEFT, "packed SiteExchange", "as many bytes as the left site takes next", "1,048,832", "1,048,576", "20"),
    ("views.lead", LEFT, "that with the right ones", "packed MicrobatchName", "empty, or why not yet", "8192", "8192", "120"),
    ("near.chunk", "peers with a token", "its roster", "tag (16), turn (2), first value (8), values", "empty", "1,048,602", "0", TIMETABLE),
    (
        "dial-back",
        "aggregator, peers",
        "anybody",
        "packed AskDialBack: 1 to 4 TCP ports",
        "packed DialledBack: 1 or 2 pairs of an IP address and those of the ports where the caller answered",
        "256",
        "256",
        "15",
    ),
    (
        "where",
        "aggregator, peers",
        "anybody",
        "a key (32)",
        "packed ListenPlaces: up to 8 pairs of an IP address and a TCP port",
        "32",
        "512",
        "3; of its own key 2",
    ),
    ("measure", "aggregator, where data are private", "the measure's key", "packed Signed Measure", "empty", "384", "-", "20"),
    ("evaluate", "peers", "anybody", "packed Question", "packed EvaluationWord", MAX_QUESTION_BYTES, MAX_WORD_BYTES, "30"),
    ("latency", "peers that hand out a table", "anybody", "ignored", "packed Signed TableOffer", "-", "384", "10"),
)
OF_OPERATORS: tuple[tuple[str | int, ...], ...] = (  # served by operators where there are several, to the manifest's operators
    ("promise", "(ballot)", "(later term or 0, note, at most one offer, list of kept)", "4,096", "1,048,576"),
    ("accept", "an offer: (ballot, first, size, root, (digest, bytes) of the lent entries)", "a vote: (key, signature)", "4,096", "-"),
    ("sign", "(certificate): (ballot, size, root, votes)", "the signed note", "4,096", "-"),
    ("keep", "(list of kept)", "empty, once they are on disk", "2,097,152", "0"),
    (
        "verdicts",
        "(size of the giver's log, at most 64 packed Entries of verdicts, at most one ballot: of the leader that is to acknowledge them)",
        "empty, once they are on disk",
        "2,097,152",
        "0",
    ),
    (
        "waiting",
        "(ballot, digest or empty)",
        "a page of the waiting verdicts' Entries after that digest, at most 64, by digest",
        "4,096",
        "-",
    ),
    ("position", "empty", "(ballot promised, size, round)", "4,096", "-"),
    ("beat", "(ballot, milliseconds left, note)", "empty", "8,192", "0"),
    ("lent", "(digest, offset)", "bytes from there on, at most 1,048,576; fewer: those were the last", "4,096", "1,048,576"),
    ("entries", "(start, end)", "a page of entries from start on", "4,096", "-"),
    ("forward", "(caller, method, request)", "that method's answer", "2,098,176", "-"),
)

RULES = {  # what a method's records do not say, beside section 9
    "commit-at": "one of the newest 36 rounds",
    "listing": "one of the newest 8 rounds, else refused",
    "weights": "one of the newest 8 rounds (of a peer 4), else refused; believed if there are as many as the round's entry has "
    "contributions, the base of each is at most 4 commits old, and their root is the entry's",
    "contributions": "one of the newest 8 rounds, else refused; from place on, as many as have 1,048,576 bytes together (8 more counted "
    "for each), and one at least, with the proof of the round's range under the asker's head of that size",
    "consistency": "refused by a log that has fewer than new entries",
    "credit": "the log's word: nothing proves it",
    "shutdown-notice": "of several operators quorum have to say that the run is over",
    "blob": "the piece at that place, or for place -1 the leaf hashes of all pieces, joined; also while others are still being fetched",
    "commit": "believed only with its proof",
    "where": "what the key says of itself, if it is connected, else where it was reached last",
    "latency": "believed if it holds, for that run and key; the table is a blob of the same peer",
    "measure": "taken if it holds, of a committed state, and a table has a claim of the key; nothing follows from it",
    "near.chunk": "1 to 4 parts of a vector, one after the other",
    "announcement": "taken as if the callee had found it in the DHT",
    "admission": "answered if the key is in, or once its admission is on the disk; who is in may bring another key's",
}


def classes(of: dict[str, str]) -> list[type]:
    """Return the classes that modules have by these names."""
    return [getattr(importlib.import_module(module), name) for module, names in of.items() for name in names.split()]


def records() -> list[type]:
    """Return the records' classes."""
    return classes(RECORDS)


class _Said(ast.NodeTransformer):
    """Says a field by its name alone, and a constant of the module by its value."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A field of the record itself."""
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return ast.Name(node.attr)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A constant."""
        value: Any = self._known.get(node.id)
        if isinstance(value, frozenset | set):
            value = tuple(sorted(value))
        if isinstance(value, re.Pattern):
            value = value.pattern
        is_constant = node.id.strip("_").isupper() and isinstance(value, int | str | tuple)
        return ast.Constant(value) if is_constant else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """What is required, without the words of its refusal."""
        if isinstance(node.func, ast.Name) and node.func.id == "require":
            required: ast.AST = self.visit(node.args[0])
            return required
        if isinstance(node.func, ast.Name) and node.func.id.startswith("check_"):
            node.args = node.args[:1]
        return self.generic_visit(node)


def comments(source: str) -> dict[int, str]:
    """Return the comments of a class by their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def told(record: type) -> dict[str, Any]:
    """Return what the code says of a record."""
    source = textwrap.dedent(inspect.getsource(record))
    said, (parsed,) = comments(source), ast.parse(source).body
    assert isinstance(parsed, ast.ClassDef)
    known = vars(importlib.import_module(record.__module__))
    fields = [each for each in parsed.body if isinstance(each, ast.AnnAssign)]
    lines = {ast.unparse(each.target): range(each.lineno, (each.end_lineno or each.lineno) + 1) for each in fields}
    types = {ast.unparse(each.target): ast.unparse(each.annotation) for each in fields}
    checks = [each for each in parsed.body if isinstance(each, ast.FunctionDef) and each.name == "__post_init__"]
    rules = [
        ast.unparse(ast.fix_missing_locations(_Said(known).visit(line)))
        for check in checks
        for line in check.body
        if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
    ]
    signing = getattr(record, "signing", None)
    content = {
        "record": record.__name__,
        "what": (record.__doc__ or "").partition("\n")[0],
        **({"signed_as": signing.kind, "signed_by": signing.by, "max_bytes": signing.max_bytes} if signing else {}),
        "fields": [
            {
                "name": field.name,
                "type": types[field.name].strip("'"),
                "is": "; ".join(said[line] for line in lines[field.name] if line in said),
            }
            for field in dataclasses.fields(record)
        ],
        "holds": rules,
    }
    return {**content, "values": values(json.dumps(content["fields"]) + json.dumps(rules), known)}


def functions() -> dict[str, str]:
    """Return what the functions say by which records are held to something, by their names."""
    found: dict[str, str] = {}
    waiting = [(rule, record.__module__) for record in (*records(), *classes(PARTS)) for rule in told(record)["holds"]]
    while waiting:
        rule, module = waiting.pop()
        known = vars(importlib.import_module(module))
        for name in sorted(set(re.findall(r"\w+(?=\()", rule)) & known.keys()):
            function = known[name]
            if not inspect.isfunction(function) or name in IN_THE_TEXT:
                continue
            (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
            assert isinstance(parsed, ast.FunctionDef)
            parsed.body = [line for line in parsed.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
            said = ast.unparse(ast.fix_missing_locations(_Said(vars(importlib.import_module(function.__module__))).visit(parsed)))
            assert found.get(name, said) == said, f"two functions have the name {name}"
            if name not in found:
                found[name] = said
                waiting.append((said.partition("\n")[2], function.__module__))
    return dict(sorted(found.items()))


def methods() -> list[dict[str, Any]]:
    """Return the methods: who serves each, who may call it, and what goes and comes."""
    several = (
        (f"operators-{name}", "operators, where there are several", "the manifest's operators", *of, "-") for name, *of in OF_OPERATORS
    )
    rows = (dict(zip(COLUMNS, row, strict=True)) for row in (*METHODS, *several))
    return [
        {
            **{column: f"{value:,}" if isinstance(value, int) else value for column, value in row.items()},
            "counts_as": rates.COSTS.get(str(row["method"]), 1),
            "answers_everybody": row["method"] in PUBLIC,
            "rules": RULES.get(str(row["method"]), ""),
        }
        for row in rows
    ]


def is_plain(value: object) -> bool:
    """Return whether JSON has a value: a number, a text, or some of these."""
    return type(value) in (int, str) or (type(value) in (tuple, frozenset) and all(map(is_plain, value)))  # type: ignore[call-overload]


def _assigned(enumeration: type) -> list[ast.Assign]:
    """Return where the members of an enumeration stand in its source."""
    (parsed,) = ast.parse(inspect.getsource(enumeration)).body
    assert isinstance(parsed, ast.ClassDef)
    return [each for each in parsed.body if isinstance(each, ast.Assign)]


def values(text: str, module: dict[str, Any]) -> dict[str, Any]:
    """Return what the enumerations and constants of a module are that a text names."""
    found: dict[str, Any] = {}
    for name in sorted(set(re.findall(r"\w+", text))):
        value = module.get(name)
        if isinstance(value, type) and issubclass(value, IntEnum):
            said = comments(inspect.getsource(value))
            lines = dict(zip(value, (each.lineno for each in _assigned(value)), strict=True))
            found[name] = {each.name: {"value": int(each), "is": said.get(lines[each], "")} for each in value}
        elif name.isupper() and is_plain(value):
            found[name] = sorted(value) if isinstance(value, frozenset) else value
    return found


IN_THE_TEXT = ("check_public_key", "check_form", "check_class_name", "codec_named", "sum_bits")  # functions that are rules there

DHT_RECORDS = (  # name, value, by whom, lifetime; p and b: section 8
    ("manta-<run, hex>-members", "packed Announcement", "peers, every p seconds", "6 p"),
    ("manta-<run, hex>-members-<b>-<prefix, hex without zeros in front>", "packed Announcement", "peers, every p seconds", "6 p"),
    ("manta-<run, hex>-cohort-<SHA-256(secret || the cohort's name), hex>", "packed Announcement", "peers, every p seconds", "6 p"),
    ("manta-<run, hex>-lan-<the same digest>", "local addresses", "peers with a token that listen on a network", "6 p"),
    (
        "manta-<run, hex>-head",
        f"packed Receipt of the newest commit, at most {log_proofs.MAX_RECORD_BYTES} bytes",
        "operators",
        f"{log_proofs.LIVES_S:g} s",
    ),
)

LINK_FRAMES = {  # between cohort peers that are linked
    "head": "kind (1), number (8), size (4), tag (16), turn (2), first (8), big-endian; then size bytes",
    "kinds": {
        "0": "a call: the length of the method's name (1), the name, the request",
        "1": "the answer to the call of that number, as in section 9",
        "2": "the call of that number is given up",
        "3": f"a chunk: a part of a vector under a tag, {link.CHUNK_VALUES:,} values, the last part what is left; first is its first value",
    },
    "bytes at most": vars(link)["_MAX_FRAME_BYTES"],
    "calls at a time": vars(link)["_MAX_ANSWERING"],
}

OTHER_SIGNATURES = (  # of what is no record above
    ("manifest", "Manifest", "the first of the manifest's operators"),
    ("acceptance", "(run, term, leader, size, root)", "an operator"),
    ("dht", "[record key, subkey, value, expiration]", "the owner of the subkey"),
)
SIGNERS = {"": "an operator", "signer": "the key of its invitation"}  # where no field of the record names the key

REFUSALS = (  # text, whether that is all of it (else how it begins), who says it, and what it means
    (NOT_ADMITTED, False, "any node, where admission is not open", "the caller's key is not in: an admission proof may change that"),
    (str(operator_line.AskAnother("")), False, "operators, where there are several", "another operator may do what is asked"),
    (blobs.BUSY, True, "blob", "another node is to be asked"),
    (blobs.NOT_HERE, True, "blob", "nothing of this blob is here; so means any other refusal of a blob"),
    (blobs.NOT_YET, True, "blob", "some of this blob is here, but not this piece"),
)

REQUESTS = (  # of light contributors to a gateway: method, path, request, its most bytes, answer
    ("GET", light.WELCOME, "", 0, "Welcome"),
    ("POST", light.PASSES, "EnterRequest", light.MAX_ENTER_BYTES, "Signed AdmissionProof"),
    ("POST", light.LEASES, "Signed LeaseRequest", light.MAX_REQUEST_BYTES, "LeaseAnswer"),
    ("GET", light.BLOBS + "/<digest>", "", 0, "the bytes that a lease of the base that is worked on names so"),
    ("POST", light.RETURNS, "LightReturn", "a claim and an int16 body of N values", "LightWord"),
    ("GET", light.WORDS + "/<SHA-256 of a packed LightReturn>", "", 0, "LightWord"),
    ("GET", PAY + "/<digest of a contribution>/<key>", "", 0, "LightPay"),
)
STATUSES = {  # of answers that are a line of text
    400: "malformed, or not signed",
    403: "the run does not let this key in",
    404: "not known here",
    408: "too slow",
    413: "too long",
    429: "too many requests: come again after Retry-After seconds",
    503: "not now: come again after Retry-After seconds",
}


def signatures() -> list[dict[str, str]]:
    """Return what is signed: its kind, the payload, and whose key signs it."""
    found = [
        (record.signing.kind, record.__name__, SIGNERS.get(record.signing.by, f"its {record.signing.by}"))
        for record in records()
        if hasattr(record, "signing")
    ]
    return [dict(zip(("kind", "payload", "signed_by"), each, strict=True)) for each in (*OTHER_SIGNATURES, *found)]


def entries() -> dict[str, str]:
    """Return the record that each kind of entry has."""
    of_kinds: dict[str, type] = vars(entry_records)["_ENTRIES"]
    return {
        kind: " ".join([*("Signed" for _ in get_args(body)), next(iter(get_args(body)), body).__name__]) for kind, body in of_kinds.items()
    }


def limits() -> dict[str, dict[str, int | float]]:
    """Return what is bounded, by what it is of."""
    return {
        "records": {
            "arrays in one another": MAX_DEPTH,
            "items": MAX_ITEMS,
            "bytes of a packed manifest": MAX_MANIFEST_BYTES,
            "bytes of an entry": MAX_ENTRY_BYTES,
            "bytes of a header": MAX_HEADER_BYTES,
            "bytes of a receipt": log_client.MAX_RECEIPT_BYTES,
            "members of a cohort": exchange.MAX_COHORT,
            "operators": MAX_OPERATORS,
        },
        "notes": {
            "bytes": MAX_NOTE_BYTES,
            "signature lines": MAX_SIGNATURES,
            "leaves of a tree": MAX_SIZE,
            "witnesses whose cosignatures a log shows": MAX_COSIGNATURES,
        },
        "calls": {
            "bytes of a request": rpc.MAX_MESSAGE_BYTES,
            "bytes of a response": rpc.MAX_MESSAGE_BYTES + 1,
            "bytes of a unary request": rpc.LARGE_BYTES,
            "unary calls that a server answers at a time": unary.MAX_CALLS,
            "unary calls of one caller": unary.MAX_CALLS_EACH,
            "unary calls that a caller has open at a node": unary.MAX_OWN_CALLS,
            "streams that a server answers at a time": streams.MAX_STREAMS_IN_ALL,
            "streams of one caller": streams.MAX_STREAMS,
            "streams that a caller has open at a node": streams.MAX_OWN_STREAMS,
            "bytes that a server holds of each kind": streams.MAX_HELD_BYTES,
            "calls a second of a key": rates.CALLS_OF_KEY,
            "calls a second of an address": rates.CALLS_OF_ADDRESS,
            "seconds whose calls may come at once": rates.AT_ONCE_S,
            "faults of a key": rates.FAULTS_FORGIVEN,
            "seconds after which faults are forgotten": rates.FORGET_S,
            "callers that a log holds until its next commit": MAX_WAITING,
            "callers that are dialled back at a time": reach.MAX_DIALLING,
            "cohort peers that are known": near_cohort_peers.MAX_COHORT_PEERS,
        },
        "dials": {
            "of a host that fail in a minute": dialling.FailedDials.OF_HOST,
            "in all that fail in a minute": dialling.FailedDials.IN_ALL,
            "nodes that are asked where another one is": vars(dialling)["_ASKED"],
            "places of a node that one other names": vars(dialling)["_DIALLED"],
        },
        "DHT": {
            **{f"bytes of a {name.rpartition('_')[2]}": most for name, most in vars(unary)["_DHT_REQUEST_BYTES"].items()},
            "calls that a store or a search counts as": rates.COSTS["DHTProtocol.rpc_store"],
            "bytes of an answer to a search": dht_protocol.MAX_ANSWER_BYTES,
            "bytes of a value": validator.MAX_VALUE_BYTES,
            "bytes of a value with its signature": validator.MAX_RECORD_BYTES,
            "seconds to a record's expiration": validator.MAX_TTL_S,
            "names of an owner": dht_storage.MAX_NAMES_OF_AN_OWNER,
            "bytes that a node stores": dht_storage.MAX_BYTES,
            "bytes of a name": dht_storage.MAX_BYTES_OF_A_NAME,
            "bytes that a record counts for beside its own": vars(dht_storage)["_FRAME_BYTES"],
            "bytes that a record counts for at least": dht_storage.MIN_RECORD_BYTES,
        },
        "blobs": {"pieces": blobs.MAX_PIECES, "bytes of a piece": blobs.MAX_PIECE_BYTES},
    }


def tables() -> dict[str, Any]:
    """Return all of the file."""
    return {
        "protocol": PROTOCOL,
        "program": PROGRAM,
        "limits": limits(),
        "signatures": signatures(),
        "entries": entries(),
        "refusals": [dict(zip(("text", "is_whole", "said_by", "means"), each, strict=True)) for each in REFUSALS],
        "requests_to_gateways": [dict(zip(("method", "path", "request", "max_request", "answer"), each, strict=True)) for each in REQUESTS],
        "statuses_of_gateways": STATUSES,
        "dht_records": [dict(zip(("name", "value", "by", "lives"), each, strict=True)) for each in DHT_RECORDS],
        "link_frames": LINK_FRAMES,
        "methods": methods(),
        "records": [told(record) for record in records()],
        "parts": [told(part) for part in classes(PARTS)],
        "functions": functions(),
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(tables(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
