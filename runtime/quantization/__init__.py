"""Weights of few bits: `registry.py` names the ways to round them while a model is loaded, and the formats of
checkpoints that hold them rounded already; `linear_reader.py` brings either into a model."""
