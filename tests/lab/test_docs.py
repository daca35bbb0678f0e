"""The documentation is true where it can be held to it: commands, code, quotes and links are those that are there."""

import ast
import importlib.util
import posixpath
import re
import shlex
from pathlib import Path

import click
import pytest
from command_lines import check_command, commands_of, fences

from labkit.cli import lab
from labkit.lab.experiments import find_experiment
from labkit.lab.new import read_template

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[2]
HAND = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in HAND}
COMMANDS = sorted({line for text in TEXTS.values() for line in commands_of(text)})
MADE = ("eight-streams", "template", "my-question")  # experiments that the pages tell to make
NAMES = re.compile(r"\bLABKIT_[A-Z]+(?:_[A-Z]+)*\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("./lab ")])
def test_each_command_of_lab_that_is_shown_is_one_that_it_takes(line):
    check_command(line)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("./lab run ") and " -p " in line])
def test_each_parameter_that_is_set_is_one_of_the_experiment(line):
    words = shlex.split(line)
    if words[2] in MADE:
        return
    known = set(find_experiment(ROOT, words[2]).parameters)
    assert {words[at + 1] for at, word in enumerate(words) if word == "-p"} <= known


def test_each_experiment_that_is_run_is_there():
    named = {shlex.split(line)[2] for line in COMMANDS if line.startswith("./lab run ")} - {"--list", "--resume", *MADE}
    assert named <= {path.stem.replace("_", "-") for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(named) > 4


def test_other_commands_are_those_that_a_text_cannot_do_without():
    assert {line.split()[0] for line in COMMANDS if not line.startswith("./lab ")} <= {"curl", ".venv/bin/python"}
    assert len(COMMANDS) > 60


@pytest.mark.parametrize("name", TEXTS)
def test_each_verb_that_a_sentence_names_is_there(name):
    named = re.findall(r"`lab ([a-z]+)[^`]*`", TEXTS[name])
    assert [verb for verb in named if lab.get_command(click.Context(lab), verb) is None] == []


@pytest.mark.parametrize("name", TEXTS)
def test_code_that_is_shown_compiles_and_imports_what_is_there(name):
    for code in fences(TEXTS[name], "python"):
        for node in ast.walk(compile(code, name, "exec", ast.PyCF_ONLY_AST)):
            if isinstance(node, ast.Import):
                for each in node.names:
                    importlib.import_module(each.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                for each in node.names:
                    there = hasattr(module, each.name) or importlib.util.find_spec(f"{node.module}.{each.name}")
                    assert there, f"{node.module} has no {each.name}"


def test_every_setting_of_the_environment_is_listed_and_no_other():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "labkit").rglob("*.py"))
    told = {"LABKIT_RUN", "LABKIT_NO_WAIT"} | {
        name for name in NAMES.findall(code) if "COOPMAT" in name
    }  # by lab itself
    listed = re.findall(r"^\| `(LABKIT_\w+)` \|", TEXTS["docs/start-here.md"], re.MULTILINE)
    assert sorted(listed) == sorted(set(NAMES.findall(code)) - told)


def test_the_plan_that_is_shown_is_one_that_a_lab_takes():
    (code,) = (code for code in fences(TEXTS["docs/writing-an-experiment.md"], "python") if "lk.Plan(" in code)
    scope: dict[str, object] = {}
    exec(compile(code, "plan", "exec"), scope)
    assert scope["plan"].rule.words() == "decode_tok_s at streams=8 over streams=1, in each block: at least 2"  # type: ignore[attr-defined]


def test_the_check_and_the_measurement_that_are_shown_are_the_template_s():
    cells = read_template()["cells"]
    there = {line.rstrip("\n") for cell in cells if cell["cell_type"] == "code" for line in cell["source"]}
    (_, _, *shown) = fences(TEXTS["docs/writing-an-experiment.md"], "python")
    assert [line for block in shown for line in block.splitlines() if line not in there] == []
    assert len(shown) == 2


def test_the_kernel_that_is_taken_apart_is_the_one_that_runs():
    text = TEXTS["docs/adding-a-kernel.md"]
    (head,) = fences(text, "glsl")
    assert (ROOT / "shaders" / "add.comp").read_text().startswith(head)
    (shown,) = fences(text, "python")
    body = shown.partition(":\n")[2]
    assert body in (ROOT / "labkit" / "ops" / "add.py").read_text()


def test_the_first_lines_of_an_architecture_are_those_of_llama():
    shown = fences(TEXTS["docs/adding-an-architecture.md"], "python")[0]
    assert shown.strip() in (ROOT / "labkit" / "models" / "llama.py").read_text()


def test_the_entry_that_is_taken_apart_is_in_the_ledger_word_for_word():
    ledger = (ROOT / "FINDINGS.md").read_text(encoding="utf-8").splitlines()
    quoted = [line[2:] for line in TEXTS["docs/reading-a-verdict.md"].splitlines() if line.startswith("> ")]
    assert [line for line in quoted if line not in ledger] == []
    assert len(quoted) > 15


def test_the_entry_in_the_readme_has_the_numbers_of_the_ledger():
    entry = " ".join(line[2:] for line in TEXTS["README.md"].splitlines() if line.startswith("> "))
    ledger = (ROOT / "FINDINGS.md").read_text(encoding="utf-8")
    (effect,) = re.findall(r"\*\*(\d[^*]*×[^*]*)\*\*", entry)
    assert f"is **{effect}**" in ledger


@pytest.mark.parametrize("name", [*TEXTS, "AGENTS.md", "METHODOLOGY.md"])
def test_each_link_leads_to_a_file_of_the_repository(name):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://", "#")):
            continue
        path, _, fragment = link.partition("#")
        place = ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if not path.startswith("data/"):  # a quoted entry's own link counts from where the ledger lies
            assert place.exists(), f"{name} links to {link}"
        if fragment and place.name in ("FINDINGS.md", "MISTAKES.md"):
            assert f'<a id="{fragment}">' in place.read_text(encoding="utf-8"), f"{name} links to {link}"


def test_the_first_page_leads_to_every_page():
    linked = {posixpath.normpath(f"docs/{link.partition('#')[0]}") for link in LINK.findall(TEXTS["docs/README.md"])}
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"docs/README.md"}
    assert pages - linked == set()
