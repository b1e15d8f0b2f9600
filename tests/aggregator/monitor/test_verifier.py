"""The monitor's verifier, run by a real browser on the vectors and the malformed arguments that protocol/ is tested with."""

import base64
import functools
import http.server
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import manta_swarm.aggregator
from manta_swarm.protocol.encoding import encode
from manta_swarm.protocol.merkle import Tree, leaf_hash
from manta_swarm.protocol.notes import sign_tree_head
from manta_swarm.protocol.records import Logged, entry_of
from manta_swarm.protocol.signed import Signed
from manta_swarm.protocol.signing import peer_name
from tests.aggregator.monitor.browser import browser
from tests.protocol import record_samples as samples
from tests.protocol import test_merkle as trees
from tests.protocol import test_notes as notes
from tests.protocol import test_operators as operators

__all__ = ["browser"]

pytestmark = pytest.mark.swarm

STATIC = Path(manta_swarm.aggregator.__file__).parent / "monitor" / "static"

# Calls `module[name]` with each list of arguments; returns what became of each: "holds", the class of the error, or what it returned.
CALL = """async ([module, name, calls]) => {
    const { fromHex, toHex } = await import("/js/bytes.js");
    const exported = await import(`/js/${module}.js`);
    const read = (value) => Array.isArray(value) ? value.map(read) : typeof value?.hex === "string" ? fromHex(value.hex)
        : value?.times ? Array(value.times).fill(read(value.each)) : value;
    const shown = (value) => value instanceof Uint8Array ? toHex(value) : typeof value === "bigint" ? String(value)
        : Array.isArray(value) ? value.map(shown)
        : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, shown(one)])) : value;
    const results = [];
    for (const args of calls) {
        try {
            results.push(shown(await exported[name](...read(args))) ?? "holds");
        } catch (error) {
            results.push(error.constructor.name);
        }
    }
    return results;
}"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """A page on the monitor's files; nothing else is served."""
    handler = functools.partial(_Quiet, directory=str(STATIC))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opened = browser.new_page()
        opened.goto(f"http://127.0.0.1:{server.server_port}/js/merkle.js")
        yield opened
        opened.close()
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        del format, args


def sent(value: Any) -> Any:
    """Return a value as JSON can carry it: bytes as {"hex": ...}, a long list of the same one as {"each": ..., "times": ...}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, bytearray):
        return list(value)  # not bytes for the one language, not a Uint8Array for the other
    if isinstance(value, list) and len(value) > 1000 and len(set(value)) == 1:
        return {"each": sent(value[0]), "times": len(value)}
    if isinstance(value, list | tuple):
        return [sent(item) for item in value]
    return 1e300 if isinstance(value, int) and value > 2**1000 else value


def call(page: Any, module: str, name: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what the function of a module of the page's makes of each of the calls."""
    results: list[Any] = page.evaluate(CALL, [module, name, [sent(arguments) for arguments in calls]])
    assert len(results) == len(calls)
    return results


def test_the_reference_vectors_hold(page: Any) -> None:
    leaves = [leaf_hash(leaf) for leaf in trees.RFC_LEAVES]
    roots = [bytes.fromhex(one) for one in trees.RFC_ROOTS]
    assert call(page, "merkle", "leafHash", [[leaf] for leaf in trees.RFC_LEAVES]) == [leaf.hex() for leaf in leaves]
    inclusion = [
        (leaves[index], index, size, [bytes.fromhex(one) for one in proof], roots[size - 1])
        for (index, size), proof in trees.RFC_INCLUSION.items()
    ]
    assert set(call(page, "merkle", "verifyInclusion", inclusion)) == {"holds"}
    consistency = [
        (old, new, [bytes.fromhex(one) for one in proof], roots[old - 1], roots[new - 1])
        for (old, new), proof in trees.RFC_CONSISTENCY.items()
    ]
    assert set(call(page, "merkle", "verifyConsistency", consistency)) == {"holds"}


