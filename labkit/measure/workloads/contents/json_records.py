"""JSON: records of orders and readings, nested two deep."""

import json
import random
from collections.abc import Iterator

from labkit.measure.workloads.content import Draft, content, tag

CITIES = (
    "Arlesund",
    "Bellmere",
    "Corvo",
    "Dunhill",
    "Eastvale",
    "Fennick",
    "Grauwald",
    "Holm",
    "Ivry",
    "Joss",
    "Kestrel",
)
KINDS = ("pump", "valve", "sensor", "filter", "relay", "panel", "motor", "switch", "hinge", "gauge", "coupling", "fuse")
STATES = ("open", "shipped", "returned", "waiting", "paid", "cancelled", "held")


def record(chance: random.Random) -> dict[str, object]:
    """One record."""
    return {
        "order": chance.randrange(10_000, 9_999_999),
        "state": chance.choice(STATES),
        "city": chance.choice(CITIES),
        "parts": [
            {
                "kind": chance.choice(KINDS),
                "count": chance.randrange(1, 60),
                "price": round(chance.uniform(0.5, 900), 2),
            }
            for _ in range(chance.randrange(1, 4))
        ],
        "due": f"20{chance.randrange(20, 40)}-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}",
        "urgent": chance.random() < 0.3,
        "note": None if chance.random() < 0.5 else f"{chance.choice(KINDS)} {chance.randrange(100)} first",
    }


def records(chance: random.Random) -> Iterator[str]:
    """Records without an end, a comma behind each."""
    while True:
        yield json.dumps(record(chance)) + ",\n"


@content("json")
def json_records(chance: random.Random) -> Draft:
    """A list of orders as JSON, with the request for more records of the same form."""
    question = "\nAdd records of the same form to this list. Answer with JSON alone.\n"
    return Draft(f'{{"{tag(chance)}": [\n', records(chance), question)
