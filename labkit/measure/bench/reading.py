"""Reading one prompt and telling the steps it took: what the experiments on the micro-batch share."""

import time
from collections.abc import Sequence

from labkit.engine.engine import Engine, StepRecord
from labkit.engine.request import Completion

RECORD_S = 1.0  # how long the last step's record may be behind its token


def read_prompt(engine: Engine, ids: Sequence[int]) -> tuple[Completion, list[StepRecord]]:
    """The completion of one token behind the prompt `ids`, and the records of the steps that read it."""
    before = len(engine.steps)
    out: Completion = engine.generate([list(ids)], max_tokens=1, ignore_eos=True)[0]
    patience = time.perf_counter() + RECORD_S
    while sum(step.rows for step in engine.steps[before:]) < len(ids) and time.perf_counter() < patience:
        time.sleep(1e-4)
    return out, engine.steps[before:]