def test_every_proof_of_small_trees_holds_and_with_one_bit_changed_none_does(page: Any) -> None:
    tree, leaves = Tree(), trees.leaves_of(17)
    for leaf in leaves:
        tree.append(leaf)
    inclusion: list[tuple[Any, ...]] = []
    consistency: list[tuple[Any, ...]] = []
    for size in range(1, 18):
        inclusion += [(leaves[at], at, size, tree.inclusion_proof(at, size), tree.root(size)) for at in range(size)]
        consistency += [(old, size, tree.consistency_proof(old, size), tree.root(old), tree.root(size)) for old in range(size + 1)]
    assert set(call(page, "merkle", "verifyInclusion", inclusion)) == {"holds"}
    assert set(call(page, "merkle", "verifyConsistency", consistency)) == {"holds"}
    spoilt = [(*one[:3], [spoil(one[3][0]), *one[3][1:]], one[4]) for one in inclusion if one[3]]
    spoilt += [(spoil(one[0]), *one[1:]) for one in inclusion]
    spoilt += [(*one[:3], one[3][:-1], one[4]) for one in inclusion if one[3]]
    spoilt += [(*one[:3], [*one[3], leaves[0]], one[4]) for one in inclusion]
    assert set(call(page, "merkle", "verifyInclusion", spoilt)) == {"ProofError"}
    spoilt = [(*one[:2], [*one[2][:-1], spoil(one[2][-1])], *one[3:]) for one in consistency if one[2]]
    spoilt += [(*one[:4], spoil(one[4])) for one in consistency if one[0]]
    spoilt += [(*one[:2], [*one[2], leaves[0]], *one[3:]) for one in consistency]
    assert set(call(page, "merkle", "verifyConsistency", spoilt)) == {"ProofError"}


def test_a_proof_holds_for_exactly_the_places_where_the_definition_says_so(page: Any) -> None:
    leaves, calls, expected = trees.leaves_of(9), [], []
    for size in range(1, 10):
        for index in range(size):
            proof, whole = trees.path(index, leaves[:size]), trees.mth(leaves[:size])
            for other_size in range(1, 12):
                for other_index in range(other_size):
                    calls.append((leaves[index], other_index, other_size, proof, whole))
                    expected.append(trees.root_of_path(other_index, other_size, leaves[index], proof) == whole)
    found = call(page, "merkle", "verifyInclusion", calls)
    assert [one == "holds" for one in found] == expected


