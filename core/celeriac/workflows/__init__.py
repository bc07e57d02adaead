"""Workflows: code that is run again from its start, and finds in its log what it did before."""
