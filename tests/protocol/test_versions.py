"""A manifest of another version of Manta is refused, and said to be that; one that nobody signed is not."""

from dataclasses import replace

import pytest

from protocol import signing
from protocol.errors import OtherVersion, SignatureError
from protocol.records import SignedManifest
from protocol.signing import Identity
from tests.runs import manifest_of

OPERATOR = Identity(b"\x01" * 32)
MANIFEST = manifest_of(OPERATOR)
OWN = signing._VERSIONS["manifest"]


@pytest.mark.parametrize("version", [1, OWN - 1, OWN + 1])
def test_a_manifest_of_another_version_is_said_to_be_that(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(signing._VERSIONS, "manifest", version)
    signed = SignedManifest.sign(MANIFEST, OPERATOR)
    assert signed.open() == MANIFEST
    monkeypatch.undo()
    with pytest.raises(OtherVersion, match=f"of version {version}, this program's are of version {OWN}: use the version of Manta"):
        signed.open()


def test_one_that_its_operator_did_not_sign_is_of_no_version() -> None:
    signed = SignedManifest.sign(MANIFEST, OPERATOR)
    for forged in (replace(signed, signature=bytes(64)), SignedManifest.sign(MANIFEST, Identity(b"\x02" * 32))):
        with pytest.raises(SignatureError, match="does not verify") as raised:
            forged.open()
        assert not isinstance(raised.value, OtherVersion)
