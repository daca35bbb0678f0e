"""Qwen2: the dense decoder with biases on q, k and v (arXiv:2407.10671)."""

from functools import partial

from labkit.models import dense
from labkit.models.operations import forward_of

forward = forward_of("qwen2")(partial(dense.forward, biases=True))
