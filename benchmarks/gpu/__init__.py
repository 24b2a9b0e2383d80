"""The GPU path measured against its device and its peers: `python benchmarks/gpu.py --out DIR`.

One process runs the parts (`parts.py`) one after the other. Each has its share of the time; a part that fails is
written down, and the next one runs. `--tiny` runs the same code at sizes for Triton's interpreter, without a GPU.
"""
