"""The site as a whole: what is on it, that it is the same each time, never half-written, and keeps secrets home."""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import nbformat
import pytest
from click.testing import CliRunner
from large_lab import requests, telemetry
from synthetic_lab import (
    BLOCKS,
    DONE,
    KILLED,
    PARTIAL,
    PLAN,
    PNG,
    QUESTION,
    make_lab,
    notebook,
    record,
    samples,
    write_run,
)

from labkit.commands.publish import command
from labkit.errors import LabError, RunError
from labkit.lab import ledger
from labkit.lab.measurements import Measurement, append_rows
from labkit.lab.plan import Rule
from labkit.lab.png import figure_mark, stamped
from labkit.lab.publish import publish, publish_run
from labkit.lab.publish.numbers import cell_table, main_number, number
from labkit.lab.verdict import judge

TOKEN = "hf_" + "a1B2c3D4" * 4


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return make_lab(tmp_path / "lab")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab with its site, only to be read."""
    root = make_lab(tmp_path_factory.mktemp("published") / "lab")
    publish(root)
    return root


class Addresses(HTMLParser):
    """Collects what a page refers to: `loads` are fetched by a browser by itself, `links` only when clicked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("src", "srcset", "data", "poster", "action", "background") or (name == "href" and tag != "a"):
                self.loads.append(value or "")
            elif name == "href":
                self.links.append(value or "")
            elif name == "id":
                self.ids.append(value or "")


