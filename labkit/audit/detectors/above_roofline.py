"""Above the roofline: what a rate implies, at the least, beyond what the device can do at the most."""

from collections.abc import Iterator

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.marginal import further_reads, further_tokens
from labkit.audit.notice import Notice
from labkit.audit.physics import (
    CACHE_FACTOR,
    PREFILL_RATES,
    Implied,
    implied_bandwidth,
    implied_rate,
    number,
    pass_bytes,
    share_left,
)
from labkit.audit.registry import detector

OVER = 1.02  # beyond the limit by more than limits are rounded
OVER_MEASURED = 1.05
CACHE_UNKNOWN = (
    64 << 20
)  # bytes a cache may have where nobody declared it: nothing is said of less than four times that
KEEPS_RATE = ("decode", "mixed")
NO_LIMIT = "a rate that the device's memory or arithmetic bounds"


@detector(
    "above-roofline",
    1,
    version=3,
    title="Above the roofline",
    explains=("littles-law", "faster-than-solo", "client-faster-than-server", "power-against-bandwidth"),
    essential=True,
)
def above_roofline(evidence: Evidence) -> Iterator[Notice]:
    """The least bytes a decode rate reads (active weights once a pass) against the memory's theoretical rate, the least
    operations a rate of tokens takes against the fastest unit its operands fit, and the marginal rates between prompts, and
    between depths, at least 1.5× apart. Beyond the theoretical rate by 2 % fails; beyond the device's own measured rate
    only warns, and so do active weights that are more than its memory holds."""
    for one in evidence.observations:
        yield judge(one)
    for ladder in evidence.ladders("prompt_tokens", "depth"):
        yield from further_tokens(ladder)
    for ladder in evidence.ladders("depth", "prompt_tokens"):
        yield from further_reads(ladder)


def judge(one: Observation) -> Notice:
    """The notice on one cell or row: its gravest bound, or what is missing for any."""
    if one.device is None:
        name = f"the limits of {one.device_name}" if one.device_name else "the device"
        if not one.measured_gb_s and not one.measured_tflop_s:
            text = f"{one.subject} cannot be held against a device without {name}"
            return unjudged(one, text, (f"{name} (data/devices.toml)" if one.device_name else name,))
    bounds = (judge_memory(one), judge_arithmetic(one), judge_stated(one), judge_room(one))
    found = [notice for notice in bounds if notice is not None]
    judged = [notice for notice in found if notice.outcome != "not assessable"]
    if judged:
        return max(judged, key=lambda notice: notice.gravity)
    missing = tuple(dict.fromkeys(part for notice in found for part in notice.missing)) or (NO_LIMIT,)
    return unjudged(one, f"{one.subject} cannot be held against the roofline without {', '.join(missing)}", missing)


def unjudged(one: Observation, text: str, missing: tuple[str, ...]) -> Notice:
    """That a row cannot be judged, and why."""
    return Notice(outcome="not assessable", text=text, subject=one.subject, about=(one.subject,), missing=missing)


def judge_memory(one: Observation) -> Notice | None:
    """A decode rate against the memory; None for a rate that memory does not bound."""
    if one.phase not in KEEPS_RATE:
        return None
    implied = implied_bandwidth(one)
    if not implied:
        return unjudged(one, f"{one.subject} implies no bandwidth", implied.missing)
    return hold(one, implied, pass_bytes(one).value, "memory")


def judge_room(one: Observation) -> Notice | None:
    """The active weights against the room in the device's memory; None where they fit, or it is not known."""
    room = one.device.memory_bytes if one.device is not None else None
    if room is None or one.active_params is None or one.bytes_per_weight is None:
        return None
    size = one.active_params * one.bytes_per_weight
    if size <= room:
        return None
    lines = (
        f"{number(one.active_params / 1e9)} × 10⁹ active weights × {one.bytes_per_weight:.6g} bytes = {number(size / 1e9)} GB",
        f"memory: {number(room / 2**30)} GiB = {number(room / 1e9)} GB; the weights are {size / room:.0%} of it",
    )
    text = (
        f"{one.subject} does not fit: its active weights alone are {number(size / 1e9)} GB, on a device of "
        f"{number(room / 1e9)} GB: some lay elsewhere, or fewer are read a token"
    )
    return Notice(outcome="warn", text=text, subject=one.subject, about=(one.subject,), arithmetic=lines)


