"""What a record captures of the system: code state, shaders, packages; and writing files whole."""

import hashlib
import os
import subprocess
import threading
from pathlib import Path

import pytest

from labkit.lab.capture import capture_git, capture_packages, capture_shaders
from labkit.lab.record import write_atomic


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("a = 1\n")
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_clean_code_is_its_commit_and_the_labs_own_output_does_not_make_it_dirty(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "FINDINGS.md").write_text("# Findings\nnew\n")
    (repository / "data" / "runs").mkdir(parents=True)
    (repository / "data" / "runs" / "x.csv").write_text("1")
    (repository / "x.pyc").write_text("ignored")
    state = capture_git(repository)
    assert state is not None
    assert (state.commit, state.dirty, state.diff_sha256) == (commit, False, None)


def test_changed_and_untracked_code_is_dirty_and_told_apart(repository: Path) -> None:
    hashes = set()
    for name, text in (("code.py", "a = 2\n"), ("new.py", "b = 1\n"), ("new.py", "b = 2\n")):
        (repository / name).write_text(text)
        state = capture_git(repository)
        assert state is not None
        assert state.dirty
        assert state.diff_sha256 is not None
        hashes.add(state.diff_sha256)
    assert len(hashes) == 3
    (repository / "code.py").write_text("a = 1\n")
    (repository / "new.py").unlink()
    state = capture_git(repository)
    assert state is not None
    assert not state.dirty


def test_a_lab_inside_a_larger_repository_still_leaves_its_own_output_out(repository: Path) -> None:
    lab = repository / "deep" / "lab"
    (lab / "data").mkdir(parents=True)
    (lab / "data" / "x.csv").write_text("1")
    state = capture_git(lab)
    assert state is not None
    assert not state.dirty


def test_outside_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert capture_git(tmp_path) is None


def test_shaders_are_hashed_as_compiled_else_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "shaders"
    (folder / "spv").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "add.comp").write_text("void main() {}")
    (folder / "include" / "types.glsl").write_text("// types")
    assert list(capture_shaders(folder)) == ["add.comp", "include/types.glsl"]
    (folder / "spv" / "add.spv").write_bytes(b"\x03\x02\x23\x07")
    (folder / "spv" / "manifest.json").write_text("{}")
    assert capture_shaders(folder) == {
        "spv/add.spv": hashlib.sha256(b"\x03\x02\x23\x07").hexdigest(),
        "spv/manifest.json": hashlib.sha256(b"{}").hexdigest(),
    }


def test_packages_are_named_with_their_versions() -> None:
    import numpy

    found = capture_packages()
    assert found["numpy"] == numpy.__version__
    assert found["python"].count(".") == 2
    assert list(found) == sorted(found)


def test_a_file_is_never_seen_half_written(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "0" * 500_000)
    done = threading.Event()

    def write() -> None:
        for digit in "123456789" * 6:
            write_atomic(path, digit * 500_000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set():
        text = path.read_text()
        assert len(text) == 500_000
        assert len(set(text)) == 1
        reads += 1
    writer.join()
    assert reads > 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
    assert os.stat(path).st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_outside_a_repository_the_commit_is_what_one_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("LABKIT_COMMIT", "ab" * 20)
    state = capture_git(tmp_path)
    assert state is not None
    assert (state.commit, state.dirty, state.diff_sha256) == ("ab" * 20, None, None)
    monkeypatch.setenv("LABKIT_COMMIT", "main")
    assert capture_git(tmp_path) is None
