"""One module an engine. Each has `open_session(options)`, which loads the model and returns a Session."""
