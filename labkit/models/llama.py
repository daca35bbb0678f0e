"""Llama: the plain dense decoder (arXiv:2302.13971, 2307.09288)."""

from labkit.models import dense
from labkit.models.operations import forward_of

forward = forward_of("llama")(dense.forward)
