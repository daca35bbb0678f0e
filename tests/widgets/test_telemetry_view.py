"""The telemetry view: what the source tells against its limits, what it does not tell, and readings kept in a run."""

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from page_rules import check_noun

from labkit.engine.engine import Engine
from labkit.errors import ParameterError
from labkit.lab.lab import Lab
from labkit.measure.telemetry import Reading
from labkit.vulkan.device import Device
from labkit.widgets import telemetry
from labkit.widgets.telemetry import Meters

PERIOD_S = 0.02


class Card:
    """A card that tells everything, and at some point nothing any more."""

    name = "an imitated card"

    def __init__(self, most: int = 10**9, facts: dict[str, Any] | None = None) -> None:
        self.most, self.count, self.told = most, 0, facts or {"power_limit_w": 300.0, "core_max_mhz": 2900}

    def read(self) -> Reading:
        self.count += 1
        if self.count > self.most:
            raise OSError("the card fell off the bus")
        return Reading(
            power_w=150.0, core_mhz=1450.0, memory_mhz=1250.0, temperature_c=61.0, utilisation=0.5, limited="power cap"
        )

    def facts(self) -> dict[str, Any]:
        return self.told


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 10
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(PERIOD_S)
    return found


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    made = Card()
    monkeypatch.setattr(sys.modules[Meters.__module__], "find_source", lambda device: (made, made.name))
    return made


@pytest.mark.usefixtures("card")
def test_each_value_stands_against_its_limit(device: Device) -> None:
    with telemetry(device, period_s=PERIOD_S) as view:
        assert until(lambda: view.state()["readings"] > 2)
        meters = view.state()["meters"]
        assert meters["power_w"] == {"value": 150.0, "limit": 300.0}
        assert meters["core_mhz"] == {"value": 1450.0, "limit": 2900.0}
        assert meters["utilisation"] == {"value": 0.5, "limit": 1.0}
        assert meters["temperature_c"] == {"value": 61.0, "limit": None}
        words = check_noun(view)
        assert "150.0 W" in words
        assert "of 300.0 W" in words
        assert "held back by power cap" in words
        figure = view.figure()
        assert {trace.name for trace in figure.data} >= {"load", "power", "core clock"}
        assert all(value == 50.0 for value in next(one for one in figure.data if one.name == "load").y)
    assert not view.running


def test_a_source_that_stops_answering_is_one_line_and_its_readings_stay(device: Device, card: Card) -> None:
    card.most = 3
    with telemetry(device, period_s=PERIOD_S) as view:
        assert view.wait(10)
        assert view.error == "an imitated card stopped answering: the card fell off the bus"
        assert view.state()["readings"] == 3
        assert "150.0 W" in view.picture()


def test_what_is_not_told_is_said_with_its_reason(device: Device, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.told = {"no_power": "its counters are for root alone"}
    monkeypatch.setattr(card, "read", lambda: Reading(utilisation=0.25))
    monkeypatch.setattr(type(device), "memory_free", lambda self: None)
    with telemetry(device, period_s=PERIOD_S) as view:
        assert until(lambda: view.state()["readings"] > 1)
        assert view.untold() == (
            "not told: memory, power, temperature, core clock, memory clock (its counters are for root alone)"
        )
        assert list(view.state()["meters"]) == ["utilisation"]


def test_readings_of_a_run_are_the_runs_own_and_in_its_folder(device: Device, lab: Lab) -> None:
    run = lab.run("try")
    with telemetry(device, run=run, period_s=PERIOD_S) as view:
        assert until(lambda: view.state()["readings"] > 3)
        assert view.state()["run"] == run.id
        assert run.record.device is not None
        run.measure({"width": 1}, 0, decode_tok_s=1.0)
        run.end("completed")
        assert view.wait(10)  # it ends with the run
        assert view.error == ""
        lines = (run.folder / "telemetry.csv").read_text().splitlines()
        assert lines[0].startswith("time_s,power_w")
        assert len(lines) > 3
        assert view.state()["readings"] > 3


def test_a_device_is_an_engines_too_and_a_wrong_period_is_refused(engine: Engine) -> None:
    with telemetry(engine, period_s=PERIOD_S) as view:
        assert view.device is engine.device
    with pytest.raises(ParameterError, match="period_s=0: give a time above 0"):
        telemetry(engine, period_s=0)
