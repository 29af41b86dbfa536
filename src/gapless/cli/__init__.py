"""The other door: the command line."""
