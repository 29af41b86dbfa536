"""Counters, times, bubble accounting. Is called, never calls."""
