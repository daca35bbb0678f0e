"""The nouns of the core show themselves: what they are in numbers, in HTML that any theme and any sanitiser leaves whole."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from page_rules import Page, check_noun, check_page

from labkit.audit.notice import Notice
from labkit.audit.report import Audit
from labkit.engine.engine import Engine
from labkit.measure import roofline
from labkit.measure.roofline import MatrixRate, ReadBandwidth
from labkit.models.model import Model
from labkit.show import pieces
from labkit.vulkan.device import Device
from labkit.vulkan.profile import Profile

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
HOSTILE = "<script>alert(1)</script><b onclick='x'>&\"'"
READ = ReadBandwidth(640.0, 650.0, 1 << 30, 7, "a card", "a driver", "2026-12-01T00:00:00Z")
RATE = MatrixRate("float16", 100.0, 101.0, (16, 16, 16), "a cut", 7, "a card", "a driver", "2026-12-01T00:00:00Z")


@pytest.fixture(scope="module")
def engine(device: Device) -> Iterator[Engine]:
    with Engine(Model(TINY / "llama-q4_1.gguf"), device, slots=3, context=64) as opened:
        yield opened


def test_a_device_shows_its_limits_and_the_rooflines_that_are_known(device, monkeypatch):
    monkeypatch.setattr(roofline, "_kept", lambda _: {})
    assert "read_bandwidth(device) measures the first" in check_noun(device)
    card = replace(device.info, name="AMD Radeon AI PRO R9700", vendor_id=0x1002, device_id=0x7551)
    monkeypatch.setattr(device, "info", card)
    assert "read bandwidth not yet 640 GB/s" in check_noun(device)
    monkeypatch.setattr(
        roofline, "_kept", lambda _: {"read": {**vars(READ), "gb_s": 576.0}, "float16": vars(RATE), "int8": {"odd": 1}}
    )
    bare = check_noun(device)
    assert "read bandwidth 576 GB/s 90 % of 640 GB/s" in bare
    assert "float16 products 100 TFLOP/s" in bare


def test_a_closed_device_says_so():
    device = Device()
    device.close()
    assert "state closed" in check_noun(device)


def test_a_model_shows_its_bytes_by_type():
    model = Model(TINY / "llama-q4_1.gguf")
    bare = check_noun(model)
    for name, nbytes in model.bytes_by_type.items():
        assert f"{name} " in bare
        assert pieces.size_words(nbytes) in bare


def test_an_engine_maps_its_memory_against_what_the_card_has(engine, monkeypatch):
    total = engine.device.info.memory_bytes
    held = sum(engine.memory.values())
    monkeypatch.setattr(engine.device, "memory_free", lambda: total // 2)
    bare = check_noun(engine)
    assert "slots □□□ 0 of 3 busy, 0 waiting" in bare
    assert f"weights {pieces.size_words(engine.memory['weights'])}" in bare
    assert f"other engines and programs {pieces.size_words(total - total // 2 - held)}" in bare
    assert "50 %" in bare
    monkeypatch.setattr(engine.device, "memory_free", lambda: None)
    assert f"left, if nobody else holds any {pieces.size_words(total - held)}" in check_noun(engine)


def test_an_engine_at_work_shows_its_busy_slots(engine):
    with engine.stream("a", max_tokens=40, ignore_eos=True) as stream:
        next(stream)
        assert "■□□ 1 of 3 busy" in check_noun(engine)


def test_a_closed_engine_holds_nothing_and_says_so(device):
    engine = Engine(Model(TINY / "llama-q4_1.gguf"), device, slots=2, context=64)
    engine.close()
    assert "closed: it holds nothing" in check_noun(engine)
    assert engine.memory == {"weights": engine.weights.nbytes, "kv cache": 0, "working": 0}


def test_a_program_lists_its_operations_and_a_kernel_its_constants(engine):
    program = engine.executor.decode_program(2)
    bare = check_noun(program)
    assert f"{len(program.dispatches)}, " in bare
    assert pieces.size_words(program.nbytes) in bare
    for name in {one.kernel for one in program.dispatches}:
        assert name in bare
    kernel = engine.device.kernel("add")
    bare = check_noun(kernel)
    assert all(f"{one.name} (" in bare for one in kernel.interface.push)
    assert all(name in bare for name in kernel.interface.constants)


def test_a_profile_tells_each_operations_share_and_its_distance_from_the_nearer_ceiling(engine, monkeypatch):
    monkeypatch.setattr(roofline, "_kept", lambda _: {"read": vars(READ), "float16": vars(RATE)})
    reads, products = (
        replace(
            engine.executor.decode_program(2).dispatches[0],
            label=label,
            kernel=label,
            nbytes=nbytes,
            flops=flops,
            why="",
        )
        for label, nbytes, flops in (("gather", 320_000_000, 0), ("multiply", 1000, 25_000_000_000))
    )
    profile = Profile(engine.device, [(reads, 1e-3), (products, 1e-3)])
    bare = check_noun(profile)
    assert "50 % of reads" in bare  # 320 MB in 1 ms are 320 GB/s of 640
    assert "25 % of float16 products" in bare  # 25 GFLOP in 1 ms are 25 TFLOP/s of 100
    assert bare.count(" 50 % ") >= 2  # each has half of the time
    assert repr(profile) == "<Profile of 2 dispatches, 2.000 ms: gather 50 %, multiply 50 %>"
    assert "Over 100 %" not in bare
    assert "Over 100 %" in check_noun(Profile(engine.device, [(reads, 1e-4)]))


def test_a_profile_of_a_real_step_has_all_of_its_time_and_one_without_times_says_so(engine):
    check_noun(Profile(engine.device))
    profile = engine.profile(2, 8, repeats=1)
    check_noun(profile)
    if engine.device.info.timestamp_bits:
        assert f"{profile.seconds * 1e3:.3f} ms in {len(profile)} dispatches" in profile._repr_html_()


def test_a_generation_keeps_the_line_breaks_of_its_texts(engine):
    out = engine.generate(["a"], max_tokens=3, ignore_eos=True)
    assert "white-space:pre-wrap" in out._repr_html_()
    check_noun(out)
    assert repr(out[0]) == f"<Completion of 3 tokens (length): {out[0].text!r}>"
    assert f"tokens 3 after {len(out[0].prompt_ids)} of the prompt, in slot " in check_noun(out[0])


def test_no_other_module_writes_html_of_its_own():
    package = Path(__file__).resolve().parents[2] / "labkit"
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "show") or path.is_relative_to(package / "lab" / "publish"):
            continue
        if path == package / "widgets" / "face.py":  # the boxes a live view is drawn in, with JupyterLab's own class
            continue
        found = re.findall(r"<(?:table|td|th|span|div)\b|\bstyle=['\"]", path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(package)} has {found[0]}: labkit/show/pieces.py makes HTML"


def test_notices_and_audits_show_their_arithmetic():
    failed = Notice(
        outcome="fail", text="3690 GB/s is above 640", detector="above-roofline", arithmetic=("4.1 × 900 = 3690",)
    )
    bare = check_noun(failed)
    assert "above-roofline" in bare
    assert "4.1 × 900 = 3690" in bare
    lacking = Notice(outcome="not assessable", text="no streams", detector="odd", missing=("streams",))
    assert "missing: streams" in check_noun(lacking)
    audit = Audit(kind="claims", name="a.csv", stamps={}, subjects=(), notices=(failed, lacking))
    assert repr(audit) == "<Audit of a.csv: fail (above-roofline); 1 fail, 1 not assessable>"
    assert "4.1 × 900 = 3690" in check_noun(audit)
    assert "nothing to judge" in check_noun(audit.model_copy(update={"notices": ()}))


def test_whatever_is_shown_is_escaped_once():
    page = pieces.facts_table({HOSTILE: HOSTILE}, HOSTILE) + pieces.table((HOSTILE,), [(HOSTILE,)])
    page += pieces.mark(HOSTILE) + pieces.unfold(HOSTILE, pieces.verbatim(HOSTILE)) + pieces.paragraph(HOSTILE)
    check_page(page)
    assert "".join(Page(page).texts).count(HOSTILE) == 9


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0, 7.0])
def test_a_bar_never_leaves_its_track(share):
    page = pieces.bar(share, place=40)
    check_page(page)
    widths = [float(part.split("em")[0]) for part in page.split(";width:")[1:]]
    assert widths[1] == min(max(share, 0), 1) * widths[0]


def test_a_stack_fills_as_much_of_its_track_as_its_parts_have_of_the_total():
    for parts, total, filled in (((1, 2), 6, 0.5), ((4, 4), 6, 1.0), ((0, 0), 0, 0.0)):
        page = pieces.stack(parts, total)
        check_page(page)
        track, *drawn = (float(part.split("em")[0]) for part in page.split(";width:")[1:])
        assert sum(drawn) == pytest.approx(filled * track, abs=0.02)


def test_sizes_and_shares_are_said_in_three_digits():
    said = [pieces.size_words(n) for n in (0, 512, 1536, 5 << 20, 1023 << 20, 24 << 30, 141 << 30)]
    assert said == ["0 B", "512 B", "1.5 KiB", "5 MiB", "1,023 MiB", "24 GiB", "141 GiB"]
    assert [pieces.share_words(s) for s in (0, 0.004, 0.096, 0.48, 1.5)] == ["0 %", "0.4 %", "9.6 %", "48 %", "150 %"]
