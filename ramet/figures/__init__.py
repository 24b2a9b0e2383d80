"""Figures: each claim of the systems that ramet stands on, computed anew by ramet's own engine, scheduler and cache.

`figure.py` says what a figure is, `registry.py` lists them, `simulation.py` runs the engine in virtual time. The rest
is one figure a file.
"""
