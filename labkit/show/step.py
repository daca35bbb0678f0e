"""A program's HTML: its operations with bytes and FLOPs, and with their share of the time where it was profiled."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from labkit.measure.bench.budget import Spent, spent
from labkit.measure.roofline import kept_ceilings
from labkit.palette import PALETTE
from labkit.show.pieces import Html, facts_table, key, paragraph, share_words, size_words, stack, table, unfold

if TYPE_CHECKING:
    from labkit.vulkan.device import Device
    from labkit.vulkan.profile import Profile
    from labkit.vulkan.program import Dispatch, Program

COLOURED = len(PALETTE) - 1  # operations with a colour of their own; the rest share the last
MOST_LISTED = 200  # dispatches listed one by one
SHORT = 3  # operations that the text names


def program_html(program: "Program") -> Html:
    """A row an operation in the program's order, then every dispatch to unfold."""
    waits = sum(one.barrier for one in program.dispatches)
    facts = {
        "dispatches": f"{len(program.dispatches)}, {waits} behind a barrier",
        "fewest bytes": size_words(program.nbytes),
        "FLOPs": f"{program.flops:,}",
        "fingerprint": program.fingerprint,
    }
    rows = spent([(one, 0.0) for one in program.dispatches])
    largest = sorted(rows, key=lambda row: -row.nbytes)
    places = {id(row): min(place, COLOURED) for place, row in enumerate(largest)}
    why = reasons(program.dispatches)
    body = [
        (
            key(places[id(row)]), row.operation, row.kernel, row.dispatches, size_words(row.nbytes), f"{row.flops:,}",
            why.get(row.kernel, ""),
        )
        for row in rows
    ]  # fmt: skip
    head = ("", "operation", "kernel", "dispatches", "bytes", "FLOPs", "why this variant")
    drawn = stack(colours([row.nbytes for row in largest]), program.nbytes)
    return Html(
        facts_table(facts, f"program {program.label or 'unnamed'}")
        + paragraph(drawn, f"the {size_words(program.nbytes)} it moves at the least, by operation")
        + table(head, body, numbers=(3, 4, 5))
        + dispatches_html(program.dispatches)
    )


def dispatches_html(dispatches: "list[Dispatch]") -> Html:
    """The dispatches one by one, in their order."""
    body = [
        (one.label, one.kernel, " × ".join(map(str, one.grid)), f"{one.nbytes:,}", "waits" if one.barrier else "")
        for one in dispatches[:MOST_LISTED]
    ]
    more = len(dispatches) - len(body)
    listed = table(("dispatch", "kernel", "grid", "bytes", "barrier"), body, numbers=(3,))
    return unfold("every dispatch", Html(listed + (paragraph(f"and {more} more") if more > 0 else "")))


def profile_html(profile: "Profile") -> Html:
    """A bar of the step's time and a row an operation, the longest first, with its distance from the device's ceilings."""
    if not profile:
        return paragraph(f"No times: {profile.device.name} has no timestamps on its compute queue.")
    rows, total = spent(profile), profile.seconds * 1e3
    why, ceiling = reasons(one for one, _ in profile), Ceiling(profile.device)
    body: list[tuple[Any, ...]] = []
    for place, row in enumerate(rows):
        share = row.gpu_ms / total if total else 0.0
        body.append(
            (
                key(min(place, COLOURED)), row.operation, row.kernel, row.dispatches, f"{row.gpu_ms:.3f}",
                share_words(share), size_words(row.nbytes), f"{row.gb_s:.3g}", ceiling.words(row), why.get(row.kernel, ""),
            )
        )  # fmt: skip
    head = (
        "",
        "operation",
        "kernel",
        "dispatches",
        "ms",
        "share",
        "bytes",
        "GB/s",
        "of the ceiling",
        "why this variant",
    )
    drawn = stack(colours([row.gpu_ms for row in rows]), total)
    said = paragraph(drawn, f"{total:.3f} ms in {len(profile)} dispatches, each behind a barrier")
    return Html(said + table(head, body, numbers=(3, 4, 5, 6, 7, 8)) + ceiling.source())


def profile_text(profile: "Profile") -> str:
    """`<Profile of 275 dispatches, 84.5 ms: linear token_embd.weight 30 %, ...>`."""
    if not profile:
        return "<Profile without times: the device has no timestamps>"
    total = profile.seconds * 1e3
    longest = [f"{row.operation} {share_words(row.gpu_ms / total if total else 0.0)}" for row in spent(profile)[:SHORT]]
    return f"<Profile of {len(profile)} dispatches, {total:.3f} ms: {', '.join(longest)}>"


class Ceiling:
    """What was measured of a device before: its read bandwidth and its best rate of products."""

    def __init__(self, device: "Device") -> None:
        self.read, rates = kept_ceilings(device)
        self.rate = max(rates, key=lambda one: one.tflop_s, default=None)

    over = False

    def words(self, row: Spent) -> str:
        """How near an operation is to the ceiling that is nearer: `48 % of reads`; nothing where none is known."""
        seconds = row.gpu_ms / 1e3
        if seconds <= 0:
            return ""
        near = []
        if self.read is not None:
            near.append((row.nbytes / seconds / 1e9 / self.read.gb_s, "reads"))
        if self.rate is not None:
            near.append((row.flops / seconds / 1e12 / self.rate.tflop_s, f"{self.rate.kind} products"))
        share, name = max(near, default=(0.0, ""))
        self.over = self.over or share > 1
        return f"{share_words(share)} of {name}" if share > 0 else ""

    def source(self) -> Html:
        """The ceilings themselves."""
        known = []
        if self.read is not None:
            known.append(f"{self.read.gb_s:.3g} GB/s of reads ({self.read.utc[:10]})")
        if self.rate is not None:
            known.append(f"{self.rate.tflop_s:.3g} TFLOP/s of {self.rate.kind} products ({self.rate.utc[:10]})")
        if not known:
            return paragraph("No ceiling of this device was measured yet.")
        above = (
            "Over 100 %: its bytes were in a cache, or the ceiling was measured on a busier machine."
            if self.over
            else ""
        )
        return paragraph(f"Measured ceilings: {', '.join(known)}.", above)


def colours(sizes: Sequence[float]) -> tuple[float, ...]:
    """Sizes, the largest first, as parts of a stack: one each for as many as have a colour, one for the rest."""
    return (*sizes[:COLOURED], sum(sizes[COLOURED:]))


def reasons(dispatches: "Iterable[Dispatch]") -> dict[str, str]:
    """By kernel, why it runs and not a faster one."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for one in dispatches:
        if one.why:
            found[one.kernel][one.why] = None
    return {kernel: "; ".join(why) for kernel, why in found.items()}
