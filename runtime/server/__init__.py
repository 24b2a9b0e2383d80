"""The server: the engine behind HTTP, for the clients that people already use. Web libraries are known here only."""
