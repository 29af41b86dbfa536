"""The desk: `VLM` and `AsyncVLM`, streams and cancellation. Knows skills and the loop, not the device's insides."""
