"""The content types: one a file, found by itself."""
