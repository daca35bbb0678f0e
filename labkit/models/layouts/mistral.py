"""Mistral in a model file of its own name: Llama's tensors, with a sliding window where one is declared."""

from labkit.models.layouts.dense import register_dense

register_dense("mistral", "interleaved")
