"""Models: declarations plus small functions. Know tensors and configs; do not know rows, steps or requests."""
