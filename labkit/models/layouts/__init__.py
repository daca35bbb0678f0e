"""How each architecture is written in a GGUF file: one module an architecture, found by looking in this folder."""
