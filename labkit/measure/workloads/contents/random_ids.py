"""Random: token ids drawn evenly from the vocabulary, which no draft foresees and no expert is trained for."""

import random

from labkit.measure.workloads.content import Draft, content


@content("random")
def random_ids(chance: random.Random) -> Draft:
    """Token ids drawn evenly from the vocabulary: no language, the least that can be drafted or cached."""
    return Draft("", None)
