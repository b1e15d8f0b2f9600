"""A run of another version of the protocol is refused with what to install; what nobody signed is of no version."""

from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.protocol import signing, versions
from manta_swarm.protocol.encoding import encode, pack
from manta_swarm.protocol.errors import EncodingError, OtherVersion, SignatureError
from manta_swarm.protocol.manifest import MAX_SIGNED_MANIFEST_BYTES, SignedManifest
from manta_swarm.protocol.signing import Identity
from manta_swarm.protocol.versions import MAX_PROTOCOL, PROGRAM, PROTOCOL
from tests.runs import manifest_of

OPERATOR = Identity(b"\x01" * 32)
SIGNED = SignedManifest.sign(manifest_of(OPERATOR), OPERATOR)


def test_a_manifest_names_its_version_and_what_takes_part_in_it() -> None:
    assert (SIGNED.protocol, SIGNED.program) == (PROTOCOL, PROGRAM)
    assert SignedManifest.read(pack(SIGNED)) == SIGNED
    assert pack(SIGNED) == encode((SIGNED.payload, SIGNED.signature, PROTOCOL, PROGRAM))  # so every version can be told


def test_a_program_that_is_too_old_says_what_to_install() -> None:
    later = SignedManifest(encode(("whatever", "a later manifest", 1)), bytes(64), PROTOCOL + 2, "0.7.1")
    read = SignedManifest.read(pack(later))
    with pytest.raises(
        OtherVersion, match=rf"of version {PROTOCOL + 2} of the protocol, .* too old .*: install manta-swarm 0\.7\.1 or a later"
    ):
        read.open()


def test_a_program_that_is_too_new_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PROTOCOL", PROTOCOL + 1)
    monkeypatch.setattr(signing, "PROTOCOL", PROTOCOL + 1)
    with pytest.raises(OtherVersion, match=rf"of version {PROTOCOL} of the protocol, .* too new .*: install manta-swarm {PROGRAM}$"):
        SIGNED.open()


def test_what_was_made_before_all_releases_is_said_to_be_that() -> None:
    with pytest.raises(OtherVersion, match=r"before the first release, .*: start a new run"):
        SignedManifest.read(encode((SIGNED.payload, SIGNED.signature)))


@pytest.mark.parametrize("changes", [{"protocol": PROTOCOL + 1}, {"protocol": PROTOCOL - 1}, {"program": "9.9.9"}])
def test_what_names_another_version_than_its_signature_is_damaged(changes: dict[str, Any]) -> None:
    with pytest.raises(EncodingError, match="another version than it is signed as"):
        replace(SIGNED, **changes).open()


@pytest.mark.parametrize("program", ["", "1", "0.1.0-dev", "0.1 ; rm", "1.2.3.4.5", "12345.1", "0.1.0\n", "\u0661.1"])
def test_what_is_to_be_installed_is_the_number_of_a_release_and_nothing_else(program: str) -> None:
    with pytest.raises(EncodingError, match="numbers with dots"):
        SignedManifest.read(encode((SIGNED.payload, SIGNED.signature, PROTOCOL, program)))


@pytest.mark.parametrize("protocol", [-1, 0, MAX_PROTOCOL + 1])
def test_a_version_is_in_its_range(protocol: int) -> None:
    with pytest.raises(EncodingError, match="version is above zero"):
        SignedManifest.read(encode((SIGNED.payload, SIGNED.signature, protocol, PROGRAM)))


def test_a_signature_is_one_of_its_version_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "PROTOCOL", PROTOCOL - 1)
    earlier = replace(SignedManifest.sign(manifest_of(OPERATOR), OPERATOR), protocol=PROTOCOL)
    monkeypatch.undo()
    for forged in (earlier, replace(SIGNED, signature=bytes(64)), SignedManifest.sign(manifest_of(OPERATOR), Identity(b"\x02" * 32))):
        with pytest.raises(SignatureError, match="does not verify"):
            forged.open()


def test_the_longest_manifest_can_be_read() -> None:
    longest = SignedManifest(bytes(262_144), bytes(64), MAX_PROTOCOL, "1234.1234.1234.1234")
    assert len(pack(longest)) <= MAX_SIGNED_MANIFEST_BYTES
    assert SignedManifest.read(pack(longest)) == longest
