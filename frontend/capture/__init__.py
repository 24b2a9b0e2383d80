"""Capture: the graph of a program ahead of a run, with placeholders for what only a run can know (Program.trace)."""
