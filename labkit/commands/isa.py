"""`lab isa`: the registers, occupancy and code of every kernel the product runs, on a card that need not be here."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from labkit.errors import LabError, ParameterError

if TYPE_CHECKING:
    from labkit.vulkan.isa import Statistics
    from labkit.vulkan.isa_cases import Case

# heading, our name of the statistic
COLUMNS = (
    ("VGPRs", "vgprs"), ("SGPRs", "sgprs"), ("registers", "registers"), ("spilled", "spilled"),
    ("scratch B", "scratch_bytes"), ("shared B", "shared_bytes"), ("occupancy", "occupancy"), ("code B", "code_bytes"),
    ("latency", "latency"), ("inv. thr.", "inverse_throughput"),
)  # fmt: skip


@click.command(name="isa")
@click.argument("kernel", required=False)
@click.option(
    "--target", default="", help="gfx1201 (R9700), gfx1151 (8060S) or another of RADV's names; default: the device."
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A specialisation constant, in every case."
)
@click.option("--diff", "older", metavar="OLD", help="Compare with OLD: a git revision, or a .spv file of KERNEL.")
@click.option("--dump", is_flag=True, help="Print the disassembly of each case of KERNEL too.")
@click.option("--json", "as_json", is_flag=True, help="Print every case as JSON.")
def command(
    kernel: str | None, target: str, settings: tuple[str, ...], older: str | None, dump: bool, as_json: bool
) -> None:
    """What a driver's compiler makes of KERNEL (`matvec`, `matvec.q4`; all by default) as the product runs it.

    With --target the code is Mesa's for an AMD card that need not be here. Spilled registers and scratch memory (bytes
    a subgroup) cost dearly: there should be none. Occupancy is the subgroups a SIMD unit holds at once. Latency and
    inverse throughput are the compiler's own estimates in cycles, for comparing versions of one kernel.
    """
    if dump and not kernel:
        raise ParameterError("--dump prints pages of code: name the KERNEL")
    cases = _changed(_cases(target, kernel), settings)
    if older:
        _compare(target, cases, older, as_json)
        return
    found = _measure(target, cases, dump)
    if as_json:
        click.echo(json.dumps({"target": target or "device", "cases": [_plain(one) for one in found]}, indent=1))
        return
    _heading(found)
    if kernel:
        rows = [(one.kernel, _differing(one, found), [one]) for one in found]
    else:
        names = dict.fromkeys(one.kernel for one in found)
        rows = [(name, "", [one for one in found if one.kernel == name]) for name in names]
    _table(rows, by_case=bool(kernel))
    for one in found:
        if one.error:
            click.echo(f"{one.kernel} ({_text(one.constants)}): {one.error}", err=True)
        if dump:
            click.echo(f"\n{one.kernel} for {one.target}, {_text(one.constants)}\n")
            click.echo(one.text or "the driver gives no disassembly")


def _device(target: str) -> bool:
    return target in ("", "device")


def _cases(target: str, kernel: str | None) -> "list[Case]":
    """The cases of the target (of the device here without one), those of `kernel` alone where it is named."""
    from labkit.vulkan import isa_cases
    from labkit.vulkan.isa import TARGETS

    if _device(target):
        from labkit.vulkan.device import Device
        from labkit.vulkan.isa import require_statistics
        from labkit.vulkan.isa_machines import like

        with Device() as device:
            require_statistics(device)
            recording = like(device)
    else:
        from labkit.vulkan.isa_machines import device_like

        recording = device_like(target if target in TARGETS else "gfx1201")
    return isa_cases.cases_of(kernel, recording) if kernel else isa_cases.all_cases(recording)


def _changed(cases: "list[Case]", settings: Sequence[str]) -> "list[Case]":
    """The cases with constants set by hand, each that remains once."""
    from labkit.vulkan.isa_cases import with_constants

    given: dict[str, int | float] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        try:
            given[name] = float(value) if "." in value else int(value, 0)
        except ValueError:
            raise ParameterError(f"--set {setting!r} is not NAME=NUMBER") from None
    if not given:
        return cases
    changed = [with_constants(case, **given) for case in cases]
    return list({case.wanted: case for case in reversed(changed)}.values())[::-1]


def _measure(target: str, cases: "Sequence[Case]", text: bool) -> "list[Statistics]":
    from labkit.vulkan.isa import statistics_of

    if _device(target):
        from labkit.vulkan.device import Device

        with Device() as device, _bar(cases) as bar:
            return statistics_of(device, cases, text=text, said=lambda one: bar.update(1))
    from labkit.vulkan.isa_null import compile_for

    with _bar(cases) as bar:
        return compile_for(target, cases, text=text, said=lambda one: bar.update(1))


def _bar(cases: "Sequence[Case]") -> Any:
    import sys

    return click.progressbar(length=len(cases), label="compiling", file=sys.stderr, hidden=not sys.stderr.isatty())


def _compare(target: str, cases: "list[Case]", older: str, as_json: bool) -> None:
    """Print what differs between the older binaries and these."""
    from labkit.vulkan.isa_compare import changes, older_cases

    pairs = older_cases(cases, older)
    found = _measure(target, [case for pair in pairs for case in pair], False)
    rows: list[dict[str, Any]] = []
    for after, before in zip(found[0::2], found[1::2], strict=True):
        row: dict[str, Any] = {
            "kernel": after.kernel,
            "target": after.target,
            "constants": after.constants,
            "purposes": after.purposes,
        }
        try:
            rows.append(row | {"changes": changes(before, after)})
        except LabError as error:
            rows.append(row | {"error": str(error)})
    if as_json:
        click.echo(json.dumps({"target": target or "device", "older": older, "cases": rows}, indent=1))
        return
    moved = [row for row in rows if row.get("changes") or "error" in row]
    click.echo(f"{len(rows)} cases have another binary than {older}; the code of {len(moved)} differs")
    cells = []
    for row, after in zip(rows, found[0::2], strict=True):
        if row in moved:
            changed = row.get("changes", {})
            numbers = [" → ".join(_number(n) for n in changed[key]) if key in changed else "" for _, key in COLUMNS]
            cells.append(
                [after.kernel, after.target, "", *numbers, _differing(after, found[0::2]), row.get("error", "")]
            )
    if cells:
        _print_table(cells, last="")


def _plain(one: "Statistics") -> dict[str, Any]:
    return {
        "kernel": one.kernel, "target": one.target, "driver": one.driver, "constants": one.constants,
        "subgroup": one.subgroup, "purposes": one.purposes, **one.numbers, "spilled": one.spilled, "statistics": one.raw,
        **({"disassembly": one.text} if one.text else {}), **({"error": one.error} if one.error else {}),
    }  # fmt: skip


def _heading(found: "Sequence[Statistics]") -> None:
    from labkit.vulkan.isa_machines import MACHINES

    drivers = sorted({one.driver for one in found if one.driver})
    for target in dict.fromkeys(one.target for one in found):
        many = sum(one.target == target for one in found)
        what = f" ({MACHINES[target].about})" if target in MACHINES else ""
        click.echo(f"{many} cases compiled for {target}{what} by {', '.join(drivers) or 'its driver'}")


def _differing(one: "Statistics", found: "Sequence[Statistics]") -> str:
    """The constants of a case that are not the same in all cases of its kernel."""
    same = [other.constants for other in found if other.kernel == one.kernel]
    return _text({k: v for k, v in one.constants.items() if any(other.get(k) != v for other in same)})


def _text(constants: dict[str, Any]) -> str:
    return " ".join(f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in constants.items())


def _number(value: float | int | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _range(values: Iterable[float | int | None]) -> str:
    """The least and the greatest of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    least, most = _number(min(known)), _number(max(known))
    return least if least == most else f"{least}–{most}"


