"""Code without the card: what is recorded, what RADV says of it, no spills anywhere, and one clear line when it cannot."""

import json
import os
import shutil
import stat
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from labkit.commands import isa as command
from labkit.errors import DeviceError, LabError, ParameterError
from labkit.vulkan import isa, isa_cases, isa_compare, isa_null
from labkit.vulkan.compile import compile_glsl, load_spirv, shader_root
from labkit.vulkan.isa_cases import Case
from labkit.vulkan.isa_machines import MACHINES, device_like, like
from labkit.vulkan.recording import Wanted
from labkit.vulkan.shader_build import targets
from labkit.vulkan.toolchain import find_compiler


def case_of(op: str, variant: str = "", constants: dict[str, int] | None = None, subgroup: int = 0) -> Case:
    wanted = Wanted(op, variant, tuple(sorted((constants or {}).items())), subgroup)
    return Case(wanted, load_spirv(op, variant), ("a test",))


SMALL = ("rms_norm", "", {"LOCAL": 128})


def null_device_trouble() -> str:
    """Why this machine cannot compile for a card that is not there; "" when it can."""
    try:
        found = isa_null.compile_for("gfx1201", [case_of(*SMALL)])
    except LabError as error:
        return str(error)
    return found[0].error


@pytest.fixture(scope="session")
def null_device() -> None:
    """Skip where RADV is missing, or has no null device of these cards, and say why."""
    if why := null_device_trouble():
        pytest.skip(f"no code for cards that are not here: {why}")


@pytest.fixture(scope="session")
def machines() -> dict[str, tuple[list[Case], list[str]]]:
    """The cases of each machine, and what was refused on it."""
    made = {}
    for name in MACHINES:
        device = device_like(name)
        made[name] = isa_cases.cases_on(device), device.refused
    return made


@pytest.fixture(scope="session")
def recorded(machines) -> dict[str, list[Case]]:
    """The cases of each machine."""
    return {name: cases for name, (cases, _) in machines.items()}


# What is recorded


@pytest.mark.parametrize("machine", MACHINES)
def test_every_program_of_the_engine_can_be_recorded_for_it(machines, machine):
    assert machines[machine][1] == []


def test_every_shader_has_a_case(recorded):
    have = {case.name for cases in recorded.values() for case in cases}
    lacking = [t.file for t in targets(shader_root()) if t.file.removesuffix(".spv") not in have]
    assert not lacking, f"no program recorded in labkit/vulkan/isa_cases.py uses {', '.join(lacking)}: add a recorder"


def test_cases_are_what_the_engine_chooses_for_the_device(recorded):
    names = {machine: {case.name for case in cases} for machine, cases in recorded.items()}
    assert "matvec.f16" in names["gfx1201"]
    assert "linear_coopmat.f16" in names["gfx1201"]
    assert "matvec.f16" not in names["cpu"]
    assert "linear.f16" in names["cpu"]
    assert not any(case.needs_coopmat for case in recorded["cpu"])
    assert any(case.needs_coopmat for case in recorded["gfx1201"])
    widths = {case.constants["COLS"] for case in recorded["gfx1201"] if case.name == "matvec.q4"}
    assert {1, 2, 4, 8} <= widths
    assert all(len(cases) == len({case.wanted for case in cases}) for cases in recorded.values())


def test_the_two_cards_lay_their_matrices_differently(recorded):
    from labkit.ops.coopmat_layout import layout_of

    rdna4, rdna3 = (layout_of(device_like(name)) for name in ("gfx1201", "gfx1151"))
    assert rdna4 is not None
    assert (rdna4.direct, rdna4.transposed, rdna4.rows) == (True, True, 1)
    assert rdna3 is not None
    assert (rdna3.direct, rdna3.transposed, rdna3.rows) == (False, False, 8)


def test_what_a_device_refuses_is_kept_with_its_purpose(monkeypatch):
    monkeypatch.setattr(isa_cases, "RECORDERS", {"engine": isa_cases.RECORDERS["engine"]})
    device = device_like("gfx1201")
    device.info = replace(device.info, max_shared_bytes=2 << 10)
    isa_cases.cases_on(device)
    assert any(", f16 fast: " in line and "of shared memory" in line for line in device.refused)


def test_an_unknown_machine_is_one_line():
    with pytest.raises(ParameterError, match="no description of 'gfx900', only of gfx1201, gfx1151, "):
        device_like("gfx900")


