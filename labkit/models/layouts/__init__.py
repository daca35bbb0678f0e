"""How each architecture is written in a model file: one module an architecture, found by looking in this folder."""