def _table(rows: "list[tuple[str, str, list[Statistics]]]", *, by_case: bool) -> None:
    """One line a kernel (ranges over its cases) or one a case, without the columns no case fills."""
    cells = []
    for name, constants, members in rows:
        good = [one for one in members if not one.error]
        numbers = [
            _range(one.spilled if key == "spilled" else one.numbers.get(key) for one in good) for _, key in COLUMNS
        ]
        target = " ".join(dict.fromkeys(one.target for one in members))
        first = [name, target, str(len(members)) if not by_case else ""]
        last = members[0].purposes[0] if members[0].purposes else ""
        cells.append([*first, *numbers, constants, last])
    _print_table(cells, last="first used in")


def _print_table(cells: list[list[str]], *, last: str) -> None:
    """Columns that are empty are left out, and the target where it is the same everywhere."""
    head = ["kernel", "target", "cases", *(heading for heading, _ in COLUMNS), "constants", last]
    if len({row[1] for row in cells}) == 1:
        for row in cells:
            row[1] = ""
    used = [i for i in range(len(head)) if any(row[i] for row in cells)]
    widths = {i: max(len(head[i]), *(len(row[i]) for row in cells)) for i in used}
    left = {0, 1, len(head) - 2, len(head) - 1}
    for row in [head, *cells]:
        line = [row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in used]
        click.echo("  ".join(line).rstrip())
