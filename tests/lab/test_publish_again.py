"""Publishing again makes anew what changed and nothing else, and the site is the one that a first publish would give."""

import hashlib
import os
import resource
import shutil
import time
from pathlib import Path

import pytest
from large_lab import add_run, make_large_lab, render
from synthetic_lab import DONE, KILLED, make_lab, record, write_run

from labkit.errors import LabError
from labkit.lab.publish import publish, publish_run
from labkit.lab.publish.state import state_file

RUNS = 4
MARK = "does not agree with its data"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab of a few entered runs with its site, only to be copied."""
    root = make_large_lab(tmp_path_factory.mktemp("made") / "lab", RUNS)
    publish(root, jobs=1)
    return root


@pytest.fixture
def lab(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "lab"))


def digest(site: Path) -> dict[str, str]:
    files = sorted(path for path in site.rglob("*") if path.is_file())
    return {path.relative_to(site).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def anew(lab: Path, out: Path) -> dict[str, str]:
    """What a first publish gives."""
    publish(lab, out, jobs=1)
    return digest(out)


def test_nothing_is_made_again_when_nothing_changed(lab: Path) -> None:
    before = digest(lab / "site")
    assert publish(lab).made == 0
    assert digest(lab / "site") == before


def test_one_new_run_makes_one_page_and_the_site_is_that_of_a_first_publish(lab: Path, tmp_path: Path) -> None:
    add_run(lab, RUNS)
    render(lab)
    report = publish(lab)
    assert (report.made, report.runs) == (1, RUNS + 1)
    assert digest(lab / "site") == anew(lab, tmp_path / "first")


def test_several_processes_make_the_site_that_one_makes(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.lab.publish.worker.FEW", RUNS)
    assert publish(lab, tmp_path / "two", jobs=2).made == RUNS
    assert digest(tmp_path / "two") == digest(lab / "site")


def test_an_error_in_a_process_is_the_error_of_the_publish_and_leaves_no_site(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.lab.publish.worker.FEW", RUNS)
    monkeypatch.setattr("labkit.lab.publish.worker.start", start_dying)
    with pytest.raises(LabError, match="died; nothing was published"):
        publish(lab, tmp_path / "two", jobs=2)
    assert not (tmp_path / "two").exists()


def start_dying() -> object:
    import subprocess

    return subprocess.Popen(["false"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_sample_changed_after_a_publish_is_found_by_the_next(lab: Path, tmp_path: Path) -> None:
    folder = sorted((lab / "data" / "runs").iterdir())[2]
    path = folder / "measurements.csv"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace(",2", ",3", 1)
    path.write_text("".join(lines))
    report = publish(lab)
    assert report.made == 1
    assert any("SHA-256 differs" in text for text in report.problems)
    assert MARK in (lab / "site" / "runs" / folder.name / "index.html").read_text()
    again = publish(lab)
    assert again.made == 0
    assert again.problems == report.problems  # what is not made again is told again
    assert digest(lab / "site") == anew(lab, tmp_path / "first")


def test_a_page_that_someone_changed_is_made_again(lab: Path) -> None:
    before = digest(lab / "site")
    page = next((lab / "site" / "runs").glob("*/index.html"))
    page.write_text("mine")
    assert publish(lab).made == 1
    assert digest(lab / "site") == before


def test_another_code_makes_every_page_again_but_not_for_the_page_of_one_run(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.lab.publish.build.code_key", lambda: "another")
    page = sorted((lab / "site" / "runs").glob("*/index.html"))
    before = [path.stat().st_ino for path in page]
    publish_run(lab, lab / "data" / "runs" / page[0].parent.name)
    assert [path.stat().st_ino == old for path, old in zip(page, before, strict=True)] == [False] + [True] * (RUNS - 1)
    assert publish(lab, jobs=1).made == RUNS - 1
    assert publish(lab).made == 0


@pytest.mark.parametrize("content", ["{half", '{"schema": 1, "runs": {"a": {"b": 1}}, "sweeps": {}}'])
def test_a_state_that_cannot_be_read_makes_all_anew(lab: Path, content: str) -> None:
    before = digest(lab / "site")
    state_file(lab / "site").write_text(content)
    assert publish(lab, jobs=1).made == RUNS
    assert digest(lab / "site") == before


def test_a_page_that_links_to_a_run_is_made_again_when_that_run_goes_or_comes(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    words = f"see {DONE}"
    killed = lab / "data" / "runs" / KILLED / "notebook.ipynb"
    killed.write_text(killed.read_text().replace("# Batched decode", f"# Batched decode, {words}"))
    publish(lab)
    page = lab / "site" / "runs" / KILLED / "index.html"
    assert f"../../runs/{DONE}/index.html" in page.read_text()
    shutil.move(lab / "data" / "runs" / DONE, tmp_path / "away")
    assert publish(lab).made == 1
    assert f"../../runs/{DONE}/index.html" not in page.read_text()
    shutil.move(tmp_path / "away", lab / "data" / "runs" / DONE)
    assert publish(lab).made == 2


def test_a_secret_in_a_page_that_stays_is_still_refused_by_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(tmp_path / "lab")
    secret = "hf_" + "a1B2c3D4" * 4
    folder = write_run(lab, record("20261202T000000Z-leaky-0000ffff"))
    (folder / "requests.jsonl").write_text(f'{{"prompt": "{secret}"}}\n')
    first = publish(lab)
    with pytest.raises(LabError, match=r"secrets found in 20261202T000000Z-leaky-0000ffff/requests\.jsonl"):
        publish(lab, strict=True)
    assert publish(lab).redactions == first.redactions
    assert secret not in state_file(lab / "site").read_text()


def test_a_name_that_has_become_private_is_masked_in_pages_made_before(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish(lab).made == 0
    monkeypatch.setattr("socket.gethostname", lambda: "llvmpipe")
    report = publish(lab, jobs=1)
    assert report.made == RUNS
    assert {hit.kind for hit in report.redactions} == {"host name"}


@pytest.mark.slow
def test_two_hundred_runs_are_published_within_a_minute_and_one_more_within_five_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = make_large_lab(tmp_path / "lab", 200)

    def timed(runs: int, made: int) -> float:
        used, start = sum(os.times()[:4]), time.perf_counter()
        report = publish(lab)
        wall, cpu = time.perf_counter() - start, sum(os.times()[:4]) - used
        assert (report.runs, report.made, report.problems) == (runs, made, ())
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        with capsys.disabled():
            print(
                f"\n{report.made} of {report.runs} runs: {wall:.1f} s, {cpu:.1f} s of processors, {most} MB at the most"
            )
        return wall

    assert timed(200, 200) < 60
    add_run(lab, 200)
    render(lab)
    assert timed(201, 1) < 5
