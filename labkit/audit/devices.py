"""The limits of devices by unit, read from `data/devices.toml` and from a person's own `data/devices.local.toml`."""

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError

SHIPPED, OWN = Path("data") / "devices.toml", Path("data") / "devices.local.toml"
# Units that multiply, with how many bits their operands have.
UNITS: dict[str, int] = {
    "fp32_vector": 32,
    "fp16_vector": 16,
    "fp16_matrix": 16,
    "fp8_matrix": 8,
    "int8_matrix": 8,
    "fp4_matrix": 4,
    "int4_matrix": 4,
}
NUMBERS = ("memory_gb_s", "memory_bytes_per_clock", "cache_mib", "memory_gib", "power_w", "vendor_id", "device_id")
TEXTS = ("name", "source")
COUNTED = re.compile(r"^\s*(\d+)\s*[x×]\s+(.+?)\s*$|^\s*(.+?)\s+[x×]\s*(\d+)\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """What a device can do at the very most: memory in GB/s, cache in MiB, memory in GiB, board power in W, and 10^12
    operations a second by unit. `memory_bytes_per_clock` times the memory clock in MHz is its rate in MB/s, for cards
    whose clock was changed. `count` cards together have `count` times each rate."""

    key: str
    name: str
    source: str
    aliases: tuple[str, ...] = ()
    memory_gb_s: float | None = None
    memory_bytes_per_clock: float | None = None
    cache_mib: float | None = None
    memory_gib: float | None = None
    power_w: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    vendor_id: int | None = None
    device_id: int | None = None
    count: int = 1

    def memory_limit(self, memory_mhz: float | None = None) -> tuple[float | None, str]:
        """GB/s of all cards together, and where the number is from. A known memory clock that is above the card's own
        gives the rate of the clock; one that cannot be the clock of this memory (over half as fast again) is left out.
        """
        cards = f"{self.count} × " if self.count > 1 else ""
        stock = self.memory_gb_s
        if memory_mhz is not None and self.memory_bytes_per_clock is not None:
            rate = memory_mhz * self.memory_bytes_per_clock / 1e3
            if stock is None or stock < rate <= 1.5 * stock:
                words = f"{cards}{memory_mhz:g} MHz × {self.memory_bytes_per_clock:g} bytes a clock of {self.name}"
                return rate * self.count, words
        return (None, "") if stock is None else (stock * self.count, f"{cards}{stock:g} GB/s of {self.name}")

    def rate_limit(self, operand_bits: int | None = None) -> tuple[float | None, str]:
        """The highest 10^12 operations a second of any unit whose operands have at least `operand_bits` (any, when not
        known), and which unit that is."""
        fitting = {unit: rate for unit, rate in self.rates.items() if UNITS[unit] >= (operand_bits or 0)}
        if not fitting:
            return None, ""
        unit = max(fitting, key=lambda name: fitting[name])
        cards = f"{self.count} × " if self.count > 1 else ""
        return fitting[unit] * self.count, f"{cards}{fitting[unit]:g} TFLOP/s, {unit.replace('_', ' ')} of {self.name}"

    @property
    def memory_bytes(self) -> float | None:
        """Bytes of memory of all cards together."""
        return None if self.memory_gib is None else self.memory_gib * 2**30 * self.count

    @property
    def cache_bytes(self) -> float | None:
        """Bytes of the last-level cache of all cards together."""
        return None if self.cache_mib is None else self.cache_mib * 2**20 * self.count


def read_devices(root: Path | None = None) -> dict[str, Limits]:
    """Every known device by its key: labkit's own file, then the lab's `data/devices.toml` and
    `data/devices.local.toml`. A later one takes the place of an earlier one of its key, and of each that a name or an
    alias of it is equal to. ParameterError for a fault, with its place."""
    files = [shipped_file()]
    if root is not None:
        files += [root / SHIPPED, root / OWN]
    found: dict[str, Limits] = {}
    for path in dict.fromkeys(path.resolve() for path in files if path.is_file()):
        stat = path.stat()
        own = read_file(path, stat.st_mtime_ns, stat.st_size)
        replaced = {key for one in own.values() for key, other in found.items() if called(one) & called(other)}
        kept = {key: one for key, one in found.items() if key not in replaced}
        found = kept | {key: in_place(one, found.values()) for key, one in own.items()}
    return found


def called(one: Limits) -> set[str]:
    """The plain names of a device."""
    return {plain(name) for name in (one.name, *one.aliases)}


def in_place(own: Limits, known: Iterable[Limits]) -> Limits:
    """A device that takes the place of those called as it is, found as they were: by their names, and by their PCI
    numbers where it has none. Its limits are its own."""
    for one in [one for one in known if called(own) & called(one)]:
        names = dict.fromkeys((*own.aliases, one.name, *one.aliases))
        own = replace(own, aliases=tuple(name for name in names if name != own.name))
        if own.vendor_id is None and own.device_id is None:
            own = replace(own, vendor_id=one.vendor_id, device_id=one.device_id)
    return own


def shipped_file() -> Path:
    """The file that comes with labkit: in its repository, or beside the installed package."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_data" / "devices.toml"
    return inside if inside.is_file() else package.parent / SHIPPED


@functools.lru_cache(maxsize=16)
def read_file(path: Path, changed: int, size: int) -> dict[str, Limits]:
    """The devices of one file, read again when it changes. ParameterError names the fault."""
    if size > 1 << 20:
        raise ParameterError(f"{path} has {size:,} bytes; a file of devices has a few lines for each")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ParameterError(f"{path} cannot be read: {error}") from None
    return {key: device_of(path, key, fields) for key, fields in document.items()}


def device_of(path: Path, key: str, fields: Any) -> Limits:
    """One device as a file declares it. ParameterError for what is missing, unknown, or not a number above 0."""
    if not isinstance(fields, Mapping):
        raise ParameterError(f"{path}: {key} stands outside a device; write it under [its-name]")
    rates = {f"{unit}_tflop_s": unit for unit in UNITS}
    for name in TEXTS:
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise ParameterError(f"{path}: [{key}] needs {name!r}, a text: limits without a source are worth nothing")
    aliases = fields.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) and alias.strip() for alias in aliases):
        raise ParameterError(f"{path}: [{key}] aliases is {aliases!r}; give a list of names")
    if unknown := sorted(set(fields) - {*TEXTS, *NUMBERS, *rates, "aliases"}):
        known = ", ".join((*TEXTS, "aliases", *NUMBERS, *rates))
        raise ParameterError(f"{path}: [{key}] has {unknown[0]!r}, which is not one of {known}")
    for name in (*NUMBERS, *rates):
        value = fields.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
            raise ParameterError(f"{path}: [{key}] {name} is {value!r}; give a number above 0, or leave it out")
    numbers = {name: fields[name] for name in NUMBERS if name in fields}
    return Limits(
        key=key,
        name=fields["name"],
        source=fields["source"],
        aliases=tuple(aliases),
        rates={unit: float(fields[name]) for name, unit in rates.items() if name in fields},
        **numbers,
    )


