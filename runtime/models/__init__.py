"""The architectures: `registry.py` lists them, `base.py` says what a model is, each has its own file."""
