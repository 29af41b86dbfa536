"""Kernels in Triton, for NVIDIA GPUs. Imported only where one is chosen (`kernels.choose`)."""
