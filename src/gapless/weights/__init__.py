"""Checkpoints on disk: find, check, read."""
