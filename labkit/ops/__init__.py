"""One file an operation: the wrapper that records its kernel and, beside it, its NumPy reference."""
