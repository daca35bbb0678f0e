"""Whether this machine slept: the clock that counts sleep against the one that does not."""

import time

SLEPT_S = 1.0  # a smaller difference is how long reading both clocks may take on a busy machine


def asleep_s() -> float:
    """Seconds this machine has slept since it started; only differences mean something. 0 where no clock tells."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None:
        return 0.0
    return time.clock_gettime(boot) - time.clock_gettime(time.CLOCK_MONOTONIC)
