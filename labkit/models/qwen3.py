"""Qwen3, dense: the heads of q and k are normed before they turn, and no projection has a bias (arXiv:2505.09388)."""

from functools import partial

from labkit.models import dense
from labkit.models.operations import forward_of

forward = forward_of("qwen3")(partial(dense.forward, head_norms=True))
