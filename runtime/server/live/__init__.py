"""The live view of the engine: what admins see of it while it works."""
