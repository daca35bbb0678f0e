"""Asking again: a run, the ledger's findings or a suite, and the page of what changed."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from run_harness import ThrowawayLab, eventually, read

from labkit.lab.lab import StoredRun
from labkit.lab.record import read_record
from labkit.lab.what_changed import KINDS, Changed, changed, markdown, page, summary

ASKED = ("-p", "planned", "true", "-p", "widths", "1,8", "-p", "repetitions", "10")


@pytest.fixture
def lab(tmp_path: Path) -> ThrowawayLab:
    return ThrowawayLab(tmp_path / "lab")


def asked_once(lab: ThrowawayLab, *more: str) -> str:
    """A run of the planned experiment, in the ledger; its id."""
    done = lab.lab("run", "sweep", *ASKED, "--no-page", *more)
    assert done.returncode == 0, done.stderr
    return lab.folders()[-1].name


def slow_down(lab: ThrowawayLab) -> None:
    """The experiment measures nine tenths of what it did."""
    notebook = lab.root / "notebooks" / "sweep.ipynb"
    notebook.write_text(notebook.read_text().replace("decode_tok_s=10.0 * cell", "decode_tok_s=0.9 * 10.0 * cell"))


def suite(lab: ThrowawayLab, text: str) -> Path:
    path = lab.root / "suite.toml"
    path.write_text(text)
    return path


def test_one_run_again_says_what_changed_and_keeps_the_page(lab: ThrowawayLab) -> None:
    first = asked_once(lab)
    slow_down(lab)
    done = lab.lab("rerun", first, "--no-page", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["experiment"] == "sweep"
    again = lab.folders()[-1].name
    assert "1 question asked again. the same verdict at another speed: 1." in done.stderr
    text = (lab.root / "data" / "reruns" / f"{again}.md").read_text()
    assert "- verdict: confirmed 5.94× [5.12, 6.86] → confirmed 5.80×" in text
    assert "- decode_tok_s at width=8: 84.45 → 76.45 tok/s, 0.905× [0.83" in text  # (72 + b) over (80 + b)
    assert "], slower" in text  # by more than sessions lie apart
    assert "- what this can be put to: " in text
    assert "- changed: notebook's code: " in text
    assert f"- runs: {first} → {again}" in text
    html = (lab.root / "data" / "reruns" / f"{again}.html").read_text()
    assert "0.905× [0.83" in html
    assert "http" not in html


def test_the_findings_of_the_ledger_are_asked_again_each_once(lab: ThrowawayLab) -> None:
    first = asked_once(lab)
    done = lab.lab("rerun", "--findings", "--no-page", "--budget", "1h", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["then"], found["kind"]) == (first, "unchanged as far as can be told")
    assert found["verdict_then"] == found["verdict_now"] == "confirmed"
    assert [speed["cell"] for speed in found["speeds"]] == ["width=1", "width=8"]
    assert all(speed["low"] <= 1 <= speed["high"] for speed in found["speeds"])
    (lab.root / "notebooks" / "sweep.ipynb").unlink()
    gone = lab.lab("rerun", "--findings", "--no-page")
    assert gone.returncode == 0
    assert "not answered again: 1" in gone.stdout
    assert "there is no experiment 'sweep'" in gone.stdout


def test_a_suite_is_compared_with_the_newest_run_alike_and_new_questions_are_asked_for_the_first_time(
    lab: ThrowawayLab,
) -> None:
    first = asked_once(lab)
    path = suite(
        lab,
        'name = "after_driver"\n[[experiment]]\nname = "sweep"\n'
        'parameters = { planned = true, widths = [1, 8], repetitions = 10 }\n[[experiment]]\nname = "echo"\n',
    )
    planned = lab.lab("rerun", str(path), "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert f"against {first}" in planned.stdout
    assert "echo  for the first time" in planned.stdout
    assert len(lab.folders()) == 1
    done = lab.lab("rerun", str(path), "--no-page")
    assert done.returncode == 0, done.stderr
    assert "2 questions asked again. answered for the first time: 1; unchanged as far as can be told: 1." in done.stdout
    assert list((lab.root / "data" / "reruns").glob("*-after-driver-*.md"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[experiment]", "cannot be read"),
        ("", "lists no experiment: [[experiment]]"),
        ("experiment = 3", "lists no experiment"),
        ('more = 1\n[[experiment]]\nname = "echo"', "has 'more', which is not a part of one"),
        ('name = "../x"\n[[experiment]]\nname = "echo"', "name is '../x'"),
        ("[[experiment]]\n", "experiment 1: it needs a name"),
        ('[[experiment]]\nname = "nothing"', "experiment 1: there is no experiment 'nothing'"),
        ('[[experiment]]\nname = "echo"\nfast = true', "it has 'fast'"),
        (2 * '[[experiment]]\nname = "echo"\n' + 'parameters = { count = "x" }', "experiment 2: parameter count"),
        ('[[experiment]]\nname = "echo"\nparameters = 3', "parameters is 3"),
        ('[[experiment]]\nname = "echo"\nagainst = "20200101T"', "there is no run '20200101T'"),
    ],
)  # fmt: skip
def test_a_suite_is_checked_before_anything_runs(lab: ThrowawayLab, text: str, says: str) -> None:
    done = lab.lab("rerun", str(suite(lab, text)))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not lab.runs.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name runs or a SUITE.toml, or give --findings"),
        (("x", "--findings"), "one of these is run again"),
        (("a.toml", "b"), "give one SUITE.toml, or runs, not both"),
        (("a.toml", "-p", "count", "3"), "a suite holds its own parameters"),
        (("missing.toml",), "the suite missing.toml cannot be read"),
        (("--findings",), "findings has nothing to run again"),
        (("20200101T",), "there is no run '20200101T'"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(lab: ThrowawayLab, arguments: tuple[str, ...], says: str) -> None:
    done = lab.lab("rerun", *arguments)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_a_killed_suite_is_taken_up_where_it_was_left(lab: ThrowawayLab) -> None:
    one = '[[experiment]]\nname = "sweep"\nparameters = {{ widths = [{}], repetitions = 4, pause_s = 0.2 }}\n'
    path = suite(lab, one.format("1") + one.format("2"))
    process = subprocess.Popen(
        lab.command("rerun", str(path), "--no-page"), env=lab.environment, cwd=lab.root,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually(lambda: any((partial / "measurements.csv").exists() for partial in lab.partials()), 30)
    (partial,) = lab.partials()
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(int(read(partial / "heartbeat.json")["runner_pid"]), signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    done = lab.lab("rerun", str(path), "--no-page", "--resume")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 questions to ask" in done.stderr
    assert [read(folder / "run.json")["state"] for folder in lab.folders()] == ["completed"] * 2
    assert len(read(lab.folders()[0] / "run.json")["resumed"]) == 1
    assert len(list((lab.root / "data" / "reruns").glob("*.json"))) == 1


def test_a_budget_leaves_the_rest_for_another_night(lab: ThrowawayLab) -> None:
    path = suite(lab, '[[experiment]]\nname = "echo"\n')
    done = lab.lab("rerun", str(path), "--no-page", "--budget", "0.01s")
    assert done.returncode == 1
    assert "1 questions are left (they did not fit or failed); --resume asks them" in done.stderr
    assert "- trouble: the repeat ended as timed-out" in done.stdout


def test_every_condition_that_differs_is_named_and_what_stood_beside_the_repeat(lab: ThrowawayLab) -> None:
    first = asked_once(lab)
    folder = lab.runs / first
    then = StoredRun(read_record(folder), folder)
    known: dict[str, Any] = {"name": "A card", "driver_name": "radv", "driver_info": "Mesa 25.0", "api_version": "1.4"}
    old = then.record.model_copy(
        update={"device": known | {"card": {"power_limit_w": 300.0}}, "packages": {"numpy": "2.0"}}
    )
    seen = {
        "looks": 3,
        "processes": [{"pid": 7, "name": "peer", "when": ["during"], "busy": 0.5}],
        "throttled": {"heat": 0.5},
    }
    new = type(old).model_validate(
        old.model_dump(by_alias=True)
        | {
            "device": known | {"driver_info": "Mesa 25.1", "card": {"power_limit_w": 210.0}},
            "packages": {"numpy": "2.1"},
            "parameters": old.parameters | {"repetitions": 12},
            "neighbours": seen,
        }
    )
    told = changed(lab.root, StoredRun(old, folder), StoredRun(new, folder)).conditions
    assert any("Mesa 25.0" in words and "Mesa 25.1" in words for words in told)
    assert "card power_limit_w: 300.0 → 210.0" in told
    assert "repetitions: 10 → 12" in told
    assert any("package" in words and "numpy" in words for words in told)
    (load,) = (words for words in told if words.startswith("load beside the run: "))
    assert load.endswith(" → peer (process 7) on the device during, held back by heat in 50% of the looks")


def test_a_page_begins_with_what_changed_and_its_text_cannot_break_it() -> None:
    items = [
        Changed("Same?", "a", then="r1", now="r2", verdict_then="confirmed", verdict_now="confirmed"),
        Changed("<b>Other</b> | *verdict*?", "b", then="r3", now="r4", verdict_then="confirmed", verdict_now="refuted"),
        Changed("Gone?", "c", then="r5", trouble="there is no notebook"),
    ]
    text = markdown("What changed", items)
    headings = [f"## {kind[0].upper()}{kind[1:]}" for kind in (KINDS[0], KINDS[2], KINDS[4])]
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)
    assert text.index("verdict") < text.index("Gone?") < text.index("Same?")
    assert "<b>" not in text
    html = page("What changed", items)
    assert "&lt;b&gt;Other&lt;/b&gt;" in html
    assert "confirmed → refuted" in html
    assert summary(items).startswith("3 questions asked again. another verdict: 1; not answered again: 1")
