"""Live events of runs, and the text of models while it is written, as server-sent events."""
