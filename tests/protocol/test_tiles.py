"""Tiles have the names, the widths and the bytes that C2SP's tlog-tiles gives them; what has others is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.protocol.errors import EncodingError
from manta_swarm.protocol.merkle import Tree, leaf_hash, node_hash
from manta_swarm.protocol.tiles import WIDTH, Tile, open_bundle, pack_bundle, tile_hashes, tiles_of

SIZES = st.integers(0, 70_000)


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 1_234_067), "tile/0/x001/x234/067"),  # the document's example
        (Tile(0, 0), "tile/0/000"),
        (Tile(1, 999), "tile/1/999"),
        (Tile(1, 1000), "tile/1/x001/000"),
        (Tile(2, 5, 255), "tile/2/005.p/255"),
        (Tile(None, 273, 112), "tile/entries/273.p/112"),  # the document's, of a tree of 70,000
        (Tile(0, 273, 112), "tile/0/273.p/112"),
        (Tile(1, 1, 17), "tile/1/001.p/17"),
        (Tile(2, 0, 1), "tile/2/000.p/1"),
    ],
)
def test_a_tile_has_the_name_of_the_document(tile: Tile, path: str) -> None:
    assert tile.path == path
    assert Tile.named(path) == tile


def test_a_tree_of_70000_has_the_tiles_that_the_document_counts() -> None:
    tiles = list(tiles_of(70_000))
    assert [sum(tile.level == level and tile.is_full for tile in tiles) for level in (None, 0, 1, 2)] == [273, 273, 1, 0]
    assert [tile.path for tile in tiles if not tile.is_full and tile.level is not None] == [
        "tile/0/273.p/112",
        "tile/1/001.p/17",
        "tile/2/000.p/1",
    ]


@pytest.mark.parametrize(
    "path",
    [
        *("", "tile/0/0", "tile/0/0000", "tile/00/000", "tile/8/000", "tile/64/000", "tile/-1/000", "tile/0/x000/005", "tile/0/001/234"),
        *("tile/0/x1/234", "tile/0/005.p/0", "tile/0/005.p/256", "tile/0/005.p/01", "tile/0/005.p/", "tile/0/005/", "/tile/0/005"),
        *("tile/0/../005", "tile/entry/005", "tile/0/\u0660\u0660\u0665", "tile/0/005\n"),
        *(f"tile/0/{'x999/' * 12}999", f"tile/0/{'x999/' * 6}999"),
    ],
)
def test_another_name_is_refused(path: str) -> None:
    with pytest.raises(EncodingError, match="no tile is called"):
        Tile.named(path)


@given(SIZES, SIZES)
def test_what_is_new_is_what_the_larger_log_has_and_the_smaller_has_not(one: int, other: int) -> None:
    old, new = sorted((one, other))
    before, after = set(tiles_of(old)), set(tiles_of(new))
    assert set(tiles_of(new, old)) == after - before
    assert {tile for tile in before if tile.is_full} <= after
    for level in (None, 0, 1, 2):
        width = sum(tile.width for tile in after if tile.level == level)
        assert width == new >> 8 * (level or 0)


@given(st.integers(1, 700))
def test_the_hashes_of_a_row_are_those_under_the_row_above(size: int) -> None:
    tree = Tree()
    for index in range(size):
        tree.append(leaf_hash(index.to_bytes(2, "big")))
    rows = {tile: tile_hashes(tree, tile) for tile in tiles_of(size) if tile.level is not None}
    for tile, data in rows.items():
        for place in range(tile.width):
            below = Tile(tile.level - 1, tile.first + place) if tile.level else None
            expected = leaf_hash((tile.first + place).to_bytes(2, "big")) if below is None else _root(rows[below])
            assert data[32 * place : 32 * place + 32] == expected


def _root(data: bytes) -> bytes:
    if len(data) == 32:
        return data
    half = len(data) // 2
    return node_hash(_root(data[:half]), _root(data[half:]))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=WIDTH))
def test_a_bundle_gives_its_entries_back(entries: list[bytes]) -> None:
    assert open_bundle(pack_bundle(entries), len(entries)) == entries


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5), st.data())
def test_a_bundle_that_is_cut_longer_or_of_other_entries_is_refused(entries: list[bytes], data: st.DataObject) -> None:
    packed = pack_bundle(entries)
    with pytest.raises(EncodingError, match="bundle"):
        open_bundle(packed[: data.draw(st.integers(0, len(packed) - 1))], len(entries))
    with pytest.raises(EncodingError, match="bundle"):
        open_bundle(packed + data.draw(st.binary(min_size=1, max_size=3)), len(entries))
    with pytest.raises(EncodingError, match="bundle"):
        open_bundle(packed, len(entries) + 1)
    with pytest.raises(ValueError, match="65535"):
        pack_bundle([bytes(65_536)])