def test_malformed_arguments_are_proof_errors(page: Any) -> None:
    def of_javascript(calls: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        # A whole number is one number there, whether it was written 1 or 1.0.
        return [arguments for arguments in calls if not any(isinstance(one, float | set) for one in arguments)]

    for name, calls in (("verifyInclusion", trees.MALFORMED_INCLUSION), ("verifyConsistency", trees.MALFORMED_CONSISTENCY)):
        assert set(call(page, "merkle", name, of_javascript(calls))) == {"ProofError"}


def test_tree_heads_open_as_they_do_in_python(page: Any) -> None:
    own, operator = notes.NAME, notes.OPERATOR.public_key
    (found,) = call(page, "notes", "openTreeHead", [(notes.GO_NOTE, notes.GO_NAME, [notes.GO_PUBLIC], 1)])
    root_hex = base64.b64decode("CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=").hex()
    assert found == {"origin": "go.sum database tree", "size": 20852163, "root": root_hex, "others": []}
    witness = sign_tree_head(notes.HEAD, "witness.example", notes.OTHER).rpartition("\n\n")[2]
    (found,) = call(page, "notes", "openTreeHead", [(notes.NOTE + witness, own, [operator], 1)])
    assert found == {"origin": own, "size": 3, "root": notes.HEAD.root.hex(), "others": ["witness.example"]}
    false = [
        (notes.GO_NOTE.replace("20852163", "20852164"), notes.GO_NAME, [notes.GO_PUBLIC], 1),
        (notes.NOTE, own, [notes.OTHER.public_key], 1),
        (notes.NOTE, own + "x", [operator], 1),
        (sign_tree_head(notes.HEAD, own, notes.OTHER), own, [operator], 1),
    ]
    assert set(call(page, "notes", "openTreeHead", false)) == {"SignatureError"}
    malformed = [(note, own, [operator], 1) for note in (*map(notes.signed, notes.NO_TREE_HEADS), *notes.NO_NOTES)]
    assert set(call(page, "notes", "openTreeHead", malformed)) == {"EncodingError"}


def test_tree_heads_of_several_operators_count_as_they_do_in_python(page: Any) -> None:
    keys = [each.public_key for each in operators.FOUR]
    first, *others = operators.FOUR
    good = [operators.note_of(operators.HEAD, [first], others[:2]), operators.note_of(operators.HEAD, operators.FOUR[:3], [])]
    few = [operators.note_of(operators.HEAD, signers, cosigners) for signers, cosigners in (([first], [first, others[0]]), ([], others))]
    spoilt = good[0] + operators.note_of(operators.OTHER, [], [others[2]]).partition("\n\n")[2]
    found = call(page, "notes", "openTreeHead", [(note, operators.OPERATORS.name, keys, 3) for note in (*good, *few, spoilt)])
    assert [one["root"] for one in found[:2]] == [operators.HEAD.root.hex()] * 2
    assert found[2:] == ["SignatureError"] * 3


@pytest.mark.parametrize("y", [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 1])
def test_a_key_of_low_order_or_not_canonical_signs_nothing(page: Any, y: int) -> None:
    assert call(page, "notes", "verifySignature", [(y.to_bytes(32, "little"), b"message", bytes(64))]) == ["SignatureError"]


def test_entries_are_read_from_their_own_bytes_and_their_signatures_checked(page: Any) -> None:
    verdict = Signed.sign(samples.VERDICT, samples.ALICE)
    records: list[Logged] = [samples.HEADER, samples.ROUND, samples.LARGEST_ROUND, samples.LARGEST_HEADER, verdict, samples.SETTLEMENT]
    opened = call(page, "entries", "openEntry", [(entry_of(record),) for record in records])
    assert [one["kind"] for one in opened] == ["contribution", "round", "round", "contribution", "verdict", "settlement"]
    assert opened[0]["fields"]["claims"] == [samples.SIGNED_CLAIM.digest.hex()]
    (claim,) = opened[0]["claims"]
    assert (claim["cohort"], claim["work"]) == (samples.CLAIM.cohort, list(samples.CLAIM.work))
    assert (opened[1]["fields"]["contributions"], opened[1]["fields"]["min_exponent"]) == (2, -31)
    assert opened[2]["fields"]["first"] == str(2**62 - 1)
    assert (opened[1]["signed"], len(opened[3]["claims"]), opened[5]["signed"]) == ([], 32, [])
    assert (opened[4]["fields"]["by"], opened[4]["fields"]["outcomes"]) == (samples.VERDICT.by.hex(), [0])
    assert opened[5]["fields"] == {"run": samples.SETTLEMENT.run.hex(), "commit": samples.SETTLEMENT.commit.hex()}
    signed = [
        (bytes.fromhex(one["key"]), bytes.fromhex(one["message"]), bytes.fromhex(one["signature"])) for o in opened for one in o["signed"]
    ]
    assert call(page, "notes", "verifySignature", signed) == ["holds"] * (2 + 33 + 1)
    forged = [(key, spoil(message), signature) for key, message, signature in signed]
    assert call(page, "notes", "verifySignature", forged) == ["SignatureError"] * (2 + 33 + 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x18\x17",  # 23 in two bytes
        b"\x82\x01",
        b"\x01\x01",
        b"\x9f\x01\xff",  # an array of a length that is not stated
        b"\xa0",
        b"\xf5",
        b"\x61\xff",
        b"\x5a\xff\xff\xff\xff",
        b"\x9b" + b"\xff" * 8,
        b"\x81" * 10 + b"\x01",
    ],
)
def test_what_is_not_canonical_is_no_entry(page: Any, data: bytes) -> None:
    assert call(page, "cbor", "decode", [(data,)]) == ["EncodingError"]
    assert call(page, "entries", "openEntry", [(data,)]) == ["EncodingError"]


def test_values_come_back_as_they_went(page: Any) -> None:
    value = (0, 23, 24, 255, 256, 65_536, 2**32, -1, -25, "ü", "", b"", b"\x00\xff", ((), (1, (2,))))
    (found,) = call(page, "cbor", "decode", [(encode(value),)])
    assert found == [0, 23, 24, 255, 256, 65_536, 2**32, -1, -25, "ü", "", "", "00ff", [[], [1, [2]]]]


def test_a_peer_has_the_name_that_people_know_it_by(page: Any) -> None:
    keys = [samples.ALICE.public_key, samples.BOB.public_key, notes.OPERATOR.public_key]
    assert call(page, "bytes", "peerName", [(key,) for key in keys]) == [peer_name(key) for key in keys]


def spoil(data: bytes) -> bytes:
    """Return the bytes with one bit changed."""
    return bytes([data[0] ^ 1]) + data[1:]
