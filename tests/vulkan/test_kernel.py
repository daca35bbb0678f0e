"""A kernel's constants, push members, grid and workgroup are checked by name before the driver sees them."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_kernels import BLEND, SHAPES, needs_compiler

from labkit.errors import DeviceError, ParameterError, ShaderError
from labkit.vulkan.compile import compile_glsl, load_spirv
from labkit.vulkan.device import Device
from labkit.vulkan.kernel import Kernel

pytestmark = [pytest.mark.quick, needs_compiler]


@pytest.fixture(scope="module")
def blend() -> bytes:
    return compile_glsl(BLEND, name="blend")


@pytest.mark.parametrize("local", [1, 7, 32, 64, 256])
@pytest.mark.parametrize(("scale", "negate"), [(1.0, False), (-0.5, False), (2.0, True)])
def test_constants_reach_the_kernel_by_name(device, blend, local, scale, negate):
    x, y = np.arange(100, dtype=np.float32), np.full(100, 3, np.float32)
    kernel = Kernel(device, blend, constants={"NEGATE": negate, "SCALE": scale, "LOCAL": local})
    with device.pool() as pool:
        source, target = pool.buffer(x), pool.buffer(y)
        kernel.run(-(-100 // local), x=source, y=target, k=2.0, n=90)
        pool.check_guards()
        got = target.download(np.float32)
    want = np.where(np.arange(100) < 90, (-scale if negate else scale) * (2 * y + x), y)
    np.testing.assert_array_equal(got, want)
    assert kernel.interface.local_size == (local, 1, 1)
    kernel.close()
    kernel.close()


def test_glsl_text_is_compiled_when_given_instead_of_spirv(device):
    kernel = Kernel(device, BLEND, name="text", constants={"LOCAL": 4})
    assert repr(kernel) == "<Kernel text(LOCAL=4) workgroup (4, 1, 1)>"
    kernel.close()


def test_a_constant_that_does_not_exist_is_refused_with_those_that_do(device, blend):
    with pytest.raises(ShaderError, match=r"^blend has no specialisation constant 'LOCALS'; it has [A-Z, ]*LOCAL"):
        Kernel(device, blend, name="blend", constants={"LOCALS": 4})


@pytest.mark.parametrize("value", ["four", None, float("nan"), 1.5, 1 << 32, -(1 << 31) - 1])
def test_a_constant_of_a_wrong_value_is_refused_in_one_line(device, blend, value):
    with pytest.raises(ShaderError, match=r"LOCAL") as caught:
        Kernel(device, blend, name="blend", constants={"LOCAL": value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("push", "complaint"),
    [
        ({"k": 1.0, "n": 1}, "blend lacks x, y; it takes x, y, k, n"),
        ({"x": 0, "y": 0, "k": 1.0, "n": 1, "m": 2}, "blend does not know m; it takes x, y, k, n"),
        ({"x": 0, "y": 0, "k": 1.0, "n": -1}, "n=-1 does not fit 'I'"),
        ({"x": 0, "y": 0, "k": "much", "n": 1}, "k='much' does not fit 'f'"),
        ({"x": 0, "y": 0, "k": 1.0, "n": 1.5}, "n=1.5 does not fit 'I'"),
        ({"x": 0, "y": 0, "k": 1.0, "n": (1, 2)}, r"n=\(1, 2\) does not fit 'I'"),
    ],
)
def test_push_members_are_complete_known_and_of_their_type(device, blend, push, complaint):
    kernel = Kernel(device, blend, name="blend")
    with pytest.raises(ParameterError, match=complaint):
        kernel.pack(push)
    kernel.close()


def test_packing_places_every_member_at_its_offset(device):
    kernel = Kernel(device, SHAPES, name="shapes")
    packed = kernel.pack(
        {"y": 0x1122334455667788, "count": 1, "offset": -1, "scale": 0.5, "shift": (2.0, 3.0), "mask": [1, 2, 3, 4]}
    )
    assert packed.hex(" ", 4) == (
        "88776655 44332211 01000000 ffffffff 0000003f 00000000 00000040 00004040 01000000 02000000 03000000 04000000"
    )
    kernel.close()


def test_the_shapes_kernel_computes_with_shared_memory(device):
    kernel = Kernel(device, SHAPES, name="shapes", constants={"WIDTH": 16, "ROWS": 2})
    with device.pool() as pool:
        out = pool.buffer(4)
        kernel.run(1, y=out, count=1000, offset=7, scale=20.0, shift=(3.0, 0.0), mask=(400, 0, 0, 0))
        pool.check_guards()
        assert out.download(np.uint32).tolist() == [1000 + 7 + 23 + 400]
    kernel.close()


def test_too_much_shared_memory_is_refused_with_both_sizes(device, monkeypatch):
    need = 4 * 16 * 3 + 16 * (2 * 16 >> 2) + 3 * 12
    constants = {"WIDTH": 16, "ROWS": 2}
    monkeypatch.setattr(device, "info", replace(device.info, max_shared_bytes=need))
    Kernel(device, SHAPES, name="big", constants=constants).close()
    monkeypatch.setattr(device, "info", replace(device.info, max_shared_bytes=need - 1))
    with pytest.raises(ShaderError, match=rf"big wants {need} bytes of shared memory; .* has {need - 1}$"):
        Kernel(device, SHAPES, name="big", constants=constants)


def test_too_many_push_constants_are_refused_with_both_sizes(device, monkeypatch):
    monkeypatch.setattr(device, "info", replace(device.info, max_push_bytes=44))
    with pytest.raises(ShaderError, match=r"big wants 48 bytes of push constants; .* takes 44$"):
        Kernel(device, SHAPES, name="big")


def test_a_constant_left_out_has_its_default_in_the_workgroup_size_too(device, blend):
    kernel = Kernel(device, blend, name="blend")
    assert kernel.interface.local_size == (32, 1, 1)
    with device.pool() as pool:
        source, target = pool.buffer(np.ones(32, np.float32)), pool.buffer(np.zeros(32, np.float32))
        kernel.run(1, x=source, y=target, k=1.0, n=32)
        assert target.download(np.float32).tolist() == [1.0] * 32
    kernel.close()


def test_a_workgroup_over_the_limit_is_refused_with_its_shape(device, blend):
    most = device.info.max_workgroup_invocations
    with pytest.raises(ShaderError, match=rf"wide: a workgroup of {most + 1}x1x1 is over what .* \({most}\)"):
        Kernel(device, blend, name="wide", constants={"LOCAL": most + 1})


@pytest.mark.parametrize("grid", [0, -1, (1, 0), (1, 1, -3), (1, 1, 1, 1), (1 << 31, 1)])
def test_a_grid_outside_the_limits_is_refused(device, blend, grid):
    kernel = Kernel(device, blend, name="blend")
    with pytest.raises(ParameterError, match=r"blend: a grid of .* is outside 1 to"):
        kernel.grid(grid)
    kernel.close()


def test_a_grid_has_one_to_three_sizes_of_any_whole_type(device, blend):
    kernel = Kernel(device, blend, name="blend")
    assert [kernel.grid(g) for g in (5, (5, 2), (5, 2, 3), np.int64(4))] == [(5, 1, 1), (5, 2, 1), (5, 2, 3), (4, 1, 1)]
    kernel.close()


def test_a_subgroup_size_the_device_does_not_have_is_refused(device, blend):
    if not device.has("subgroup_size_control"):
        Kernel(device, blend, name="blend", subgroup=3).close()  # ignored where nobody can choose
        return
    with pytest.raises(ShaderError, match=r"blend asks for subgroups of 3; .* has"):
        Kernel(device, blend, name="blend", subgroup=3)


def test_committed_kernels_are_built_once_for_each_set_of_constants(device):
    some, same = (device.kernel("add", constants={"LOCAL": 8}) for _ in range(2))
    assert some is same
    assert device.kernel("add", constants={"LOCAL": 16}) is not some
    assert load_spirv("add")[:4] == b"\x03\x02\x23\x07"


def test_buffers_freed_with_their_pool_are_refused_as_arguments(device, blend):
    kernel = Kernel(device, blend, name="blend")
    with device.pool() as pool:
        gone = pool.buffer(16, label="gone")
    for argument in (gone, gone.range(0, 4)):
        with pytest.raises(DeviceError, match=r"gone.* was freed"):
            kernel.run(1, x=argument, y=argument, k=1.0, n=1)
    kernel.close()


def test_kernels_close_with_their_device_and_none_is_made_after(blend):
    opened = Device(poison=True)
    kernel = Kernel(opened, blend, name="blend")
    opened.close()
    kernel.close()
    with pytest.raises(DeviceError, match=r"is closed"):
        Kernel(opened, blend)
