"""The hub and its ledgers: pure state machines, no torch. Only `loop.py` knows the order of events."""
