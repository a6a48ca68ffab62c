"""Sequence data sets: read from files, or made."""
