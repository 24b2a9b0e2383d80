"""Backends of the language: local (the engine in this process) and mock (scripted, for tests and dry runs).

registry.py lists them.
"""
