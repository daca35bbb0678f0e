"""A person's own notes taken into the ledger: every byte as it stood, by date, once; a broken file changes nothing."""

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ledger_runs import BELIEF, make_lab, make_run

from labkit.cli import lab as lab_command
from labkit.errors import LabError, LedgerError
from labkit.lab.events import ImportedEvent, events_folder, read_events
from labkit.lab.ledger import append, import_notes, render
from labkit.lab.notes_file import date_of, pieces_of, read_notes, sections
from labkit.lab.recheck import verify
from labkit.lab.render import LEDGERS

FINDINGS = """# Findings

What I know of my card. Newest first.

## 2026-09-14 · Sixty streams without a drafter give 1,915 tok/s
`vllm` `concurrency`
- **1915.5 tok/s** at n = 60; <b>12</b> residents with the drafter on | off
→ [docs/14 §2](docs/14.md)

## ~~2026-09-11 - MTP pays at batch~~
**corrected 2026-09-14**: it did not; see above.

### What was measured

```
## 2026-01-01 · not a heading, this is a log
```

### 2026-09-02 · Third level, dated

Two spaces at the end  \n\tand a tab.

## Habits

Power cap 330 W.
"""
LEVERS = """# Levers

Comparisons, not a build guide.

| Lever | Swept | Measured effect |
|---|---|:---:|
| **KV type** | q8_0, f16 | +3 % at depth 32k |
| **Power cap** | 250-350 W |  -4 %   |

## Blocked

| Lever | Why |
|---|---|
| flash attention | no kernel |

See OPEN-PROBLEMS.
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_lab(tmp_path / "lab")
    monkeypatch.setenv("LABKIT_LAB", str(root))
    return root


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab_command, arguments)


def put(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / "mine" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def everything(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "text",
    [
        FINDINGS,
        LEVERS,
        FINDINGS.replace("\n", "\r\n"),
        "\ufeff" + FINDINGS,
        "## 2026-01-02 · a\n```\n## 2026-01-01 · in a fence that never closes",
        "<!--\n## 2026-01-01 · in a comment\n-->\n## 2026-01-02 · b\u2028\x0b\x85 c\n",
        "\n\n   \n### one\n### two\n",
        "no heading at all",
    ],
    ids=["findings", "levers", "crlf", "bom", "open-fence", "comment", "third-level", "prose"],
)
def test_the_sections_of_a_file_joined_are_the_file(text: str) -> None:
    assert "".join(section for section, _ in sections(text)) == text


@pytest.mark.parametrize(
    ("title", "day"),
    [
        ("2026-11-05 · x", "2026-11-05"), ("2026/11/05 x", "2026-11-05"), ("4 Nov 2026: x", "2026-11-04"),
        ("**4 November 2026** x", "2026-11-04"), ("14. sept. 2026", "2026-09-14"), ("2026-11-05T10:00Z x", "2026-11-05"),
        ("2026.11.5", "2026-11-05"), ("2026-02-30 · x", ""), ("2026-11/05", ""), ("31 Nov 2026", ""),
        ("05/11/2026 x", ""), ("16 layers 2026", ""), ("Habits", ""), ("2026-11-055", ""),
    ],
)  # fmt: skip
def test_the_date_of_a_heading_is_read_in_three_forms_and_no_other(title: str, day: str) -> None:
    assert date_of(title) == day


def test_a_heading_that_cannot_be_dated_is_taken_without_a_date_and_told(lab: Path, tmp_path: Path) -> None:
    path = put(tmp_path, "FINDINGS.md", "## 2026-09-31 · x\na\n## 05/11/2026 y\nb\n## 4 Nov 2026 z\nc\n## 0.1.0 w\nd\n")
    done = call("ledger", "import", str(path))
    assert done.exit_code == 0
    told = "is taken as no date; a heading's date is written as 2026-11-05, 2026/11/05 or 4 Nov 2026"
    assert done.stderr.splitlines() == [
        f"lab: FINDINGS.md, line 1: 2026-09-31 {told}",
        f"lab: FINDINGS.md, line 3: 05/11/2026 {told}",
    ]
    assert "4 imported (1 of 4 dated), marked unverified" in done.stdout
    assert call("ledger", "verify").exit_code == 0


def test_a_section_begins_where_a_reader_sees_one() -> None:
    found = [(piece.dated, piece.text.split("\n")[0]) for piece in pieces_of(FINDINGS)]
    assert found == [
        ("", "# Findings"),
        ("2026-09-14", "## 2026-09-14 · Sixty streams without a drafter give 1,915 tok/s"),
        ("2026-09-11", "## ~~2026-09-11 - MTP pays at batch~~"),
        ("2026-09-02", "### 2026-09-02 · Third level, dated"),
        ("", "## Habits"),
    ]
    assert [piece.text for piece in pieces_of("### one\n\n### two\nx")] == ["### one\n\n", "### two\nx"]
    assert list(pieces_of("# A title alone\n")) == []


def test_each_row_of_levers_is_a_piece_of_its_own() -> None:
    rows = [piece for piece in pieces_of(LEVERS, by_rows=True) if piece.table]
    assert [row.text for row in rows] == [
        "| **KV type** | q8_0, f16 | +3 % at depth 32k |",
        "| **Power cap** | 250-350 W |  -4 %   |",
        "| flash attention | no kernel |",
    ]
    assert rows[2].table == "## Blocked\n| Lever | Why |\n|---|---|"
    rest = [piece.text for piece in pieces_of(LEVERS, by_rows=True) if not piece.table]
    assert [text.split("\n")[0] for text in rest] == ["# Levers", "## Blocked"]
    assert "See OPEN-PROBLEMS." in rest[1]


def test_notes_are_taken_byte_for_byte_sorted_in_by_date_and_marked_unverified(lab: Path, tmp_path: Path) -> None:
    append(lab, make_run(lab, 5.0))
    path = put(tmp_path, "FINDINGS.md", FINDINGS)
    done = call("ledger", "import", str(path))
    assert done.output == "FINDINGS.md: 5 imported (3 of 5 dated), marked unverified\n"
    text = (lab / "FINDINGS.md").read_bytes().decode()
    for section, _ in sections(FINDINGS):
        assert section.strip("\n") in text
    places = [text.index(words) for words in (BELIEF, "Sixty streams", "MTP pays", "Third level", "## Habits")]
    assert places == sorted(places)
    sha = hashlib.sha256(FINDINGS.encode()).hexdigest()
    assert text.count(f"from FINDINGS.md (SHA-256 {sha[:12]})") == 5
    assert text.count("*Unverified: imported on ") == 5
    events = read_events(lab).of(ImportedEvent)
    assert "".join(event.text for event in events) == FINDINGS
    assert {event.file_sha256 for event in events} == {sha}
    assert verify(lab).sound
    assert verify(lab).imported == 5
    assert render(lab).changed == ()


def test_importing_again_takes_only_what_is_new(lab: Path, tmp_path: Path) -> None:
    path = put(tmp_path, "FINDINGS.md", FINDINGS)
    call("ledger", "import", str(path))
    before = everything(lab)
    done = call("ledger", "import", str(path))
    assert done.output == "FINDINGS.md: 0 imported (3 of 5 dated, 5 here already), marked unverified\n"
    assert everything(lab) == before
    put(tmp_path, "FINDINGS.md", FINDINGS + "\n## 2026-10-01 · One more\n\nx\n")
    assert json.loads(call("ledger", "import", str(path), "--json").output)[0]["new"] == 2  # Habits gained a blank line
    put(tmp_path, "LEVERS.md", LEVERS)
    call("ledger", "import", str(tmp_path / "mine" / "LEVERS.md"))
    put(tmp_path, "LEVERS.md", LEVERS.replace("| **Power", "| ub | 512, 2048 | +9 % |\n| **Power"))
    assert json.loads(call("ledger", "import", str(tmp_path / "mine" / "LEVERS.md"), "--json").output)[0]["new"] == 1
    levers = (lab / "LEVERS.md").read_text()
    assert levers.count("| **KV type** | q8_0, f16 | +3 % at depth 32k |") == 1
    assert levers.index("| ub | 512") < levers.index("## Blocked")


def test_a_secret_in_notes_is_told_since_they_are_kept_as_they_stood(lab: Path, tmp_path: Path) -> None:
    done = call("ledger", "import", str(put(tmp_path, "FINDINGS.md", "## 2026-09-01 · x\n\nhf_" + "a1B2c3D4" * 4)))
    assert "holds what looks like a secret" in done.output
    assert "without data: 0 notes by hand, 1 imported pieces" in call("ledger", "list").output


def test_equal_sections_of_one_file_are_each_kept(lab: Path, tmp_path: Path) -> None:
    twice = "## 2026-09-01 · Same\n\nx\n\n" * 2
    call("ledger", "import", str(put(tmp_path, "MISTAKES.md", twice)))
    assert (lab / "MISTAKES.md").read_text().count("## 2026-09-01 · Same") == 2


def test_notes_with_windows_line_endings_stay_as_they_are(lab: Path, tmp_path: Path) -> None:
    text = FINDINGS.replace("\n", "\r\n")
    import_notes(lab, [put(tmp_path, "FINDINGS.md", text)])
    assert b"`vllm` `concurrency`\r\n- **1915.5" in (lab / "FINDINGS.md").read_bytes()
    assert verify(lab).sound
    assert render(lab).changed == ()


@pytest.mark.parametrize("left", ["```\nnever closed", "~~~~\n```", "<!-- never closed"])
def test_what_a_piece_leaves_open_does_not_swallow_the_next(lab: Path, tmp_path: Path, left: str) -> None:
    import_notes(lab, [put(tmp_path, "MISTAKES.md", f"## 2026-09-02 · Open\n\n{left}")])
    import_notes(lab, [put(tmp_path, "MISTAKES.md", "## 2026-09-01 · Older\n\nx")])
    from labkit.lab.publish.markdown import render as html

    page = html((lab / "MISTAKES.md").read_text(), lambda url: None)
    assert page.count("<h2") == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("notes.md", "## 2026-09-01 · x\n", "is not named as a ledger; name it FINDINGS.md, LEVERS.md"),
        ("FINDINGS.md", b"## 2026-09-01 \xb7 x\n", "is not UTF-8 text (byte 14)"),
        ("FINDINGS.md", "## 2026-09-01 · x\n\0\n", "line 2, holds a NUL byte"),
        ("FINDINGS.md", "\n# Findings\n", "holds no notes"),
        ("FINDINGS.md", "## a\n<<<<<<< ours\n=======\n>>>>>>> theirs\n", "line 2, holds marks of an unresolved merge"),
        ("FINDINGS.md", '## a\n<a id="x"></a> <!-- rendered 0 -->\n', "line 2, holds what labkit rendered"),
        ("FINDINGS.md", "## 2026-09-01 · x\n" * 5001, "holds 5,001 entries"),
    ],
)
def test_a_broken_file_is_one_line_and_changes_nothing(
    lab: Path, tmp_path: Path, name: str, content: str | bytes, words: str
) -> None:
    good = put(tmp_path, "LEVERS.md", LEVERS)
    before = everything(lab)
    done = call("ledger", "import", str(good), str(put(tmp_path, name, content)))
    assert isinstance(done.exception, LabError)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)
    assert everything(lab) == before


def test_a_file_of_a_gigabyte_is_refused_without_being_read(lab: Path, tmp_path: Path) -> None:
    path = put(tmp_path, "FINDINGS.md", "## 2026-09-01 · x\n")
    with path.open("r+b") as file:
        file.truncate(1 << 30)  # sparse
    with pytest.raises(LedgerError, match="has 1,073,741,824 bytes; notes have at most"):
        read_notes(path)
    assert not events_folder(lab).exists()


@pytest.mark.parametrize("name", LEDGERS)
def test_a_ledger_of_a_gigabyte_line_stops_a_note_before_it_is_written(lab: Path, name: str) -> None:
    with (lab / name).open("ab") as file:
        file.truncate(1 << 30)
    done = call("note", "finding", "the fan is loud")
    assert isinstance(done.exception, LedgerError)
    assert f"{name} has 1,073,741,824 bytes, more than a ledger can have" in str(done.exception)
    assert list(events_folder(lab).glob("*.json")) == []
    assert any(fault.where == name and fault.kind == "damaged" for fault in verify(lab).faults)


def test_the_lab_s_own_rendered_ledger_is_not_a_person_s_notes(lab: Path) -> None:
    call("note", "finding", "the fan is loud")
    with pytest.raises(LedgerError, match="holds what labkit rendered"):
        read_notes(lab / "FINDINGS.md")
