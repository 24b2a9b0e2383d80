"""The command line: one file per command, all registered in main.py. Heavy imports wait until a command needs them."""
