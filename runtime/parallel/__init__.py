"""Tensor parallelism: one model over several processes, each with a shard of the weights and of the KV cache."""