def test_a_device_that_is_here_is_described_as_it_is(device):
    described = like(device)
    assert described.info == device.info
    assert described.coopmat_size == device.coopmat_size
    assert isa_cases.cases_on(described)


# What RADV says


@pytest.mark.slow
@pytest.mark.parametrize("target", isa.TARGETS)
def test_no_kernel_of_the_product_spills(null_device, recorded, target):
    cases = recorded[target]
    if target == "gfx1201":  # and once, what it does not run
        cases = isa_cases.all_cases(device_like(target))
    found = isa_null.compile_for(target, cases)
    wrong = [f"{one.kernel} on {one.target} with {one.constants}: {one.error}" for one in found if one.error]
    assert not wrong
    spilled = [
        f"{one.kernel} on {one.target} ({one.purposes[0]}) spills {one.spilled_vgprs} VGPRs, {one.spilled_sgprs} SGPRs, "
        f"{one.scratch_bytes} bytes of scratch with {one.constants}"
        for one in found
        if one.spills
    ]
    assert not spilled, "\n".join(spilled)
    assert all(one.vgprs and one.occupancy and one.code_bytes for one in found)


SPILLING = """#version 460
// 400 values that all live at once: more than the registers of any card
#extension GL_EXT_buffer_reference : require
layout(local_size_x = 64) in;
layout(buffer_reference, std430) buffer Data { float at[]; };
layout(push_constant) uniform Push { Data x; Data y; };
void main() {
    float held[400];
    for (int i = 0; i < 400; i++) held[i] = x.at[gl_GlobalInvocationID.x * 400 + i];
    barrier();
    float sum = 0;
    for (int i = 0; i < 400; i++) sum = sum * held[i] + held[399 - i];
    for (int i = 0; i < 400; i++) y.at[gl_GlobalInvocationID.x * 400 + i] = held[i] * sum;
}
"""


def test_a_kernel_that_spills_is_seen(null_device):
    if find_compiler(pinned=False) is None:
        pytest.skip("no GLSL compiler here: `lab shaders --fetch-compiler`")
    spirv = compile_glsl(SPILLING, name="spilling")
    (found,) = isa_null.compile_for("gfx1201", [Case(Wanted("spilling", "", (), 0), spirv)])
    assert not found.error
    assert found.spills
    assert found.spilled or found.scratch_bytes
    assert found.scratch_bytes > 0


def test_numbers_are_the_drivers_and_the_text_comes_when_asked(null_device):
    case = case_of(*SMALL)
    plain, again = isa_null.compile_for("gfx1201", [case, case])
    assert plain == again  # the same every time
    assert plain.driver.startswith("radv Mesa")
    assert (plain.vgprs, plain.shared_bytes, plain.subgroup) == (
        plain.raw["VGPRs"], plain.raw["LDS size"], plain.subgroup,
    )  # fmt: skip
    assert plain.registers is None
    assert plain.text == ""
    (dumped,) = isa_null.compile_for("gfx1151", [case], text=True)
    assert "v_" in dumped.text
    assert dumped.target == "gfx1151"
    with pytest.raises(AttributeError):
        _ = plain.cycles


def test_a_kernel_that_does_not_build_has_its_reason_and_the_others_go_on(null_device):
    wrong = case_of("rms_norm", "", {"LOCAL": 4096})
    found = isa_null.compile_for("gfx1201", [wrong, case_of(*SMALL)])
    assert "a workgroup of 4096x1x1 is over what" in found[0].error
    assert found[0].vgprs is None
    assert not found[1].error


def test_matrices_of_a_card_that_lacks_them_here_are_compiled_for_one_that_has_them(null_device, recorded):
    case = next(case for case in recorded["gfx1201"] if case.name == "linear_coopmat.f16")
    found = isa_null.compile_for("gfx1201", [case_of(*SMALL), case])
    assert [one.kernel for one in found] == ["rms_norm", "linear_coopmat.f16"]
    assert found[0].target == "gfx1201"
    assert found[1].target in ("gfx1201", "gfx1151")
    assert not found[1].error


def test_an_unknown_card_is_one_line(null_device):
    with pytest.raises(
        ParameterError, match="target 'gfx9999' is no card that this RADV knows; try gfx1201 or gfx1151"
    ):
        isa_null.compile_for("gfx9999", [case_of(*SMALL)])


# When it cannot


