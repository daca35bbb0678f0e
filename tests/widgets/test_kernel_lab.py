"""The kernel lab: faults at their lines, a right kernel and a wrong one told apart by NumPy, its speed and its code."""

from types import SimpleNamespace

import numpy as np
import pytest
from page_rules import check_noun

from labkit.errors import ParameterError, ShaderError
from labkit.measure.ops_bench.cases import nmse
from labkit.vulkan.compile import faults, shader_root
from labkit.vulkan.device import Device
from labkit.vulkan.kernel import Kernel
from labkit.widgets import kernel_lab
from labkit.widgets.kernel_lab import KernelLab, text_of
from labkit.widgets.trial import Trial

SCALE = """#version 450
#extension GL_EXT_buffer_reference : require
layout(local_size_x = 8) in;
layout(buffer_reference, std430) buffer Floats { float v[]; };
layout(push_constant) uniform Push { Floats x; uint count; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < count) x.v[i] *= 2.0;
}
"""


@pytest.fixture
def codeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the seconds that another compiler takes."""
    monkeypatch.setattr(KernelLab, "_read_code", lambda *_: None)


def test_the_committed_shader_is_right_and_has_a_speed_and_a_code(device: Device) -> None:
    with kernel_lab("rms_norm", device) as view:
        assert view.source == (shader_root() / "rms_norm.comp").read_text(encoding="utf-8")
        assert view.run().wait(60)
        now = view.state()
        assert now["error"] == ""
        assert [one["right"] for one in now["trials"]] == [True, True]
        assert all(one["gb_s"] > 0 and one["committed_s"] > 0 for one in now["trials"])
        assert now["code"] is not None or any("Its code is not told" in note for note in now["notes"])
        words = check_noun(view)
        assert "rms_norm 5 128" in words
        assert "≤ 1e-07" in words


@pytest.mark.usefixtures("codeless")
def test_a_kernel_that_computes_something_else_is_found_and_has_no_time(device: Device) -> None:
    with kernel_lab("swiglu", device) as view:
        wrong = view.source.replace("exp(-", "exp(-1.01 * ")
        assert wrong != view.source
        view.run(wrong).wait(60)
        now = view.state()
        assert [one["right"] for one in now["trials"]] == [False, False]
        assert all(one["error"] > one["limit"] and one["seconds"] == 0 for one in now["trials"])
        view.run((shader_root() / "swiglu.comp").read_text(encoding="utf-8")).wait(
            60
        )  # and the device's own is untouched
        assert all(one["right"] for one in view.state()["trials"])


def test_a_fault_stands_at_its_line_of_the_text(device: Device) -> None:
    with kernel_lab(SCALE, device) as view:
        view.run(SCALE.replace("*= 2.0", "*= two<b>")).wait(60)
        now = view.state()
        assert now["faults"][0][0] == 8
        assert "two" in now["faults"][0][1]
        assert now["trials"] == []
        html = view.html()
        assert "▸   8      if (i &lt; count) x.v[i] *= two&lt;b&gt;;" in html
        assert "does not compile" in html
        assert repr(view).startswith("<kernel lab of kernel: line 8: ")
    assert faults("k:3: error: a; k:5: error: b; c", "k") == [(3, "error: a"), (5, "error: b; c")]


@pytest.mark.usefixtures("codeless")
def test_a_kernel_of_ones_own_is_tried_by_ones_own_reference(device: Device) -> None:
    data = np.arange(100, dtype=np.float32)

    def trial(kernel: Kernel) -> Trial:
        with device.pool("scale") as pool:
            x = pool.buffer(data)
            seconds = kernel.run(13, x=x, count=100)
            return Trial(nmse(x.download(np.float32, (100,)), 2 * data), 1e-7, seconds, nbytes=800, label="scale 100")

    with kernel_lab(SCALE, device) as view:
        assert view.run().wait(60)
        assert "No case of `lab bench ops` runs a shader 'kernel'" in view.state()["notes"][0]
    with kernel_lab(SCALE, device, trial=trial) as view:
        assert view.run().wait(60)
        (one,) = view.state()["trials"]
        assert one["right"]
        assert one["gb_s"] == pytest.approx(800 / one["seconds"] / 1e9)
        view.run(SCALE.replace("2.0", "3.0")).wait(60)
        assert not view.state()["trials"][0]["right"]


@pytest.mark.usefixtures("codeless")
def test_constants_that_are_gone_and_faults_of_a_trial_are_one_line(device: Device) -> None:
    def trial(kernel: Kernel) -> Trial:
        raise IndexError("off the end")

    with kernel_lab(SCALE, device, trial=trial) as view:
        view.run().wait(60)
        assert view.error == "IndexError: off the end"
    with kernel_lab("rms_norm", device) as view:
        view.run(view.source.replace("GATHER", "GATHERED")).wait(60)
        assert "rms_norm has no specialisation constant 'GATHER'" in view.error
        assert "it has GATHERED, LOCAL" in view.picture()


def test_the_text_of_a_kernel_of_the_notebook_is_that_of_its_newest_cell(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = ["%%glsl scale --set LOCAL=8\nold", f"%%glsl scale\n{SCALE}", "%%glsl scale2\nother", "scale"]
    shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=["", *cells]))
    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: shell)
    assert text_of("scale") == SCALE
    kernel = Kernel(device, SCALE, name="scale")
    with kernel_lab(kernel) as view:
        assert (view.source, view.name, view.device) == (SCALE, "scale", device)
    kernel.close()


def test_what_is_no_kernel_is_refused_with_what_there_is(device: Device) -> None:
    with pytest.raises(ShaderError, match="there is no shader 'rms'; there are add, advance"):
        kernel_lab("rms", device)
    with pytest.raises(ParameterError, match=r"kernel_lab\(3\): give a shader's name"):
        kernel_lab(3, device)  # type: ignore[arg-type]
    kernel = device.kernel("add")
    with pytest.raises(ParameterError, match="no %%glsl cell of this notebook made 'add'"):
        kernel_lab(kernel)
