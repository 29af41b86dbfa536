"""Tensor kernels with one signature each; `reference.py` is plain torch and the truth for all others."""
