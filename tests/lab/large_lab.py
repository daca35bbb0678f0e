"""A lab of many runs for the publishing tests: ten questions over four devices and as many dates, all in the ledger."""

import json
import math
from pathlib import Path
from typing import Any

from synthetic_lab import PLAN, WIDTHS, record, write_run

from labkit.lab.events import utc_exact, write_event
from labkit.lab.ledger import entry_event, render
from labkit.lab.plan import Plan
from labkit.lab.record import read_record

CARDS = ("AMD Radeon AI PRO R9700", "NVIDIA H200", "Intel Arc B580", "llvmpipe (LLVM 19.1.7, 256 bits)")
TOPICS = ("decode", "prefill", "kv-type", "draft", "fusion", "page-size", "burst", "quant", "clock", "queue")
TELEMETRY = "time_s,power_w,core_mhz,memory_mhz,temperature_c,utilisation,limited,others"


def plan_of(topic: str) -> Plan:
    """The plan of a topic: the question of the published lab, asked of another part."""
    fields = {"experiment": topic, "question": f"How much faster are eight streams than one, seen from {topic}?"}
    return Plan.model_validate(PLAN.model_dump() | fields)


def telemetry(seconds: int = 120) -> str:
    """Two readings a second: a card that works in the middle of every ten seconds."""
    lines = [TELEMETRY]
    for half in range(2 * seconds):
        at, works = half / 2, 2 <= half / 2 % 10 < 8
        power, mhz = (280, 2900) if works else (40 + 5 * math.sin(half), 600)
        lines.append(f"{at:.4f},{power:.5g},{mhz},2500,{50 + half / 20:.4g},{0.98 if works else 0.0},,0")
    return "\n".join(lines) + "\n"


def requests() -> str:
    """A line a stream of every block and width, with the window it was measured in."""
    rows = []
    for block in range(10):
        for width in WIDTHS:
            start = 10 * block + 2.2
            for slot in range(width):
                row: dict[str, Any] = {"block": block, "cell": {"width": width}, "slot": slot}
                row |= {"prompt_sha256": f"{slot:064x}", "prompt_tokens": 16, "completion_tokens": 64}
                row |= {"submit_s": start, "start_s": start, "first_token_s": start + 0.2, "last_token_s": start + 5.5}
                row |= {"window_start_s": start + 0.2, "window_end_s": start + 5.5, "window_tokens": 63}
                rows.append(json.dumps(row))
    return "\n".join(rows) + "\n"


def add_run(root: Path, number: int) -> Path:
    """The `number`th run of the lab, with its entry in the ledger (the files are not rendered); its folder."""
    topic, card, day = TOPICS[number % 10], CARDS[number // 10 % 4], 1 + number // 40
    plan = plan_of(topic)
    run_id = f"202611{day:02}T{number // 60 % 24:02}{number % 60:02}00Z-{topic}-{number:08x}"
    shown = record(run_id)
    device = (shown.device or {}) | {"name": card, "type": "cpu" if "llvmpipe" in card else "discrete"}
    device |= {"uuid": f"{CARDS.index(card):032x}"}
    run = record(run_id, device=device, plan_hash=plan.hash, ended=shown.started)
    folder = write_run(root, run, plan=plan)
    (folder / "telemetry.csv").write_text(telemetry())
    (folder / "requests.jsonl").write_text(requests())
    write_event(root, entry_event(read_record(folder), folder).model_copy(update={"utc": utc_exact()}))
    return folder


def make_large_lab(root: Path, runs: int) -> Path:
    """A lab of `runs` runs, entered and rendered."""
    (root / "labkit").mkdir(parents=True)
    (root / "figures").mkdir()
    for name in ("FINDINGS", "MISTAKES", "OPEN-PROBLEMS", "LEVERS"):
        (root / f"{name}.md").write_text(f"# {name.replace('-', ' ').capitalize()}\n")
    for number in range(runs):
        add_run(root, number)
    render(root)
    return root
