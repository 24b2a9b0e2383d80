"""The journal of a batch: a file that keeps every finished item, so that a batch that was killed goes on where it was.

A line of JSON says which program, sampling defaults and model it is of (`identity.py`); after it comes one line per
finished item, whole, with its trace (`record.py`). `file.py` appends the lines and knows when they are on the disk.
"""