def judge_stated(one: Observation) -> Notice | None:
    """A bandwidth or a rate of operations that is stated itself."""
    if (rate := one.value("achieved_gb_s")) is not None:
        step = one.value("step_ms") or (one.value("kernel_us") or 0) / 1e3
        size = one.pass_bytes or (one.metrics["achieved_gb_s"] * 1e9 * step / 1e3 if step else None)
        if size is None and one.active_params and one.bytes_per_weight:
            size = one.active_params * one.bytes_per_weight
        stated = Implied(rate, (f"{number(rate)} GB/s, as stated",), sure=share_left(one, "achieved_gb_s"))
        return hold(one, stated, size, "memory")
    if (rate := one.value("achieved_gflop_s")) is not None:
        sure = share_left(one, "achieved_gflop_s")
        return hold(
            one, Implied(rate / 1e3, (f"{number(rate / 1e3)} TFLOP/s, as stated",), sure=sure), None, "arithmetic"
        )
    return None


def judge_arithmetic(one: Observation) -> Notice | None:
    """A rate of tokens against the device's units; a prompt declared warm was not computed."""
    prefill = any(name in one.metrics for name in (*PREFILL_RATES, "ttft_s"))
    if prefill and one.cache == "warm":
        text = f"{one.subject} is declared warm: its rate counts tokens that were not computed"
        return Notice(outcome="ok", text=text, subject=one.subject, about=(one.subject,))
    implied = implied_rate(one)
    if not implied:
        return (
            unjudged(one, f"{one.subject} implies no arithmetic", implied.missing) if one.phase == "prefill" else None
        )
    if one.phase in KEEPS_RATE and not prefill:  # far below the units' rate, so it says nothing where memory is unknown
        over = hold(one, implied, None, "arithmetic")
        return over if over.trouble else None
    return hold(one, implied, None, "arithmetic")


def hold(one: Observation, implied: Implied, size: float | None, what: str) -> Notice:
    """Holds what is implied against the device's theoretical rate, then against its measured one."""
    assert implied.value is not None
    memory, about = what == "memory", (one.subject,)
    unit = "GB/s" if memory else "TFLOP/s"
    limit, words = (None, "")
    if one.device is not None:
        limit, words = one.device.memory_limit(one.memory_mhz) if memory else one.device.rate_limit(one.operand_bits)
    measured = one.measured_gb_s if memory else max(one.measured_tflop_s.values(), default=None)
    if limit is None and measured is None:
        of = "memory" if memory else "arithmetic"
        name = one.device.name if one.device else one.device_name or "its device"
        return unjudged(one, f"the rate of {name}'s {of} is not known", (f"the {of} rate of {name}",))
    lines = list(implied.lines)
    kept = one.device.cache_bytes if memory and one.device is not None else None
    if limit is not None:
        same = "" if words.startswith(f"{limit:g} {unit}") else f" = {number(limit)} {unit}"
        lines.append(f"limit: {words}{same}; implied is {implied.value / limit:.0%} of it")
        if implied.value > OVER * limit and kept and (size is None or size < CACHE_FACTOR * kept):
            over = f"over {number(limit)} {unit}, but works on {number(size / 1e6)} MB" if size else ""
            text = f"{one.subject} is {over or 'over the memory rate, but over how many bytes is not said'}"
            lack = f"a working set over {CACHE_FACTOR} times the cache of {number(kept / 1e6)} MB"
            return unjudged(one, text, (lack if size else "the bytes worked on",))
        beyond = implied.sure * implied.value / limit
        if implied.value > OVER * limit and implied.sure < 1:
            least = number(implied.sure * implied.value)
            end = "" if beyond > OVER else f", within the {OVER:.0%} that limits are rounded by"
            lines.append(
                f"within half of its last digit it is {least} {unit} at the least, {beyond:.1%} of the limit{end}"
            )
        without_cache = beyond * (1 - kept / size) if kept and size else beyond  # were the cache never emptied
        if without_cache > OVER:
            text = (
                f"{one.subject} is impossible as stated: it needs {number(implied.value)} {unit} of a device that does "
                f"{number(limit)} {unit} at the most"
            )
            return Notice(outcome="fail", text=text, subject=one.subject, about=about, arithmetic=tuple(lines))
    if measured is not None:
        lines.append(f"measured here: {number(measured)} {unit}; implied is {implied.value / measured:.0%} of it")
        cached = memory and (size is None or size < CACHE_FACTOR * (kept or CACHE_UNKNOWN))
        if implied.value > OVER_MEASURED * measured and not cached:
            text = (
                f"{one.subject} implies {number(implied.value)} {unit}, beyond the {number(measured)} {unit} measured "
                f"on this device"
            )
            return Notice(outcome="warn", text=text, subject=one.subject, about=about, arithmetic=tuple(lines))
    of, top = ("of the limit", limit) if limit is not None else ("of what was measured on this device", measured or 1.0)
    share = f"{implied.value / top:.0%} {of}"
    text = f"{one.subject} implies {number(implied.value)} {unit}, {share}"
    return Notice(outcome="ok", text=text, subject=one.subject, about=about, arithmetic=tuple(lines))
