"""AGENTS.md is true: its commands parse, its files are there, its detector works, its lever is read, its copy is an experiment."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_lines import check_command, commands_of, fences

from labkit.audit import registry
from labkit.audit.evidence import Evidence, Observation
from labkit.cli import lab
from labkit.lab.experiments import load_experiment
from labkit.lab.init import make_lab
from labkit.lab.levers import OWN_FILE, known_levers

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "AGENTS.md").read_text(encoding="utf-8")


COMMANDS = commands_of(TEXT)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("./lab ")])
def test_each_command_of_lab_is_one_that_it_takes(line):
    check_command(line)


def test_other_commands_are_the_few_that_are_installed_with_it():
    others = {line.split()[0] for line in COMMANDS if not line.startswith("./lab ")}
    assert others == {".venv/bin/ruff", ".venv/bin/mypy"}


def test_each_file_it_names_is_there():
    named = re.findall(r"(?<![\w/.~-])((?:labkit|tests|notebooks|shaders|data)/[\w./-]+)", TEXT)
    own = {"notebooks/my_question.ipynb", "data/levers.toml"}
    absent = [name for name in named if name not in own and "NAME" not in name and not (ROOT / name).exists()]
    assert absent == []
    assert len(named) > 15


def test_its_detector_judges_as_it_says(monkeypatch: pytest.MonkeyPatch):
    (code,) = fences(TEXT, "python")
    monkeypatch.setattr(registry, "_found", dict(registry._found))
    exec(compile(code, "AGENTS.md", "exec"), {"__name__": "labkit.audit.detectors.odd_streams"})
    one = registry._found["odd-streams"]
    seen = tuple(
        Observation(f"row {streams}", "", {"decode_tok_s": 1.0}, streams=streams) for streams in (3.0, 2.5, None)
    )
    notices = list(one.notices(Evidence("claims", "claims.csv", seen)))
    assert [notice.outcome for notice in notices] == ["ok", "warn", "not assessable"]


def test_its_lever_is_one_that_a_lab_reads(tmp_path: Path):
    (text,) = fences(TEXT, "toml")
    (tmp_path / OWN_FILE).parent.mkdir()
    (tmp_path / OWN_FILE).write_text(text)
    assert known_levers(tmp_path)["pause_s"].acts == "schedule"


def test_the_notebook_it_makes_is_the_experiment_that_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LABKIT_LAB", str(make_lab(tmp_path / "lab")))
    (line,) = (line for line in COMMANDS if line.startswith("./lab new "))
    assert CliRunner().invoke(lab, shlex.split(line)[1:]).exit_code == 0
    experiment = load_experiment(tmp_path / "lab" / "notebooks" / "my_question.ipynb")
    assert f"./lab run {experiment.name} -p quick true --no-ledger" in COMMANDS