def digest(site: Path) -> dict[str, str]:
    files = sorted(path for path in site.rglob("*") if path.is_file())
    return {path.relative_to(site).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def page_of(lab: Path, run_id: str) -> str:
    return (lab / "site" / "runs" / run_id / "index.html").read_text()


def test_a_lab_without_runs_publishes_an_index_that_says_how_to_begin(tmp_path: Path) -> None:
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    report = publish(tmp_path)
    assert (report.pages, report.runs, report.figures, report.problems) == (2, 0, 0, ())
    assert "./lab run batch-decode" in (tmp_path / "site" / "index.html").read_text()


def test_every_run_finished_killed_or_partial_has_a_page_and_the_index_lists_it(lab: Path) -> None:
    report = publish(lab)
    assert (report.runs, report.pages, report.problems) == (3, 6, ())
    index = (lab / "site" / "index.html").read_text()
    for run_id in (DONE, KILLED, PARTIAL):
        assert f'href="runs/{run_id}/index.html"' in index
    assert index.count(f">{QUESTION}</a></h2>") == 1  # one entry for the two runs that ask it
    assert "✓</span> confirmed" in index
    assert judge(PLAN, [Measurement(*row) for row in samples()]).number() in index
    assert "llvmpipe (LLVM 19.1.7, 256 bits)" in index
    assert "2026-12-01 00:16 UTC" in index


def test_a_run_page_holds_belief_rule_claims_checks_conditions_and_files(published: Path) -> None:
    page = page_of(published, DONE)
    for text in (
        "Eight streams give at least four times the tokens of one.",
        "decode_tok_s at width=8 over width=1, in each block: at least 4",
        "Anything about a GPU.",
        "ids equal the reference",
        "48 of 48",
        "Mesa 25.0.7",
        "smollm2-135m",
        "maxStorageBufferRange",
        "0a67793",
        'href="measurements.csv"',
        'href="notebook.ipynb"',
    ):
        assert text in page, text


@pytest.mark.parametrize(
    ("run_id", "words"),
    [
        (KILLED, ["This run was killed.", "killed in cell 4 of 8", "ValueError", "not run", "block 1"]),
        (PARTIAL, ["Not finished.", "It had done 12 of 60."]),
    ],
)
def test_the_page_of_an_unfinished_run_says_what_became_of_it(published: Path, run_id: str, words: list[str]) -> None:
    for word in words:
        assert word in page_of(published, run_id)
    assert "> confirmed<" not in page_of(published, run_id)


def test_the_audit_stands_on_a_finished_run_s_page_with_its_arithmetic_the_root_cause_first(lab: Path) -> None:
    """Eight streams, each thrice as fast as one alone: no step that reads the weights gets shorter by more rows."""
    path = lab / "data" / "runs" / DONE / "measurements.csv"
    rows = [Measurement(*row) for row in samples()]
    solo = {row.block: row.value for row in rows if row.metric == "decode_tok_s" and row.cell == '{"width":1}'}
    path.unlink()
    append_rows(
        path,
        [
            row._replace(value=24 * solo[row.block])
            if (row.metric, row.cell) == ("decode_tok_s", '{"width":8}')
            else row
            for row in rows
        ],
    )
    publish(lab)
    page = page_of(lab, DONE)
    audit = page[page.index('<h2 id="audit">') : page.index('<h2 id="conditions">')]
    first = audit[: audit.index("</details>")]
    assert "<strong>faster-than-solo</strong>" in first
    assert "fail</span>" in first
    assert re.search(r"<li><code>[^<]*= 3, of 1.10 at the most</code></li>", first)
    assert 'id="audit"' not in page_of(lab, KILLED)


def test_the_lines_on_the_page_recompute_its_main_number(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = re.search(r"<strong>([\d.]+)×</strong> \(geometric mean, n = (\d+)\)", page_of(published, DONE))
    below = page_of(published, DONE).partition('id="recompute"')[2]
    block = re.search(r'<pre class="code" tabindex="0"><code>(.*?)</code></pre>', below, re.DOTALL)
    assert shown
    assert block
    code = re.sub(r"<[^>]+>", "", block[1]).replace("&#39;", "'").replace("&quot;", '"').replace("&gt;", ">")
    monkeypatch.chdir(published / "site" / "runs" / DONE)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    value, n = printed.getvalue().split()
    assert (number(float(value)), n) == (shown[1], shown[2])
    speeds = {(row[0], row[2]): row[4] for row in samples() if row[3] == "decode_tok_s"}
    product = 1.0
    for each in range(BLOCKS):
        product *= speeds[each, '{"width":8}'] / speeds[each, '{"width":1}']
    assert float(value) == pytest.approx(product ** (1 / BLOCKS))


def test_a_main_number_without_a_control_is_the_metrics_mean_over_blocks() -> None:
    rows = [Measurement(block, 0, '{"n":1}', "ttft_s", value, "") for block, value in ((0, 2.0), (0, 8.0), (1, 9.0))]
    rule = Rule(metric="ttft_s", cell={"n": 1}, comparison="<=", threshold=1)
    found = main_number(rows, rule)
    assert found
    assert (found.value, found.n, found.text) == (pytest.approx(6.0), 2, "6")  # √(√(2 × 8) × 9)
    assert main_number(rows, PLAN.rule) is None
    negative = [row._replace(value=-row.value) for row in rows if row.value > 2]
    found = main_number(negative, rule)
    assert found
    assert (found.value, found.geometric) == (-8.5, False)


@pytest.mark.parametrize(
    "rule",
    [
        PLAN.rule,
        Rule(metric="gpu_ms_step", cell={"width": 32}, comparison="<=", threshold=1),
        Rule(metric="decode_tok_s", cell={"width": 2}, against={"width": 4}, comparison="same", margin=0.1),
    ],
)
def test_the_lines_give_the_effect_the_verdict_was_made_from(
    rule: Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Measurement(*row) for row in samples()]
    append_rows(tmp_path / "measurements.csv", rows)
    found, verdict = main_number(rows, rule), judge(PLAN.model_copy(update={"rule": rule}), rows)
    assert found
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(found.code, {})
    value, n = printed.getvalue().split()
    assert float(value) == pytest.approx(verdict.effect, rel=1e-12)
    assert found.value == pytest.approx(verdict.effect, rel=1e-12)
    assert int(n) == verdict.pairs == BLOCKS


def test_the_table_of_cells_is_in_the_order_of_the_knob_and_says_what_it_leaves_out() -> None:
    rows = [Measurement(0, 0, f'{{"n":{n}}}', f"m{m}", 1.0 * n, "") for n in (16, 2, 1) for m in range(9)]
    table = cell_table(rows, "m8")
    assert table
    assert [line.name for line in table.lines] == ["n=1", "n=2", "n=16"]
    assert table.metrics[0] == "m8"
    assert table.left_out == "2 more metrics"


def test_each_number_of_the_table_has_its_lines_of_the_csv_and_python_that_gives_it(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = published / "site" / "runs" / DONE
    table = cell_table([Measurement(*row) for row in samples()], "decode_tok_s")
    assert table
    stored = (folder / "measurements.csv").read_text().splitlines()
    monkeypatch.chdir(folder)
    page = page_of(published, DONE)
    for place, line in enumerate(table.lines, 1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(line.code, {})
        given = [words.split() for words in printed.getvalue().splitlines()]
        for column, (one, (metric, value, n)) in enumerate(zip(line.numbers, given, strict=True), 1):
            assert one
            assert (one.metric, one.text, one.n) == (metric, number(float(value)), int(n))
            assert len(one.lines) == BLOCKS
            assert set(one.lines) <= set(stored)
            assert f'<a href="#number-{place}-{column}">{one.text}</a>' in page
            assert f'id="number-{place}-{column}"' in page


def test_knobs_that_all_cells_have_alike_are_said_once() -> None:
    rows = [Measurement(0, 0, f'{{"kv":"f16","n":{n},"quant":"q4"}}', "ttft_s", 1.0, "") for n in (1, 2)]
    table = cell_table(rows)
    assert table
    assert ([line.name for line in table.lines], table.common) == (["n=1", "n=2"], "kv=f16, quant=q4")
    assert "quant" in table.lines[0].code  # what is looked up in the CSV is the whole cell
    alone = cell_table(rows[:1])
    assert alone
    assert (alone.lines[0].name, alone.common) == ("kv=f16, n=1, quant=q4", "")


def test_the_lines_of_a_run_of_many_samples_are_cut_and_the_page_says_how_many_are_left() -> None:
    rows = [Measurement(b, b, f'{{"n":{n}}}', "ttft_s", 1 / (1 + b), "") for n in range(50) for b in range(500)]
    table = cell_table(rows)
    assert table
    assert sum(len(text) for line in table.lines for one in line.numbers if one for text in one.lines) < 130_000
    assert [one.left_out for line in table.lines[:2] for one in line.numbers if one] == [480, 480]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.8158, "5.816"),
        (132.24, "132.2"),
        (4815814.0, "4,815,814"),
        (0.00123, "0.001230"),
        (1e-9, "1.000e-09"),
        (0.0, "0"),
        (246.0, "246"),
    ],
)
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_nothing_a_page_loads_lies_outside_the_site_and_all_of_it_is_there(published: Path) -> None:
    site = published / "site"
    for page in site.rglob("*.html"):
        found = Addresses(page.read_text())
        for address in [*found.loads, *found.links]:
            parts = urlparse(address)
            if parts.scheme == "data" or (address in found.links and parts.scheme in ("http", "https")):
                continue
            assert not parts.scheme, (page, address)
            assert not parts.netloc, (page, address)
            if parts.path:
                assert (page.parent / unquote(parts.path)).is_file(), (page, address)
        for address in found.links:
            target = (page.parent / address.partition("#")[0]) if address.partition("#")[0] else page
            if "#" in address and not urlparse(address).scheme:
                assert address.partition("#")[2] in Addresses(target.read_text()).ids, (page, address)
        outside = [link for link in found.links if urlparse(link).scheme]
        assert set(outside) <= {"https://example.org/paper", "https://example.org/source"}  # what the authors wrote
        assert "cdn" not in page.read_text()


def test_a_page_is_light_and_plotly_is_there_once(published: Path) -> None:
    assert [path.stat().st_size > 3_000_000 for path in (published / "site").rglob("*.js")].count(True) == 1
    assert max(path.stat().st_size for path in (published / "site").rglob("*.html")) < 1_000_000


def test_a_flood_of_output_and_figures_still_gives_a_page_under_a_megabyte(lab: Path) -> None:
    document = notebook()
    flood = nbformat.v4.new_output("stream", name="stdout", text=("x" * 500 + "\n") * 300)
    document.cells += [nbformat.v4.new_code_cell("flood()", execution_count=9, outputs=[flood]) for _ in range(40)]
    picture = document.cells[5].outputs[0]
    document.cells.append(nbformat.v4.new_code_cell("figures()", execution_count=10, outputs=[picture] * 100))
    folder = write_run(lab, record("20261202T000000Z-flood-0000ffff"), document=document)
    cells = [f'{{"kv":"f16","prompt":"{n}","streams":{n},"words":"\\"quoted\\""}}' for n in range(80)]
    known = ("decode_tok_s", "step_ms", "gpu_ms_step", "host_ms_step", "dispatches", "achieved_gb_s", "power_w")
    (folder / "measurements.csv").unlink()
    append_rows(
        folder / "measurements.csv",
        [
            Measurement(b, b, cell, name, 1 + b / 7, "2026-12-02T00:00:00Z")
            for cell in cells
            for name in known
            for b in range(20)
        ],
    )
    (folder / "telemetry.csv").write_text(telemetry(20_000))
    (folder / "requests.jsonl").write_text(requests())
    publish(lab)
    assert (lab / "site/runs/20261202T000000Z-flood-0000ffff/index.html").stat().st_size < 1_000_000


def test_publishing_twice_gives_the_same_bytes(lab: Path) -> None:
    publish(lab)
    first = digest(lab / "site")
    publish(lab)
    assert digest(lab / "site") == first
    publish_run(lab, lab / "data" / "runs" / DONE)
    assert digest(lab / "site") == first


def test_one_runs_page_is_made_from_nothing_with_index_and_assets(lab: Path) -> None:
    page = publish_run(lab, lab / "data" / "runs" / DONE)
    assert page == lab / "site" / "runs" / DONE / "index.html"
    one_by_one = digest(lab / "site")
    publish(lab)
    assert digest(lab / "site") == one_by_one


def test_a_new_runs_page_joins_the_site_without_touching_the_others(lab: Path) -> None:
    publish(lab)
    untouched = lab / "site" / "runs" / DONE / "index.html"
    untouched.write_text("kept as it is")
    new = write_run(lab, record("20261203T000000Z-another-12345678"))
    assert publish_run(lab, new).is_file()
    assert untouched.read_text() == "kept as it is"
    assert "20261203T000000Z-another-12345678" in (lab / "site" / "index.html").read_text()


def test_a_run_that_became_final_replaces_its_partial_page(lab: Path) -> None:
    partial = lab / "data" / "runs" / f".partial-{PARTIAL}"
    publish_run(lab, partial)
    assert "Not finished." in page_of(lab, PARTIAL)
    final = partial.rename(partial.with_name(PARTIAL))
    (final / "run.json").write_text(record(PARTIAL).to_json())
    publish_run(lab, final)
    assert "Not finished." not in page_of(lab, PARTIAL)


def test_a_removed_run_leaves_the_site_at_the_next_publish(lab: Path) -> None:
    publish(lab)
    (lab / "data" / "runs" / KILLED).rename(lab / "elsewhere")
    publish(lab)
    assert not (lab / "site" / "runs" / KILLED).exists()
    assert KILLED not in "".join(page.read_text() for page in (lab / "site").rglob("*.html"))


def test_a_folder_that_is_no_site_is_not_overwritten(lab: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    for target in (mine, lab, lab.parent, mine / "thesis.txt"):
        with pytest.raises(LabError, match="--out"):
            publish(lab, target)
    assert (mine / "thesis.txt").read_text() == "years"
    (tmp_path / "empty").mkdir()
    assert publish(lab, tmp_path / "empty").pages == 6


def test_a_publish_that_fails_leaves_the_old_site_whole(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(lab)
    before = digest(lab / "site")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("labkit.lab.publish.build.write_shared", full)
    with pytest.raises(OSError, match="no space left"):
        publish(lab)
    assert digest(lab / "site") == before
    assert [path.name for path in lab.iterdir() if path.name.startswith(".site-")] == []


def test_a_site_whose_publisher_died_between_the_renames_comes_back(lab: Path) -> None:
    publish(lab)
    (lab / "site").rename(lab / ".site-old")
    (lab / ".site-new-1").mkdir()
    publish_run(lab, lab / "data" / "runs" / DONE)
    assert (lab / "site" / "runs" / KILLED / "index.html").is_file()
    assert not list(lab.glob(".site-*"))


def test_publishes_at_the_same_time_all_succeed_and_a_reader_never_sees_half_a_site(lab: Path) -> None:
    publish(lab)
    failures: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            publish_run(lab, lab / "data" / "runs" / DONE)
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        while not done.is_set():
            try:
                text = (lab / "site" / "index.html").read_text()
            except FileNotFoundError:  # between the two renames there is no site for a moment, never half of one
                continue
            if not text.endswith("</html>\n"):
                failures.append(AssertionError(f"half an index: {text[-60:]!r}"))

    writers = [threading.Thread(target=write) for _ in range(4)]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert failures == []


def test_secrets_homes_and_names_are_masked_in_pages_and_files_and_counted(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "workstation7")
    document = notebook()
    text = f"token {TOKEN}\n{Path.home()}/models/x.gguf on workstation7\n"
    document.cells.append(
        nbformat.v4.new_code_cell("x", execution_count=9, outputs=[nbformat.v4.new_output("stream", text=text)])
    )
    run_id = "20261202T000000Z-leaky-0000ffff"
    write_run(lab, record(run_id), document=document)
    report = publish(lab)
    files = [path for path in (lab / "site").rglob("*") if path.is_file() and path.suffix != ".js"]
    everything = b"".join(path.read_bytes() for path in files)
    for private in (TOKEN, f"{Path.home()}/models", "workstation7"):
        assert private.encode() not in everything
    hits = {(hit.file, hit.kind): hit.times for hit in report.redactions}
    assert hits == {(f"{run_id}/notebook.ipynb", kind): 1 for kind in ("secret", "home path", "host name")}
    assert "private names masked" in page_of(lab, run_id)
    assert nbformat.reads((lab / "site" / "runs" / run_id / "notebook.ipynb").read_text(), 4)


def test_strict_publishes_nothing_when_there_is_a_secret(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab / "FINDINGS.md").write_text(f"# Findings\n\nGet it with {TOKEN}.\n")
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    with pytest.raises(LabError, match=r"secrets found in FINDINGS\.md \(1\)") as caught:
        publish(lab, strict=True)
    assert caught.value.exit_code == 2
    assert TOKEN not in str(caught.value)
    assert not (lab / "site").exists()
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    assert "FINDINGS.md: 1 secret" in result.output


def test_damage_in_a_run_is_said_on_its_page_and_in_the_report_and_the_rest_is_published(lab: Path) -> None:
    folder = lab / "data" / "runs" / DONE
    (folder / "figure.json").write_text("{half")
    (folder / "notebook.ipynb").write_bytes(b"\xff\xfe")
    (folder / "measurements.csv").write_text("block,order,cell,metric,value,utc\n1,2\n")
    (folder / "plan.json").write_text('{"experiment": "x"}')
    (lab / "data" / "runs" / KILLED / "run.json").write_text("{}")
    report = publish(lab)
    page = page_of(lab, DONE)
    for name in ("figure.json", "notebook.ipynb", "measurements.csv", "plan.json"):
        assert f"{name} could not be read" in page or f"{name}, line" in page
        assert any(DONE in text and name in text for text in report.problems)
    assert any(KILLED in text for text in report.problems)
    assert "Not shown" in (lab / "site" / "index.html").read_text()
    assert page_of(lab, PARTIAL)


def test_a_folder_without_a_record_cannot_be_published_as_a_run(lab: Path) -> None:
    (lab / "data" / "runs" / "nothing").mkdir()
    with pytest.raises(RunError, match=r"no run\.json"):
        publish_run(lab, lab / "data" / "runs" / "nothing")


def test_the_index_shows_what_the_ledger_holds_and_links_to_its_entry(lab: Path) -> None:
    for name in ("FINDINGS.md", "MISTAKES.md"):
        (lab / name).unlink()
    folders = [lab / "data" / "runs" / DONE]
    folders += [write_run(lab, record(f"2026120{day}T101500Z-batch-decode-0000000{day}")) for day in (2, 3)]
    for folder in folders:
        ledger.append(lab, folder)
    report = publish(lab)
    index = (lab / "site" / "index.html").read_text()
    assert "finding · 30 pairs in 3 sessions" in index
    target = re.search(r'href="findings\.html#(batch-decode-[^"]+)"', index)
    assert target
    findings = (lab / "site" / "findings.html").read_text()
    assert f'<h2 id="{target[1]}">' in findings
    assert '<span class="badge confirmed"><span aria-hidden="true">✓</span> confirmed</span>' in findings
    for run in folders:  # each of its sessions leads to its page, and each of their own anchors is kept
        assert f'href="runs/{run.name}/index.html"' in findings
    assert len(re.findall(r'<a id="batch-decode-', findings)) == 2
    assert report.problems == ()


def test_a_claim_the_ledger_withheld_is_not_shown_as_one(lab: Path) -> None:
    folder = write_run(lab, record("20261202T101500Z-batch-decode-00000002"))
    claims = ["Eight streams decode 5.8 times the tokens of one.", "Eight streams decode 9.9 times the tokens of one."]
    (folder / "conclusion.json").write_text(json.dumps({"claims": claims, "should_not_claim": []}))
    page = publish_run(lab, folder).read_text()
    assert "What its notebook claims" in page
    assert "Not checked: the run is not in the ledger." in page
    ledger.append(lab, folder)
    page = publish_run(lab, folder).read_text()
    can, withheld = page.index("What can be claimed"), page.index("Withheld: the data do not bear it out")
    assert can < page.index(claims[0]) < withheld < page.index(claims[1])


def test_an_entry_whose_runs_are_gone_keeps_its_place_in_the_index(lab: Path) -> None:
    ledger.append(lab, lab / "data" / "runs" / DONE)
    for run_id in (DONE, KILLED):
        shutil.rmtree(lab / "data" / "runs" / run_id)
    publish(lab)
    index = (lab / "site" / "index.html").read_text()
    assert f">{QUESTION}</a></h2>" in index
    assert "Its runs are not in this lab." in index


def test_a_damaged_event_is_a_problem_that_is_told(lab: Path) -> None:
    (event,) = ledger.append(lab, lab / "data" / "runs" / DONE)
    event.write_text(event.read_text().replace("confirmed", "refuted"))
    assert any(event.name in problem for problem in publish(lab).problems)


def test_text_from_a_record_cannot_become_markup(lab: Path) -> None:
    evil = "<script>alert(1)</script>"
    write_run(lab, record("20261202T000000Z-evil-0000ffff", reason=evil, state="failed", parameters={evil: evil}))
    publish(lab)
    page = page_of(lab, "20261202T000000Z-evil-0000ffff")
    assert evil not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_command_prints_what_it_revealed_and_where(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    assert "published 6 pages (3 runs, 7 figures)" in result.output
    assert result.output.rstrip().endswith(f"open {lab / 'site' / 'index.html'}")


def test_the_command_says_what_a_reader_finds_in_the_files_and_names(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    output = CliRunner().invoke(command, []).output
    assert re.search(r"\n  3 run\.json, [\d.]+ kB: device with its UUID", output)
    assert re.search(r"\n  3 notebook\.ipynb, [\d.]+ kB: code, text and every output\n", output)
    assert "  devices: llvmpipe (LLVM 19.1.7, 256 bits)\n" in output
    assert "  processors: a processor\n" in output
    assert "telemetry.csv" not in output  # there is none


def test_a_dry_run_says_what_it_would_reveal_and_writes_nothing(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    before = sorted(lab.rglob("*"))
    result = CliRunner().invoke(command, ["--dry-run"])
    assert result.exit_code == 0
    assert result.output.startswith("would publish 6 pages (3 runs, 7 figures)")
    assert "devices: llvmpipe" in result.output
    assert result.output.endswith("nothing was written\n")
    assert [path for path in sorted(lab.rglob("*")) if path not in before and path.name != ".site.lock"] == []
    publish(lab)
    site = digest(lab / "site")
    (lab / "FINDINGS.md").write_text("# Findings\n\nAnother.\n")
    publish(lab, dry_run=True)
    assert digest(lab / "site") == site


def test_an_experiment_without_a_picture_is_named_and_drawn_when_asked_for(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Path] = []

    def draw(figure: Path, target: Path) -> bool:
        drawn.append(figure)
        target.write_bytes(stamped(PNG, figure_mark(figure)))
        return True

    write_run(lab, record("20261203T000000Z-kv-type-12345678"))
    newest = write_run(lab, record("20261204T000000Z-kv-type-12345678"))
    write_run(lab, record("20261205T000000Z-kv-type-12345678", state="failed", verdict=None))
    (lab / "figures" / "batch-decode.png").write_bytes(b"as it was")
    assert publish(lab).without_picture == ("kv-type",)
    monkeypatch.setattr("labkit.lab.png.find_browser", lambda: None)
    report = publish(lab, pictures=True)
    assert report.problems == ("no picture of kv-type was drawn: that needs Chrome or Chromium, and none was found",)
    monkeypatch.setattr("labkit.lab.png.find_browser", lambda: "/usr/bin/chromium")
    monkeypatch.setattr("labkit.lab.png.write_png", draw)
    assert publish(lab, pictures=True).without_picture == ()
    assert drawn == [newest / "figure.json"]
    assert (lab / "figures" / "batch-decode.png").read_bytes() == b"as it was"
    later = write_run(lab, record("20261206T000000Z-kv-type-12345678"))
    (later / "figure.json").write_text((later / "figure.json").read_text() + "\n")  # another figure, by a byte
    assert publish(lab, jobs=1).without_picture == ("kv-type",)
    look = write_run(
        lab, record("20261207T000000Z-kv-type-12345678", verdict=(record(DONE).verdict or {}) | {"strength": "look"})
    )
    (look / "figure.json").write_text((look / "figure.json").read_text() + "\n\n")
    assert publish(lab, jobs=1, pictures=True).without_picture == ()
    assert drawn[1:] == [later / "figure.json"]  # a look does not take the place of a result's picture
    assert 'src="figures/kv-type.png"' in (lab / "site" / "index.html").read_text()


def test_the_command_gives_the_same_as_json(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(lab))
    result = CliRunner().invoke(command, ["--json", "--out", str(tmp_path / "public")])
    report = json.loads(result.output)
    assert (report["pages"], report["runs"], report["figures"], report["redactions"]) == (6, 3, 7, [])
    assert report["files"] == sum(len(files) for _, _, files in os.walk(tmp_path / "public"))
