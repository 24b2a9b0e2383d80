"""Sizes of attention tiles: how many lines and keys a program works on at a time, by head dimension and dtype.

An explicit table, because tuning at run time costs seconds a shape and makes results depend on who was faster. The
small tile serves decodes: one row's heads fill 16 lines, and memory is the limit. The large ones serve chunks of
prompts and shared prefixes, where a run of keys is read once for a whole tile: 64 lines is what a warp group of an H200
multiplies at once, 128 reads the keys half as often.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEAD_DIM = 256
"""Wider heads would spill registers with every tile here."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One size.

    Attributes:
        block_m: lines, that is query rows times the query heads of a key/value head; a power of 2.
        block_n: keys a pass; a power of 2.
        num_stages: passes whose keys are in shared memory or on their way there.
        is_split: whether keys that all lines see are walked without a mask; compiles two loops.
        num_resident: programs of it that a multiprocessor holds at least, by registers and shared memory (`aot.py`
            checks it). The planner makes as many decodes: two of 128 dimensions keep an H200's memory busy.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    is_split: bool
    num_resident: int = 1

    def num_rows(self, group_size: int) -> int:
        """Query rows a tile has room for."""
        return self.block_m // group_size


INTERPRETED_TILES = (Tile(16, 512, 4, 1, False), Tile(256, 1024, 4, 1, True))
"""Few and large: the interpreter's cost is the number of passes."""


def tiles_for(
    head_dim: int, dot_itemsize: int, group_size: int, *, is_quantised: bool = False, is_hip: bool = False
) -> tuple[Tile, ...]:
    """The tiles of a model on a GPU, ascending. `aot.py` checks that none of them spills registers.

    Args:
        dot_itemsize: bytes of an element of the products: 2, or 4 for fp32, which no matrix unit takes exactly.
        group_size: query heads of a key/value head; the largest tile holds at least one row of them.
        is_quantised: codes are converted in registers, so large tiles have more threads and small ones fewer keys.
        is_hip: an AMD card, which has 64 KiB of shared memory and keeps one stage of it.
    """
    is_wide = head_dim > 128
    if dot_itemsize > 2:
        # No matrix unit: every thread has whole rows of the factors in registers.
        if is_wide:
            tiles: tuple[Tile, ...] = (Tile(16, 32, 8, 1, False, 2), Tile(32, 16, 8, 1, False))
        elif head_dim > 64:
            tiles = (Tile(16, 32, 8, 1, False, 2), Tile(32, 16, 8, 1, False))
        else:
            tiles = (Tile(16, 32, 4, 1, False, 2), Tile(64, 32, 8, 1, False))
    elif is_hip and is_wide:
        tiles = (Tile(16, 32, 4, 1, False, 2), Tile(64, 16 if is_quantised else 32, 8, 1, True))
    elif is_hip:
        tiles = (Tile(16, 64, 4, 1, False, 3), Tile(64, 64, 4, 1, True), Tile(128, 32, 4, 1, True))
    elif is_wide:
        tiles = (Tile(16, 32, 4, 2, False, 2), Tile(64, 16 if is_quantised else 32, 8, 2, True))
    elif is_quantised:
        # Half the bytes a pass, so two passes are on their way: five stages, as block ids come ahead of their keys.
        tiles = (Tile(16, 32, 4, 5, False, 2), Tile(64, 64, 8, 3, True), Tile(128, 64, 8, 3, True))
    else:
        tiles = (Tile(16, 64, 4, 3, False, 3), Tile(64, 64, 4, 3, True), Tile(128, 64, 8, 3, True))
    return fitting(tiles, group_size)


def fitting(tiles: tuple[Tile, ...], group_size: int) -> tuple[Tile, ...]:
    """The tiles that hold a row of `group_size` heads; the largest, widened, where none does."""
    wide_enough = tuple(tile for tile in tiles if tile.block_m >= group_size)
    if wide_enough:
        return wide_enough
    last = tiles[-1]
    return (Tile(1 << (group_size - 1).bit_length(), last.block_n, 8, last.num_stages, last.is_split),)
