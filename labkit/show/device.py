"""A device's HTML: what the driver says of it, and its ceilings, measured and as the card's maker has them."""

from typing import TYPE_CHECKING

from labkit.show.pieces import Html, bar, facts_table, paragraph, share_words, size_words, table

if TYPE_CHECKING:
    from labkit.vulkan.device import Device

# a kind of matrix product -> the unit of `data/devices.toml` that does it
UNIT = {"float16": "fp16_matrix", "int8": "int8_matrix", "float32": "fp32_vector"}


def device_html(device: "Device") -> Html:
    """Limits, free memory where the driver tells it, and rooflines; nothing is measured for it."""
    i = device.info
    free = None if device.closed else device.memory_free()
    state = {"state": "lost" if device.lost else "closed"} if device.closed else {}
    facts = {
        **state,
        "type": i.type,
        "driver": f"{i.driver_name} {i.driver_info}",
        "Vulkan": i.api_version,
        "device memory": size_words(i.memory_bytes) + (f", {size_words(free)} free" if free is not None else ""),
        "subgroup": f"{i.subgroup_size} ({i.subgroup_min} to {i.subgroup_max})",
        "workgroup": f"{i.max_workgroup_invocations} invocations, {size_words(i.max_shared_bytes)} shared",
        "push constants": f"{i.max_push_bytes} bytes",
        "largest binding": size_words(i.max_storage_range_bytes),
        "largest allocation": size_words(i.max_allocation_bytes),
        "features": ", ".join(i.features),
    }
    return Html(facts_table(facts, i.name) + ceilings_html(device))


def ceilings_html(device: "Device") -> Html:
    """A row a ceiling: measured here, and what the card can do at the very most where that is known."""
    from labkit.audit.devices import find_device, read_devices
    from labkit.errors import LabError
    from labkit.measure.roofline import kept_ceilings

    try:
        card = find_device(device.name, read_devices(), device.info.vendor_id, device.info.device_id)
    except LabError:  # a file of devices that is damaged is told of where a claim is judged by it
        card = None
    read, rates = kept_ceilings(device)
    rows = []
    declared = card.memory_gb_s if card is not None else None
    if read is not None or declared is not None:
        rows.append(_row("read bandwidth", "GB/s", read.gb_s if read else None, declared))
    found = {rate.kind: rate.tflop_s for rate in rates}
    limits = card.rates if card is not None else {}
    for kind, unit in UNIT.items():
        if kind in found or unit in limits:
            rows.append(_row(f"{kind} products", "TFLOP/s", found.get(kind), limits.get(unit)))
    if not rows:
        return paragraph("No ceiling is known: labkit.measure.roofline.read_bandwidth(device) measures the first.")
    return table(("roofline", "measured", "of the card's limit", ""), rows, numbers=(1, 2))


def _row(name: str, unit: str, measured: float | None, limit: float | None) -> tuple[object, ...]:
    known = f"{measured:.3g} {unit}" if measured is not None else "not yet"
    if limit is None:
        return name, known, "not known", ""
    if measured is None:
        return name, known, f"{limit:.4g} {unit}", ""
    return name, known, f"{share_words(measured / limit)} of {limit:.4g} {unit}", bar(measured / limit)
