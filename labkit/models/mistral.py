"""Mistral: Llama whose layers see a sliding window of positions, where the file declares one (arXiv:2310.06825)."""

from labkit.models import dense
from labkit.models.operations import forward_of

forward = forward_of("mistral")(dense.forward)
