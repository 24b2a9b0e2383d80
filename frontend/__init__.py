"""The language: programs that call a model many times, written as plain Python functions over a state.

Standard library only. A program reaches a model through the Backend protocol (backend.py); backends/local.py is the
one module that knows the engine of this package. Start reading at state.py.
"""
