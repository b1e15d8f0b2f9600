"""Runs whose data are private: what their manifest may say, and what their log pays."""

from dataclasses import replace
from typing import Any

import pytest

from manta_swarm.protocol.encoding import pack, unpack
from manta_swarm.protocol.manifest import MAX_MANIFEST_BYTES, Manifest
from manta_swarm.protocol.private import MAX_CLASSES, PrivateData, check_class_name
from manta_swarm.protocol.signing import Identity
from tests.contributions import PEERS, commit, header_of
from tests.protocol.ledgers import ledger_of
from tests.runs import manifest_of

ASKED = PrivateData(("cat", "dog", "Hund"), 1, 25)


@pytest.fixture
def private(operator: Identity) -> Manifest:
    return manifest_of(operator, data="private", private=(ASKED,))


def test_a_manifest_with_private_data_comes_back_and_says_so(private: Manifest, manifest: Manifest) -> None:
    assert unpack(Manifest, pack(private), max_bytes=MAX_MANIFEST_BYTES) == private
    assert (private.is_private, manifest.is_private) == (True, False)
    many = replace(private, private=(replace(ASKED, classes=tuple(f"{number:064}" for number in range(MAX_CLASSES))),))
    assert unpack(Manifest, pack(many), max_bytes=MAX_MANIFEST_BYTES) == many


@pytest.mark.parametrize(
    "change",
    [
        {"data": "secret"},
        {"data": "shared"},  # and yet it says what private images have to be
        {"cohorts": "affinity"},  # in a cohort the others see what one's own images taught it
        {"private": ()},
        {"private": (ASKED, ASKED)},
        {"task": "stereo"},
    ],
    ids=repr,
)
def test_a_manifest_that_contradicts_itself_is_refused(private: Manifest, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"private|data"):
        replace(private, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ("cat",)},
        {"classes": tuple(str(number) for number in range(MAX_CLASSES + 1))},
        {"classes": ("cat", "cat")},
        {"classes": ("cat", "Cat")},
        {"mirrored": 2},
        {"credit_percent": 0},
        {"credit_percent": 101},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_private_images_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"class|mirrored|percent"):
        replace(ASKED, **change)


@pytest.mark.parametrize("name", ["", ".", "..", ".cat", "a/b", "a\\b", "a\nb", "cat ", "c" * 65, "a\0", "u\u0308ber", "con:"])
def test_what_is_no_name_of_a_folder_is_no_class(name: str) -> None:
    with pytest.raises(ValueError, match="a folder can have"):
        check_class_name(name)


@pytest.mark.parametrize("name", ["0", "cat", "Ankle boot", "T-shirt", "\u00fcber", "\u732b", "c" * 64])
def test_names_of_folders_are_classes(name: str) -> None:
    check_class_name(name)


def test_a_key_earns_its_cap_at_most_and_the_rest_of_the_pool_is_paid_to_nobody(private: Manifest) -> None:
    assert private.credit_cap == 250
    assert replace(private, reward_pool=1).credit_cap == 1
    for peers in (PEERS[:1], PEERS[:2]):
        ledger = ledger_of(data="private", private=(ASKED,))
        commit(ledger, [header_of(ledger, peer) for peer in peers])
        assert ledger.credits() == {peer.public_key: 250 for peer in peers}
    many = ledger_of(data="private", private=(ASKED,))
    commit(many, [header_of(many, peer) for peer in PEERS[:8]])
    assert set(many.credits().values()) == {125}
