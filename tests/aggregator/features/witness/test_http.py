"""C2SP's add-checkpoint over HTTP: a real server, asked by Python's own client."""

import asyncio
import base64
import http.client
from collections.abc import Callable
from pathlib import Path

import pytest

from manta_swarm.aggregator.features.witness.http import MAX_PROOF, PATH, parse, serving
from manta_swarm.aggregator.features.witness.rule import WitnessMemory
from manta_swarm.protocol.cosignatures import cosignatures_of
from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.notes import TreeHead, sign_tree_head
from manta_swarm.runtime.listen_address import ListenAddress
from tests.aggregator.features.witness.histories import SIGNED, WITNESS, History
from tests.aggregator.small_run import OTHER_OPERATOR

Ask = Callable[[bytes], tuple[int, str, str]]


def body(note: str, old: int, proof: list[bytes]) -> bytes:
    lines = "".join(f"{base64.b64encode(hash_).decode()}\n" for hash_ in proof)
    return f"old {old}\n{lines}\n{note}".encode()


def asking(tmp_path: Path, story: Callable[[Ask, WitnessMemory], None]) -> None:
    """Tell a story of a witness that answers."""

    async def whole() -> None:
        memory = WitnessMemory(tmp_path, WITNESS, SIGNED)
        async with serving(memory, ListenAddress.at("127.0.0.1:0")) as url:
            host = url.removeprefix("http://").rstrip("/")

            def ask(data: bytes) -> tuple[int, str, str]:
                connection = http.client.HTTPConnection(host, timeout=60)
                try:
                    connection.request("POST", PATH, data)
                    answer = connection.getresponse()
                    return answer.status, answer.getheader("content-type", ""), answer.read().decode()
                finally:
                    connection.close()

            await asyncio.to_thread(story, ask, memory)

    asyncio.run(whole())


def test_each_answer_is_the_one_that_c2sp_wants(tmp_path: Path) -> None:
    def story(ask: Ask, memory: WitnessMemory) -> None:
        log, other = History(memory, 9), History(memory, 9, fork=3, branch=b"x")
        status, _, text = ask(body(log.note(4), 0, []))
        assert status == 200
        (cosignature,) = cosignatures_of(log.note(4) + text)
        assert cosignature.key == WITNESS.public_key
        status, kind, text = ask(body(log.note(9), 0, []))
        assert (status, kind, text) == (409, "text/x.tlog.size", "4\n")
        assert ask(body(other.note(4), 4, []))[0] == 409
        assert ask(body(other.note(9), 4, other.proof(4, 9)))[0] == 422
        assert ask(body(log.note(4), 9, []))[0] == 400
        head = TreeHead(memory.origin, 9, log.tree.root())
        assert ask(body(sign_tree_head(head, memory.origin, OTHER_OPERATOR), 4, log.proof(4, 9)))[0] == 403
        assert ask(body(log.note(9).replace("manta/", "other/", 1), 4, log.proof(4, 9)))[0] == 404
        for bad in (b"", b"old 4", b"\xff" * 100, b"old 04\n\n" + log.note(9).encode(), b"x" * 300_000):
            assert ask(bad)[0] in (400, 413)
        assert memory.head.size == 4
        assert ask(body(log.note(9), 4, log.proof(4, 9)))[0] == 200
        assert memory.head.size == 9

    asking(tmp_path, story)


@pytest.mark.parametrize(
    "data",
    [
        b"old -1\n\nnote",
        b"old +1\n\nnote",
        b"old  1\n\nnote",
        b"new 1\n\nnote",
        b"old 1\nAAAA\n\nnote",
        b"old 1\n" + base64.b64encode(bytes(32)).rstrip(b"=") + b"\n\nnote",
        b"old 1\n" + (base64.b64encode(bytes(32)) + b"\n") * (MAX_PROOF + 1) + b"\nnote",
        b"old 1\r\n\r\nnote",
        b"old " + b"9" * 4000 + b"\n\nnote",
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(EncodingError):
        parse(data)
    assert parse(b"old 1\n" + base64.b64encode(bytes(32)) + b"\n\nnote\n\nmore") == (1, (bytes(32),), "note\n\nmore")
