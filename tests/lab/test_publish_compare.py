"""The comparison of an experiment's runs over devices and dates: what it shows is what the samples and verdicts give."""

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from large_lab import CARDS
from synthetic_lab import DONE, PLAN, make_lab, record, samples, write_run

from labkit.lab.plan import Rule
from labkit.lab.publish import publish

OTHER = "20261202T101500Z-batch-decode-0000000b"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab whose first experiment ran on two devices."""
    root = make_lab(tmp_path_factory.mktemp("compare") / "lab")
    write_run(root, record(OTHER, device={"name": CARDS[0], "driver_name": "radv", "driver_info": "Mesa 26.1"}))
    publish(root)
    return root


def page(lab: Path) -> str:
    return (lab / "site" / "compare" / "batch-decode" / "index.html").read_text()


def pictures(text: str) -> list[dict[str, Any]]:
    """The figures of a page, as plotly reads them."""
    return [json.loads(found) for found in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text)]


def test_every_judged_run_has_a_line_with_its_device_date_verdict_and_page(lab: Path) -> None:
    text = page(lab)
    for run, device in ((DONE, "llvmpipe (LLVM 19.1.7, 256 bits)"), (OTHER, CARDS[0])):
        line = next(line for line in text.splitlines() if f"../../runs/{run}/index.html" in line)
        assert f"<td>{device}</td>" in line
        assert "confirmed" in line
        assert "SmolLM2-135M-Instruct" in line
    assert "radv Mesa 26.1" in text
    assert text.count("<tr><td>") == 2  # the killed run was not judged


def test_the_pictures_show_the_effect_and_each_cell_of_the_rule_as_the_samples_give_them(lab: Path) -> None:
    verdict = record(DONE).verdict
    assert verdict
    speeds = {
        width: [row[4] for row in samples() if row[2:4] == (f'{{"width":{width}}}', "decode_tok_s")] for width in (1, 8)
    }
    effect, eight, one = pictures(page(lab))
    assert [trace["name"] for trace in effect["data"]] == [CARDS[0], "llvmpipe (LLVM 19.1.7, 256 bits)"]
    for trace in effect["data"]:
        assert trace["x"] == [verdict["effect"]]
        assert trace["error_x"]["array"] == [pytest.approx(verdict["high"] - verdict["effect"])]
        assert trace["error_x"]["arrayminus"] == [pytest.approx(verdict["effect"] - verdict["low"])]
    for figure, width in ((eight, 8), (one, 1)):
        (value,) = figure["data"][0]["x"]
        logs = [math.log(speed) for speed in speeds[width]]
        assert value == pytest.approx(math.exp(statistics.fmean(logs)))
        half = 2.262157 * statistics.stdev(logs) / math.sqrt(len(logs))  # Student's t of 9 degrees of freedom
        assert value + figure["data"][0]["error_x"]["array"][0] >= value * math.exp(half) * (1 - 1e-6)
    lines = [shape["x0"] for shape in effect["layout"]["shapes"] if shape["type"] == "line"]
    assert lines == [4]
    assert "shapes" not in eight["layout"]


def test_devices_differ_by_symbol_as_well_as_by_colour(lab: Path) -> None:
    markers = [trace["marker"] for trace in pictures(page(lab))[0]["data"]]
    assert len({marker["symbol"] for marker in markers}) == len({marker["color"] for marker in markers}) == 2


def test_the_index_and_the_pages_of_the_runs_lead_to_it_and_it_back(lab: Path) -> None:
    site = lab / "site"
    assert 'href="compare/batch-decode/index.html"' in (site / "index.html").read_text()
    assert 'href="../../compare/batch-decode/index.html"' in (site / "runs" / DONE / "index.html").read_text()
    assert 'href="../../index.html"' in page(lab)


def test_runs_of_another_rule_stand_apart_and_one_run_alone_is_not_compared(tmp_path: Path) -> None:
    root = make_lab(tmp_path / "lab")
    publish(root)
    assert not (root / "site" / "compare").exists()
    rule = Rule(metric="gpu_ms_step", cell={"width": 32}, comparison="<=", threshold=200)
    write_run(root, record(OTHER), plan=PLAN.model_copy(update={"rule": rule}))
    report = publish(root)
    text = page(root)
    assert re.findall(r'<h2 id="rule-\d">([^<]*)</h2>', text) == [
        "gpu_ms_step at width=32: at most 200",
        "decode_tok_s at width=8 over width=1, in each block: at least 4",
    ]
    assert len(pictures(text)) == 1 + 3
    counted = sum(file.read_text().count('data-plot="') for file in (root / "site").rglob("*.html"))
    assert report.figures == counted


def test_a_run_whose_samples_are_damaged_keeps_its_line_without_numbers(tmp_path: Path) -> None:
    root = make_lab(tmp_path / "lab")
    folder = write_run(root, record(OTHER))
    (folder / "measurements.csv").write_text("block,order,cell,metric,value,utc\n1,2\n")
    publish(root)
    line = next(line for line in page(root).splitlines() if OTHER in line)
    assert line.count('<td class="number">–</td>') == 2


def test_the_levers_can_be_sorted_and_are_a_plain_table_without_javascript(tmp_path: Path) -> None:
    root = make_lab(tmp_path / "lab")
    (root / "LEVERS.md").write_text("# Levers\n\n| knob | effect |\n|---|---|\n| width | 6.3× |\n| kv | 1.0× |\n")
    publish(root)
    levers = (root / "site" / "levers.html").read_text()
    assert '<table class="sortable">' in levers
    assert '<script defer src="assets/tables.js"></script>' in levers
    assert "<button" not in levers
    assert (root / "site" / "assets" / "tables.js").is_file()
    assert "sortable" not in (root / "site" / "findings.html").read_text()
