"""A run that travels: exported as one redacted zip that says what it reveals, imported whole or not at all."""

import hashlib
import io
import json
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ledger_runs import make_lab, make_run

from labkit.cli import lab as lab_command
from labkit.errors import LabError, RunError
from labkit.lab.archive import MANIFEST
from labkit.lab.export import export_run
from labkit.lab.folder import hash_artefacts
from labkit.lab.importing import import_run
from labkit.lab.ledger import append
from labkit.lab.recheck import verify
from labkit.lab.record import read_record, update_record

TOKEN = "hf_" + "a1B2c3D4" * 4
Entries = list[tuple[zipfile.ZipInfo, bytes]]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(lab_command, arguments)


def whole_run(root: Path, **fields: Any) -> Path:
    """A run with a notebook, requests and a log, every file's hash in its record."""
    folder = make_run(root, 5.0, **fields)
    (folder / "requests.jsonl").write_text('{"prompt_tokens": 4, "completion_tokens": 67, "prompt_sha256": "ab"}\n')
    (folder / "log.txt").write_text("block 0\n")
    document = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "notebook.ipynb").write_text(json.dumps(document))
    update_record(folder, lambda _: {"artefacts": hash_artefacts(folder)})
    (folder / ".write").unlink()
    return folder


@pytest.fixture
def away(tmp_path: Path) -> Path:
    return make_lab(tmp_path / "away")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_lab(tmp_path / "home")
    monkeypatch.setenv("LABKIT_LAB", str(root))
    return root


@pytest.fixture
def zipped(away: Path, tmp_path: Path) -> Path:
    return export_run(whole_run(away), tmp_path / "run.zip").path


