"""Measurements. Every run prints what it measured and on what."""
