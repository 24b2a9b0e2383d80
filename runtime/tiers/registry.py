"""The tiers by name: an explicit table. A tier is there if an option of the engine says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..config import EngineConfig
from ..errors import InvalidConfigError
from ..runner import BlockStorage
from ..runner_spec import LoadedRunner
from ..weights.base import Checkpoint
from . import disk_files
from .base import KVTier
from .disk_store import DiskStore
from .disk_tier import DiskTier
from .host_tier import HostTier
from .identity import store_identity
from .prefix_tiers import TieredStorage


@dataclass(frozen=True, slots=True)
class TierSpec:
    """What a tier is opened from.

    Attributes:
        identity: makes what the bits of blocks depend on; called where it is needed.
    """

    config: EngineConfig
    blocks: BlockStorage
    block_size: int
    identity: Callable[[], bytes]


def _open_host(spec: TierSpec) -> KVTier | None:
    num_bytes = spec.config.host_cache_memory
    if num_bytes is None:
        return None
    num_slots = num_bytes // spec.blocks.bytes_per_block
    _check_holds_a_block("host_cache_memory", num_bytes, spec.blocks.bytes_per_block)
    try:
        return HostTier(num_slots, spec.block_size, spec.blocks.bytes_per_block, spec.blocks.device)
    except (RuntimeError, MemoryError) as error:
        raise InvalidConfigError(
            f"host_cache_memory={num_bytes}: the system does not give that much memory, which must be pinned where "
            "there is a GPU: lower it"
        ) from error


def _open_disk(spec: TierSpec) -> KVTier | None:
    directory, num_bytes = spec.config.prefix_cache_dir, spec.config.prefix_cache_dir_size
    if directory is None:
        return None
    _check_holds_a_block("prefix_cache_dir_size", num_bytes, spec.blocks.bytes_per_block)
    with _directory_refused(directory):
        folder = disk_files.open_directory(Path(directory).expanduser())
        store = DiskStore(folder, spec.identity(), spec.block_size, spec.blocks.bytes_per_block, num_bytes)
        try:
            return DiskTier(store, spec.block_size)
        except BaseException:
            store.close()
            raise


@contextmanager
def _directory_refused(directory: str) -> Iterator[None]:
    """Raises InvalidConfigError where it cannot be used: who names a directory wants prefixes kept there. What fails
    later is a warning, for then others depend on the engine."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL in the path; RuntimeError: ~ is nowhere
        raise InvalidConfigError(
            f"prefix_cache_dir={directory!r} cannot be used: {error}; choose another directory"
        ) from error


def check_directory(config: EngineConfig) -> None:
    """Make the directory of prefixes, if there is to be one, before time is spent on a model.

    Raises:
        InvalidConfigError: it cannot be used.
    """
    if config.prefix_cache_dir is not None:
        with _directory_refused(config.prefix_cache_dir):
            disk_files.open_directory(Path(config.prefix_cache_dir).expanduser())


def _check_holds_a_block(option: str, num_bytes: int, bytes_per_block: int) -> None:
    if num_bytes < 2 * bytes_per_block:
        raise InvalidConfigError(
            f"{option}={num_bytes} is too small: a block of this model takes {bytes_per_block} bytes, and it should "
            "hold hundreds of them"
        )


TIERS: dict[str, Callable[[TierSpec], KVTier | None]] = {"host": _open_host, "disk": _open_disk}
"""The fastest first. Each opens its tier, or returns None where it is not asked for or cannot be had now."""


def open_tiers(config: EngineConfig, loaded: LoadedRunner, checkpoint: Checkpoint) -> TieredStorage | None:
    """The tiers that the options ask for; None if there are none.

    Raises:
        InvalidConfigError: an option does not go with the model, the runner or the machine.
    """
    if config.prefix_cache_dir is None and config.host_cache_memory is None:
        return None
    blocks = loaded.blocks
    if blocks is None:
        raise InvalidConfigError(
            "prefix_cache_dir and host_cache_memory need a model that one process computes: leave them out, or "
            "leave tensor_parallel_size at 1"
        )
    spec = TierSpec(
        config,
        blocks,
        loaded.runner.block_size,
        lambda: store_identity(config, loaded, checkpoint, blocks.bytes_per_block),
    )
    tiers: list[KVTier] = []
    try:
        for open_tier in TIERS.values():
            tier = open_tier(spec)
            if tier is not None:
                tiers.append(tier)
    except BaseException:
        TieredStorage(blocks, tuple(tiers)).close()
        raise
    return TieredStorage(blocks, tuple(tiers)) if tiers else None
