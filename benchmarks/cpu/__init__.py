"""The CPU path measured against its peers, its machine and itself: `python -m benchmarks.cpu`.

The process that draws the table imports nothing heavy. Everything measured runs in a process of its own
(`process.py`, `worker.py`), so that no engine sees another's threads or memory and each may have another Python.
"""
