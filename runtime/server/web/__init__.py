"""The page at `/`: a playground and a live view of the engine."""