def test_without_radv_it_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "lvp_icd.json"))
    with pytest.raises(
        DeviceError, match=r"takes Mesa's AMD driver, whose manifest radeon_icd\*.json is not here.*apt"
    ):
        isa_null.compile_for("gfx1201", [case_of(*SMALL)])


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str) -> None:
    """Have a Python program stand for the process that compiles; RADV's manifest is played too."""
    script = folder / "python"
    body = folder / "played.py"
    body.write_text(f"import json, os, sys\norder = json.load(sys.stdin)\n{program}\n")
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{body}" "$@"\n')  # paths may have spaces in them
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (folder / "radeon_icd.x.json").write_text(json.dumps({"ICD": {"library_path": "x.so", "api_version": "1.4"}}))
    monkeypatch.setenv("VK_DRIVER_FILES", str(folder / "radeon_icd.x.json"))
    monkeypatch.setattr(isa_null.sys, "executable", str(script))


CRASHES = """
print(json.dumps({"driver": "radv Mesa 1"}), flush=True)
for index, case in enumerate(order["cases"]):
    if case["name"] == "rope_kv.f16":
        print("LLVM ERROR: out of luck", file=sys.stderr, flush=True)
        os.abort()
    print(json.dumps({"index": index, "subgroup": 64, "statistics": {"VGPRs": 8, "Scratch size": 0}}), flush=True)
"""


def test_a_compiler_that_crashes_is_that_kernels_error(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, CRASHES)
    found = isa_null.compile_for("gfx1201", [case_of(*SMALL), case_of("rope_kv", "f16"), case_of("add")])
    assert [one.vgprs for one in found] == [8, None, 8]
    assert found[1].error == "RADV's compiler for gfx1201 ended with SIGABRT: LLVM ERROR: out of luck"
    assert [one.kernel for one in found] == ["rms_norm", "rope_kv.f16", "add"]


def test_a_driver_without_a_null_device_is_one_line(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, 'print(json.dumps({"trouble": "RADV lists no device: Mesa 26 dropped it"}))')
    with pytest.raises(DeviceError, match="Mesa 26 dropped it"):
        isa_null.compile_for("gfx1201", [case_of(*SMALL)])


def test_a_driver_that_dies_before_it_begins_is_one_line(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, 'sys.exit("it cannot be loaded")')
    with pytest.raises(DeviceError, match="ended with exit code 1: it cannot be loaded"):
        isa_null.compile_for("gfx1201", [case_of(*SMALL)])


def test_a_compiler_that_hangs_is_ended(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, 'print(json.dumps({"driver": "x"}), flush=True)\nimport time\ntime.sleep(60)')
    monkeypatch.setattr(isa_null, "TIMEOUT_S", 1)
    monkeypatch.setattr(isa_null, "CASE_S", 0)
    (found,) = isa_null.compile_for("gfx1201", [case_of(*SMALL)])
    assert "SIGKILL" in found.error


def test_a_device_whose_driver_says_nothing_is_one_line(device):
    if device.has("executable_statistics"):
        found = isa.statistics_of(device, [case_of(*SMALL)])
        assert found[0].raw
    else:
        with pytest.raises(DeviceError, match=r"gives no statistics of its code; --target gfx1201"):
            isa.statistics_of(device, [case_of(*SMALL)])


@pytest.mark.quick
def test_names_of_other_drivers_are_ours():
    # as driver 580.159.04 says of an H200's matvec.bf16
    nvidia = {
        "Register Count": 58, "Binary Size": 6784, "Stack Size": 0, "Local Memory Size": 68719476736,
        "Shared Memory Size": 2080,
    }  # fmt: skip
    numbers = isa.numbers_of(nvidia)
    assert (numbers["registers"], numbers["code_bytes"], numbers["scratch_bytes"]) == (58, 6784, 0)
    assert numbers["shared_bytes"] == 2080
    assert numbers["vgprs"] is None


# Comparing, and the command


def test_a_binary_is_compared_with_an_older_one(null_device, tmp_path):
    case = case_of("matvec", "f16", {"COLS": 1, "LOCAL": 512, "TEAMS": 16})
    old = tmp_path / "old.spv"
    old.write_bytes(load_spirv("matvec", "f32"))
    ((new, before),) = isa_compare.older_cases([case], str(old))
    found = isa_null.compile_for("gfx1201", [before, new])
    assert "code_bytes" in isa_compare.changes(*found)
    assert isa_compare.changes(found[0], found[0]) == {}
    with pytest.raises(LabError, match=r"matvec\.f16: broken"):
        isa_compare.changes(found[0], replace(found[1], error="broken"))
    old.write_bytes(case.spirv)
    assert isa_compare.older_cases([case], str(old)) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_what_is_no_older_version_is_one_line():
    with pytest.raises(ParameterError, match=r"is no \.spv file and no revision"):
        isa_compare.older_cases([case_of("add")], "no-such-revision")


