"""One module an engine.

Each has `open_session(options)`, which loads the model and returns a Session; `details(session)`, a few words on how it
runs, for the table; and, where the engine reads files made for it, `prepare(options)`, which makes them.
"""
