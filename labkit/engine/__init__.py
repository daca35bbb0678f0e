"""The inference engine: slots, KV cache, one program over rows, sampling and scheduling."""
