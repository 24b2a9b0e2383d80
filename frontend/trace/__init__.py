"""What happened in a run: as data, as text, as lines of JSON and as a page.

`capture.py` reads a run's graph of calls; everything else works on the ProgramTrace that it makes of it, which holds
plain data only and needs no backend.
"""