def find_device(
    name: str | None, devices: Mapping[str, Limits], vendor_id: int | None = None, device_id: int | None = None
) -> Limits | None:
    """The device called so: by its PCI numbers, else by the longest of its names that stands in `name` as words of its
    own, or by its key alone. `2x R9700` and `R9700 x2` are two of them. None where nobody declared it."""
    if vendor_id is not None and device_id is not None:
        for limits in devices.values():
            if (limits.vendor_id, limits.device_id) == (vendor_id, device_id):
                return limits
    if not name:
        return None
    counted = COUNTED.match(name)
    count = int(counted[1] or counted[4]) if counted else 1
    text = plain((counted[2] or counted[3]) if counted else name)
    fitting = [
        (len(plain(alias)), limits)
        for limits in devices.values()
        for alias in (limits.name, *limits.aliases)
        if re.search(rf"(?<!\w){spaced(alias)}(?!\w)", text)
    ]
    fitting += [(len(text), limits) for limits in devices.values() if plain(limits.key) == text]
    if not fitting or not 1 <= count <= 1024:
        return None
    best = max(fitting, key=lambda one: one[0])[1]
    return replace(best, count=count) if count > 1 else best


def spaced(alias: str) -> str:
    """A pattern for a name whose words may stand together, as in `RX 9070XT`."""
    return r"\s*".join(re.escape(word) for word in plain(alias).split())


def plain(name: str) -> str:
    """A name in small letters, its words parted by one blank."""
    return " ".join(re.sub(r"[^\w]+", " ", name.lower()).split())
