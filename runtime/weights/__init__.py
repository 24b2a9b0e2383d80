"""Models on disk: `resolve.py` finds one by name, `load.py` builds it, the rest reads GGUF and safetensors."""
