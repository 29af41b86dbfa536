"""The machine: slots, streams, sampler, copy-out. Knows models and kernels; does not know requests or skills."""