def test_capabilities_are_read_from_the_module():
    words = [0x07230203, 0x10500, 0, 9, 0, 17 | 2 << 16, 6022, 17 | 2 << 16, 1, 14 | 3 << 16, 0, 1, 17 | 2 << 16, 5]
    assert isa_cases.capabilities(struct.pack(f"<{len(words)}I", *words)) == {6022, 1}


@pytest.fixture
def few(monkeypatch):
    """Only the kernels that measure ceilings are recorded: recording all takes seconds."""
    monkeypatch.setattr(isa_cases, "RECORDERS", {"ceilings": isa_cases.RECORDERS["ceilings"]})


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command.command, [*words], catch_exceptions=True)
    if isinstance(done.exception, LabError):
        return done.exception.exit_code, str(done.exception)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_the_command_tables_a_kernels_cases(null_device, few):
    code, text = run("read_stream", "--target", "gfx1201")
    assert code == 0
    assert "compiled for gfx1201 (Radeon AI PRO R9700 (RDNA 4)) by radv Mesa" in text
    for heading in ("VGPRs", "SGPRs", "spilled", "scratch B", "occupancy", "code B", "latency", "first used in"):
        assert heading in text
    code, text = run("read_stream", "--target", "gfx1201", "--json")
    answer = json.loads(text)
    assert code == 0
    assert {one["kernel"] for one in answer["cases"]} == {"read_stream"}
    assert all(one["vgprs"] > 0 and one["spilled"] == 0 and one["statistics"]["VGPRs"] for one in answer["cases"])


def test_the_command_sets_constants_and_prints_the_code(null_device, few):
    code, text = run("read_stream", "--target", "gfx1201", "--set", "LOCAL=64", "--dump")
    assert code == 0
    assert "LOCAL=64" in text
    assert "v_" in text
    assert run("read_stream", "--target", "gfx1201", "--set", "NOPE=1")[1].startswith(
        "read_stream has no specialisation constant"
    )
    assert run("read_stream", "--target", "gfx1201", "--set", "LOCAL")[1] == "--set 'LOCAL' is not NAME=NUMBER"


def test_the_command_compares_with_a_revision(null_device, few, monkeypatch):
    older = load_spirv("add")
    monkeypatch.setattr(isa_compare, "older_binary", lambda source, name: older)
    code, text = run("read_stream", "--target", "gfx1201", "--diff", "HEAD")
    assert code == 0
    assert "cases have another binary than HEAD" in text
    assert "→" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dump", "--target", "gfx1201"), "--dump prints pages of code: name the KERNEL"),
        (("nonsense", "--target", "gfx1201"), "there is no kernel 'nonsense' among those that run: coopmat_layout, "),
    ],
)
def test_wrong_words_are_one_line(few, words, said):
    code, text = run(*words)
    assert code == 2
    assert text.startswith(said)
    assert "\n" not in text


def test_the_device_of_a_driver_on_the_cpu_is_refused_in_one_line(device):
    if device.has("executable_statistics"):
        pytest.skip(f"{device.name} gives statistics")
    for words in (("read_stream",), ("--target", "device")):
        code, text = run(*words)
        assert code == 2
        assert "gives no statistics of its code" in text


def test_a_process_that_compiles_gets_only_radv_and_the_card(monkeypatch, tmp_path):
    (tmp_path / "radeon_icd.x86_64.json").write_text(json.dumps({"ICD": {"library_path": "x.so"}}))
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "radeon_icd.x86_64.json"))
    environ = isa_null.null_device_environment("gfx1201", {**os.environ, "LABKIT_DEVICE": "cpu", "LABKIT_POISON": "1"})
    assert environ["RADV_FORCE_FAMILY"] == "gfx1201"
    assert environ["VK_DRIVER_FILES"].endswith("radeon_icd.x86_64.json")
    assert not {"LABKIT_DEVICE", "LABKIT_POISON"} & set(environ)
