"""Tiers of the prefix cache: memory of the host, and a directory on disk, that keep what the pool of blocks cannot."""