def everything(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def folders(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}


def test_a_run_comes_home_with_every_byte_and_the_home_lab_judges_and_enters_it(
    away: Path, home: Path, zipped: Path
) -> None:
    [original] = (away / "data" / "runs").iterdir()
    done = call("import", str(zipped), "--no-page")
    assert done.exit_code == 0, done.output
    folder = home / "data" / "runs" / original.name
    came = json.loads((folder / "import.json").read_text())
    assert came["archive_sha256"] == hashlib.sha256(zipped.read_bytes()).hexdigest()
    assert {n: c for n, c in everything(folder).items() if n not in ("import.json", "audit.json")} == everything(
        original
    )
    assert (folder / "audit.json").is_file()  # made here
    text = (home / "FINDINGS.md").read_text()
    assert "is **5.000× [4.972, 5.028]**" in text
    assert f"**Measured elsewhere**: {original.name} came in an archive (SHA-256 {came['archive_sha256'][:12]})" in text
    assert verify(home).faults == ()


def test_importing_again_changes_nothing(home: Path, zipped: Path) -> None:
    call("import", str(zipped), "--no-page")
    before = everything(home)
    done = call("import", str(zipped), "--no-page")
    assert done.exit_code == 0
    assert "is here already" in done.output
    assert everything(home) == before


def test_the_same_run_gives_the_same_bytes(away: Path, tmp_path: Path) -> None:
    folder = whole_run(away)
    one = export_run(folder, tmp_path / "one.zip")
    for path in folder.iterdir():
        path.touch()
    two = export_run(folder, tmp_path / "two.zip")
    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.sha256 == hashlib.sha256(one.path.read_bytes()).hexdigest()
    assert export_run(folder, tmp_path / "one.zip").sha256 == one.sha256  # over itself


def test_what_it_reveals_is_printed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = whole_run(home, parameters={"prompts": ["The sea", "Rain"], "tokens": 24})
    (folder / "log.txt").write_text("loading /opt/models/private/x.gguf\n")
    update_record(folder, lambda _: {"artefacts": hash_artefacts(folder)})
    monkeypatch.chdir(tmp_path)
    done = call("export", folder.name)
    assert done.exit_code == 0, done.output
    for words in ("A card, UUID 0000", "radv Mesa 25.0.7", "SmolLM2-135M-Instruct (SHA-256 abab", "a processor, 2 cores",
                  "2 texts among the parameters; hashes, lengths and times of 1 requests", "commit 0a677930",
                  "/opt/models/private/x.gguf", "its code and what it printed", "log.txt"):  # fmt: skip
        assert words in done.output, words
    assert (tmp_path / f"{folder.name}.zip").is_file()
    document = json.loads(call("export", folder.name, "--json").output)
    assert document["reveals"]["device"].startswith("A card")


def test_secrets_and_names_are_masked_and_the_masked_run_still_verifies(away: Path, home: Path, tmp_path: Path) -> None:
    folder = whole_run(away, parameters={"note": f"with {TOKEN}"})
    (folder / "log.txt").write_text(f"token={TOKEN}\n/home/marguerite/x\n")
    update_record(folder, lambda _: {"artefacts": hash_artefacts(folder)})
    done = export_run(folder, tmp_path / "run.zip")
    assert {(hit.file.rpartition("/")[2], hit.kind) for hit in done.redactions} >= {
        ("log.txt", "secret"),
        ("run.json", "secret"),
    }
    for name, content in read_zip(done.path):
        assert TOKEN.encode() not in content, name
        assert b"marguerite" not in content, name
    came = import_run(home, done.path)
    assert came.record.artefacts["log.txt"] == hashlib.sha256((came.folder / "log.txt").read_bytes()).hexdigest()
    append(home, came.folder)
    assert verify(home).faults == ()
    assert import_run(away, done.path).new is False  # the lab it was made in knows it for its own


def test_a_running_run_and_a_link_are_not_exported(away: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is still running"):
        export_run(make_run(away, number=1, state="running"), tmp_path / "x.zip")
    folder = make_run(away, number=2)
    (folder / "log.txt").symlink_to("/etc/passwd")
    with pytest.raises(RunError, match=r"log\.txt is a link"):
        export_run(folder, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_what_a_lab_puts_beside_a_run_stays_in_that_lab(away: Path, home: Path, tmp_path: Path) -> None:
    folder = whole_run(away)
    (folder / "audit.json").write_text("{}")
    (folder / "private-notes.md").write_text("mine")
    archive = export_run(folder, tmp_path / "run.zip")
    assert not {"audit.json", "private-notes.md"} & set(archive.files)
    came = import_run(home, archive.path).folder
    (came / "audit.json").write_text("{}")
    assert import_run(home, archive.path).new is False


def test_a_run_that_lost_a_file_is_not_exported(away: Path, tmp_path: Path) -> None:
    folder = whole_run(away)
    (folder / "requests.jsonl").unlink()
    with pytest.raises(RunError, match=r"requests\.jsonl is gone"):
        export_run(folder, tmp_path / "x.zip")


def test_another_file_is_not_overwritten(away: Path, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("mine")
    with pytest.raises(LabError, match="is there already and is something else"):
        export_run(make_run(away), tmp_path / "x.zip")
    with pytest.raises(LabError, match="there is no folder"):
        export_run(next((away / "data" / "runs").iterdir()), tmp_path / "none" / "x.zip")


def read_zip(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def entries_of(path: Path) -> Entries:
    with zipfile.ZipFile(path) as archive:
        return [(info, archive.read(info)) for info in archive.infolist()]


def rebuilt(path: Path, change: Callable[[Entries], None]) -> Path:
    """The archive with its entries changed, whatever they then are."""
    entries = entries_of(path)
    change(entries)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in entries:
            archive.writestr(info, content)
    path.write_bytes(buffer.getvalue())
    return path


def adding(name: str, content: bytes = b"x", mode: int = stat.S_IFREG | 0o644) -> Callable[[Entries], None]:
    def change(entries: Entries) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
        entries.append((info, content))

    return change


def rewriting(name: str, change: Callable[[Any], None], honest: bool = True) -> Callable[[Entries], None]:
    """Changes a JSON file; `honest`, the manifest's hash and size with it."""

    def apply(entries: Entries) -> None:
        contents = {info.filename: (info, content) for info, content in entries}
        document = json.loads(contents[name][1])
        change(document)
        contents[name] = (contents[name][0], json.dumps(document).encode())
        if honest and name != MANIFEST:
            manifest = json.loads(contents[MANIFEST][1])
            manifest["files"][name.removeprefix("run/")] |= {
                "bytes": len(contents[name][1]),
                "sha256": hashlib.sha256(contents[name][1]).hexdigest(),
            }
            contents[MANIFEST] = (contents[MANIFEST][0], json.dumps(manifest).encode())
        entries[:] = list(contents.values())

    return apply


def without(name: str) -> Callable[[Entries], None]:
    def change(entries: Entries) -> None:
        entries[:] = [entry for entry in entries if entry[0].filename != name]

    return change


def dropped_from_both(entries: Entries) -> None:
    without("run/log.txt")(entries)
    rewriting(MANIFEST, lambda manifest: manifest["files"].pop("log.txt"))(entries)


def changed_sample(entries: Entries) -> None:
    at = next(i for i, (info, _) in enumerate(entries) if info.filename == "run/measurements.csv")
    entries[at] = (entries[at][0], entries[at][1].replace(b"20.0", b"21.0", 1))


def with_audit(entries: Entries) -> None:
    """An archive that brings its own audit, listed in its manifest."""
    adding("run/audit.json", b"{}")(entries)
    listed = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    rewriting(MANIFEST, lambda manifest: manifest["files"].update({"audit.json": listed}))(entries)


HOSTILE: dict[str, tuple[Callable[[Entries], None], str]] = {
    "climbing": (adding("run/../../../evil.txt"), "climbs out of its folder"),
    "climbing-windows": (adding("run\\..\\evil.txt"), "climbs out of its folder"),
    "absolute": (adding("/etc/evil"), "holds the absolute path '/etc/evil'"),
    "drive": (adding("C:/evil"), "holds the absolute path 'C:/evil'"),
    "link": (adding("run/link", b"/etc/passwd", stat.S_IFLNK | 0o777), "which is a link"),
    "device": (adding("run/device", b"", stat.S_IFCHR | 0o644), "which is no plain file"),
    "twice": (adding("run/log.txt"), "'run/log.txt' twice"),
    "twice-but-for-case": (adding("run/LOG.txt"), "'run/LOG.txt' twice"),
    "folder": (adding("run/sub/"), "names no file of a run"),
    "hidden": (adding("run/.alive"), "names no file of a run"),
    "control": (adding("run/a\nb"), "names no file of a run"),
    "unlisted": (adding("run/extra.txt"), "which its manifest does not list"),
    "bomb": (adding("run/zeros.bin", bytes(64 << 20)), "unpacks to 67,108,864 bytes"),
    "many": (lambda entries: [adding(f"run/{i}")(entries) for i in range(1001)] and None, "lists 1,00"),
    "no-manifest": (without(MANIFEST), f"has no {MANIFEST}"),
    "missing": (without("run/measurements.csv"), "lacks run/measurements.csv"),
    "own-audit": (with_audit, "it holds audit.json, which only the lab that has the run may write"),
    "missing-artefact": (dropped_from_both, "log.txt is missing, which run.json names"),
    "changed": (changed_sample, "measurements.csv was changed: its SHA-256 is not the manifest's"),
    "newer-manifest": (rewriting(MANIFEST, lambda m: m.update(schema=2)), "is of schema 2, and this labkit reads schema 1"),
    "newer-run": (rewriting("run/run.json", lambda r: r.update(schema=7)), "is of schema 7, and this labkit reads"),
    "other-id": (rewriting(MANIFEST, lambda m: m.update(run="../../x")), "is not the id of a run"),
    "other-run": (
        rewriting(MANIFEST, lambda m: m.update(run="20261201T000000Z-other-00000000")), "run.json is of the run"),
    "experiment-climbs": (
        rewriting("run/run.json", lambda r: r.update(experiment="../../evil")), "is not the experiment"),
    "notebook-climbs": (
        rewriting("run/run.json", lambda r: r.update(notebook="../../../tmp/evil.ipynb")), "which is no place in a lab"),
    "notebook-absolute": (
        rewriting("run/run.json", lambda r: r.update(notebook="/tmp/evil.ipynb")), "which is no place in a lab"),
    "running": (rewriting("run/run.json", lambda r: r.update(state="running")), "the run has not ended"),
    "unknown-field": (rewriting("run/run.json", lambda r: r.update(evil=1)), "is not a run record: evil"),
    "other-hash": (
        rewriting("run/run.json", lambda r: r["artefacts"].update({"log.txt": "00" * 32})), "log.txt was changed"),
    "other-plan": (
        rewriting("run/plan.json", lambda p: p["rule"].update(threshold=1.0)), "plan.json was changed"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_hostile_archive_is_one_line_and_changes_nothing(home: Path, zipped: Path, kind: str) -> None:
    change, words = HOSTILE[kind]
    before, places = everything(home), folders(home)
    done = call("import", str(rebuilt(zipped, change)))
    assert isinstance(done.exception, LabError), (done.exception, done.output)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.exception.exit_code == 2
    assert everything(home) == before
    assert folders(home) == places
    assert not list(zipped.parent.rglob("evil*"))


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: b"",
        lambda content: b"PK",
        lambda content: content[: len(content) // 2],
        lambda content: content[len(content) // 2 :],
        lambda content: b"not a zip at all" * 100,
        lambda content: content[:200] + bytes(60) + content[260:],
        lambda content: content.replace(b"PK\x01\x02", b"PK\x01\x03"),
        lambda content: content[:-22] + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 65535, 65535, 2**32 - 1, 0, 0),
    ],
    ids=["empty", "two-bytes", "torn", "tail", "text", "zeros", "directory", "endless-directory"],
)
def test_a_damaged_archive_is_one_line_and_changes_nothing(
    home: Path, zipped: Path, harm: Callable[[bytes], bytes]
) -> None:
    zipped.write_bytes(harm(zipped.read_bytes()))
    before, places = everything(home), folders(home)
    with pytest.raises(RunError) as refused:
        import_run(home, zipped)
    assert "\n" not in str(refused.value)
    assert everything(home) == before
    assert folders(home) == places


def test_every_torn_or_flipped_archive_is_refused_or_whole(home: Path, zipped: Path) -> None:
    content = zipped.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 150)):
        flipped = bytearray(content)
        flipped[at] ^= 0x55
        for harmed in (content[:at], bytes(flipped)):
            zipped.write_bytes(harmed)
            refused = refusal(home, zipped)
            assert "\n" not in refused, at
            if refused:
                assert not (home / "data").exists()
            else:  # a byte that says nothing, such as a date
                [folder] = (home / "data" / "runs").iterdir()
                assert read_record(folder).id == folder.name
                shutil.rmtree(home / "data")


def refusal(home: Path, zipped: Path) -> str:
    """Why an archive is refused; nothing for one that comes in."""
    try:
        import_run(home, zipped)
    except RunError as error:
        return str(error)
    return ""


def test_where_nothing_can_be_written_is_one_line(home: Path, away: Path, zipped: Path, tmp_path: Path) -> None:
    (home / "data").write_text("in the way")
    with pytest.raises(RunError, match=r"cannot be written: .*; nothing was imported"):
        import_run(home, zipped)
    with pytest.raises(LabError, match="cannot be written: File name too long"):
        export_run(next((away / "data" / "runs").iterdir()), tmp_path / ("x" * 300))


def test_an_altered_archive_of_a_run_that_is_here_is_refused(home: Path, zipped: Path) -> None:
    import_run(home, zipped)
    before = everything(home)
    rebuilt(zipped, changed_sample)
    with pytest.raises(RunError, match=r"measurements\.csv was changed: its SHA-256 is not the manifest's"):
        import_run(home, zipped)
    assert everything(home) == before


def test_another_run_of_that_name_is_kept(home: Path, zipped: Path) -> None:
    folder = import_run(home, zipped).folder
    (folder / "log.txt").write_text("mine\n")
    before = everything(home)
    with pytest.raises(RunError, match=r"than the one in this lab: log\.txt differs; nothing was imported"):
        import_run(home, zipped)
    assert everything(home) == before


def test_what_is_no_file_is_said(home: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read: No such file"):
        import_run(home, tmp_path / "nothing.zip")
    with pytest.raises(RunError, match="is not a file"):
        import_run(home, tmp_path)
    big = tmp_path / "big.zip"
    with big.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(RunError, match="has 1,073,741,824 bytes"):
        import_run(home, big)


def test_a_record_that_claims_what_its_samples_do_not_give_is_told_and_marked(
    away: Path, home: Path, tmp_path: Path
) -> None:
    folder = whole_run(away)
    update_record(folder, lambda _: {"verdict": {"outcome": "refuted"}})
    (folder / ".write").unlink()
    done = call("import", str(export_run(folder, tmp_path / "run.zip").path), "--no-page")
    assert "careful: its record says refuted; by its samples it is confirmed" in done.output
    assert any("run.json says refuted; its samples give confirmed" in str(fault) for fault in verify(home).faults)
    assert "Confirmed" in (home / "FINDINGS.md").read_text()
