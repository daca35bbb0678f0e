"""Programs: barriers derived from declared ranges against brute force, replay, fingerprints and GPU time."""

import itertools
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from tiny_kernels import BLEND, needs_compiler

from labkit.errors import DeviceError, ParameterError
from labkit.ops import add as add_op
from labkit.vulkan import program as program_module
from labkit.vulkan.compile import compile_glsl
from labkit.vulkan.kernel import Kernel
from labkit.vulkan.program import Program

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def blend(device):
    """y = y * k + x over n floats, workgroups of 32."""
    kernel = Kernel(device, BLEND, name="blend", constants={"LOCAL": 32})
    yield kernel
    kernel.close()


def expected_barriers(accesses):
    """Brute force over sets of bytes: a barrier before each access that conflicts with one since the last barrier.

    accesses: (bytes read, bytes written) of each operation. A conflict is read after write, write after write or
    write after read on some byte.
    """
    needed, since = [], []
    for reads, writes in accesses:
        clash = any(reads & w or writes & w or writes & r for r, w in since)
        needed.append(clash)
        since = [(reads, writes)] if clash else [*since, (reads, writes)]
    return needed


@needs_compiler
@pytest.mark.parametrize(
    ("name", "first", "second", "waits"),
    [
        ("read after write", ("abc", "d"), ("d", "e"), True),
        ("write after write", ("a", "d"), ("b", "d"), True),
        ("write after read", ("a", "d"), ("b", "a"), True),
        ("read after read", ("a", "d"), ("a", "e"), False),
        ("disjoint", ("a", "b"), ("c", "d"), False),
    ],
)
def test_two_dispatches_wait_only_where_they_meet(device, blend, name, first, second, waits):
    with device.pool() as pool:
        buffers = {letter: pool.buffer(64) for letter in "abcde"}
        program = device.program(name)
        for reads, writes in (first, second):
            program.dispatch(
                blend, 1, {"x": buffers[reads[0]], "y": buffers[writes[0]], "k": 1.0, "n": 16},
                reads=[buffers[c] for c in reads], writes=[buffers[c] for c in writes],
            )  # fmt: skip
        assert [d.barrier for d in program.dispatches] == [False, waits]


@needs_compiler
def test_parts_of_one_buffer_that_touch_but_do_not_overlap_do_not_wait(device, blend):
    with device.pool() as pool:
        buffer = pool.buffer(256)
        program = device.program()
        push = {"x": buffer, "y": buffer, "k": 1.0, "n": 1}
        for start, nbytes in ((0, 100), (100, 100), (200, 4), (199, 1)):
            program.dispatch(blend, 1, push, writes=[buffer.range(start, nbytes)])
        assert [d.barrier for d in program.dispatches] == [False, False, False, True]


@needs_compiler
@pytest.mark.parametrize("seed", range(8))
def test_barriers_of_random_programs_agree_with_brute_force(device, blend, seed):
    rng = np.random.default_rng(seed)
    with device.pool() as pool:
        buffer = pool.buffer(64)
        program, accesses, kinds = device.program(), [], []

        def piece():
            start = int(rng.integers(0, 15))
            return buffer.range(start * 4, int(rng.integers(1, 4 if start < 13 else 16 - start)) * 4)

        def covered(ranges):
            return {at for r in ranges for at in range(r.start, r.end)}

        for _ in range(60):
            kind = rng.choice(["dispatch", "fill", "copy"], p=[0.7, 0.15, 0.15])
            if kind == "dispatch":
                reads, writes = (
                    [piece() for _ in range(rng.integers(0, 3))],
                    [piece() for _ in range(rng.integers(0, 3))],
                )
                program.dispatch(blend, 1, {"x": buffer, "y": buffer, "k": 1.0, "n": 0}, reads=reads, writes=writes)
            elif kind == "fill":
                reads, writes = [], [piece()]
                program.fill(writes[0], 1)
            else:
                reads = [buffer.range(0, 8)]
                writes = [buffer.range(int(rng.integers(2, 14)) * 4, 8)]
                program.copy(reads[0], writes[0])
            accesses.append((covered(reads), covered(writes)))
            kinds.append(kind)
    want = expected_barriers(accesses)
    got, waiting = [], False
    for operation in program._operations:
        if operation[0] == "barrier":
            waiting = True
        else:
            got.append(waiting)
            waiting = False
    assert got == want
    dispatched = [wait for wait, kind in zip(want, kinds, strict=True) if kind == "dispatch"]
    assert [d.barrier for d in program.dispatches] == dispatched
    assert 5 < sum(want) < 60


def groups(program):
    """The program's operations cut at its barriers."""
    return [
        list(part)
        for barrier, part in itertools.groupby(program._operations, lambda o: o[0] == "barrier")
        if not barrier
    ]


@needs_compiler
def test_between_barriers_any_order_gives_the_same_result(device, blend):
    """If a barrier were missing, turning a group round would change what a chain of writes leaves behind."""
    rng = np.random.default_rng(1)
    content = [rng.integers(-3, 4, 16).astype(np.float32) for _ in range(6)]
    with device.pool() as pool:
        buffers = [pool.buffer(c) for c in content]
        program = device.program("chain")
        for _ in range(40):
            x, y = (int(i) for i in rng.choice(6, 2, replace=False))
            push = {"x": buffers[x], "y": buffers[y], "k": 0.5, "n": 16}
            program.dispatch(blend, 1, push, reads=[buffers[x], buffers[y]], writes=[buffers[y]])
        cut = groups(program)
        assert 5 < len(cut) < 40, "some dispatches are independent, some wait"

        def outcome(order):
            for buffer, start in zip(buffers, content, strict=True):
                buffer.upload(start)
            for operation in order:  # one at a time, each waited for
                single = device.program()
                single._operations.append(operation)
                single.submit().wait()
                single.close()
            return [b.download(np.float32) for b in buffers]

        want = outcome([o for part in cut for o in part])
        turned = outcome([o for part in cut for o in reversed(part)])
        np.testing.assert_array_equal(turned, want)
        for buffer, start in zip(buffers, content, strict=True):
            buffer.upload(start)
        program.run()
        np.testing.assert_array_equal([b.download(np.float32) for b in buffers], want)
        pool.check_guards()
        program.close()


@needs_compiler
@pytest.mark.parametrize("times", [1, 2, 7])
def test_a_program_replays_in_one_submit(device, blend, times):
    with device.pool() as pool:
        source, target = pool.buffer(np.ones(8, np.float32)), pool.buffer(np.zeros(8, np.float32))
        program = device.program()
        program.dispatch(
            blend, 1, {"x": source, "y": target, "k": 2.0, "n": 8}, reads=[source, target], writes=[target]
        )
        program.submit(times).wait()
        assert target.download(np.float32).tolist() == [2.0**times - 1] * 8  # y = 2 y + 1 from 0
        program.run(times)
        assert target.download(np.float32).tolist() == [4.0**times - 1] * 8
        program.close()


@pytest.mark.parametrize("times", [0, -1])
def test_a_program_runs_at_least_once(device, times):
    with pytest.raises(ParameterError, match=rf"at least once, not {times} times"):
        device.program().submit(times)


def test_copies_and_fills_reach_exactly_their_range(device):
    with device.pool() as pool:
        a, b = pool.buffer(np.arange(32, dtype=np.uint32)), pool.buffer(np.zeros(32, np.uint32))
        program = device.program()
        program.copy(a.range(16, 12), b.range(100, 12))
        program.fill(b.range(0, 8), 0xABCD)
        program.fill(b.range(108, 4), 9)  # over the copy, and after it
        program.submit().wait()
        want = np.zeros(32, np.uint32)
        want[25:28], want[:2], want[27] = [4, 5, 6], 0xABCD, 9
        np.testing.assert_array_equal(b.download(np.uint32), want)
        pool.check_guards()
        program.close()
        with pytest.raises(ParameterError, match=r"copying 12 bytes into 16"):
            device.program().copy(a.range(0, 12), b.range(0, 16))
        for bad in (a.range(0, 6), a.range(2, 4)):
            with pytest.raises(ParameterError, match=r"multiples of 4"):
                device.program().fill(bad)


@needs_compiler
def test_the_fingerprint_follows_the_plan_and_not_the_addresses(device):
    kernels = [
        Kernel(device, binary, name="blend", constants={"LOCAL": local, "SCALE": scale})
        for binary in [compile_glsl(BLEND, name="blend")]
        for local, scale in ((32, 1.0), (64, 1.0), (32, 2.0))
    ]

    def fingerprint(*, kernel=kernels[0], grid=1, size=64, k=1.0, second=False, label=""):
        with device.pool() as pool:
            pool.buffer(int(rng.integers(1, 5000)))  # so that addresses differ
            x, y = pool.buffer(size), pool.buffer(size)
            program = device.program()
            for _ in range(1 + second):
                program.dispatch(kernel, grid, {"x": x, "y": y, "k": k, "n": 1}, reads=[x], writes=[y], label=label)
        return program.fingerprint

    rng = np.random.default_rng(0)
    base = fingerprint()
    assert re.fullmatch(r"[0-9a-f]{16}", base)
    assert {fingerprint() for _ in range(5)} == {base}
    changed = [
        fingerprint(kernel=kernels[1]), fingerprint(kernel=kernels[2]), fingerprint(grid=2),
        fingerprint(grid=(1, 2)), fingerprint(size=68), fingerprint(second=True), fingerprint(label="other"),
    ]  # fmt: skip
    assert len({base, *changed}) == 1 + len(changed)
    for kernel in kernels:
        kernel.close()


@needs_compiler
def test_the_fingerprint_follows_what_is_pushed_and_moved(device, blend):
    def fingerprint(fill=4, copy=4, n=1, k=1.0):
        with device.pool() as pool:
            pool.buffer(int(rng.integers(1, 5000)))
            x, y = pool.buffer(64), pool.buffer(64)
            program = device.program()
            program.fill(x.range(0, fill), 7)
            program.copy(x.range(0, copy), y.range(0, copy))
            program.dispatch(blend, 1, {"x": x, "y": y, "k": k, "n": n}, reads=[x], writes=[y])
        return program.fingerprint

    rng = np.random.default_rng(0)
    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(fill=8), fingerprint(copy=8), fingerprint(n=2), fingerprint(k=2.0)}) == 5


@needs_compiler
def test_gpu_seconds_are_positive_and_no_longer_than_the_wall(device, blend):
    if not device.info.timestamp_bits:
        pytest.skip("the device's queue has no timestamps")
    with device.pool() as pool:
        x, y = (pool.buffer(np.zeros(1 << 20, np.float32)) for _ in range(2))
        program = device.program()
        for _ in range(5):
            program.dispatch(blend, (1 << 20) // 32, {"x": x, "y": y, "k": 1.0, "n": 1 << 20}, reads=[x, y], writes=[y])
        program.record()
        began = time.perf_counter()
        program.submit().wait()
        wall = time.perf_counter() - began
        seconds = program.gpu_seconds()
        assert 1e-6 < seconds <= wall * 1.05
        least = 5 * 3 * 4 * (1 << 20) / 20e12  # no memory moves 20 TB/s
        assert seconds > least
        profiled = program.profile(repeats=2)
        assert [d.label for d, _ in profiled] == ["blend"] * 5
        assert all(part > 0 for _, part in profiled)
        assert sum(part for _, part in profiled) < 20 * seconds
        program.close()


def test_there_is_no_gpu_time_before_a_run(device):
    program = device.program("new")
    with pytest.raises(DeviceError, match=r"program new has not run"):
        program.gpu_seconds()


def test_a_device_without_timestamps_says_so(device, monkeypatch):
    monkeypatch.setattr(device, "info", replace(device.info, timestamp_bits=0))
    program = device.program()
    program.submit().wait()
    with pytest.raises(DeviceError, match=r"no timestamps on its compute queue: use wall time"):
        program.gpu_seconds()
    program.close()


def test_a_recorded_program_takes_no_more_and_a_closed_one_does_not_run(device):
    with device.pool() as pool:
        buffer = pool.buffer(4)
        program = device.program("done")
        program.fill(buffer, 1)
        program.submit().wait()
        with pytest.raises(ParameterError, match=r"the program done is recorded"):
            program.fill(buffer, 2)
        program.close()
        program.close()
        with pytest.raises(DeviceError, match=r"the program done is closed"):
            program.submit()
        with pytest.raises(ParameterError, match=r"the program done is closed"):
            program.fill(buffer, 2)


def test_costs_add_up_and_the_list_is_shown(device):
    with device.pool() as pool:
        x, y = (pool.buffer(64) for _ in range(2))
        program = device.program("<sum>")
        add_op.record(program, x, y, count=1, width=16, x_stride=16, y_stride=16)
        assert program.nbytes == sum(d.nbytes for d in program.dispatches) == 3 * 64
        assert program.flops == 16
        assert repr(program).startswith("<Program <sum>: 1 dispatches, 0 barriers, ")
        assert "<sum>" not in program._repr_html_()


def test_an_interrupted_wait_can_be_taken_up_again(device, monkeypatch):
    with device.pool() as pool:
        buffer = pool.buffer(16)
        program = Program(device)
        program.fill(buffer, 5)
        submission = program.submit()
        real = device.lib

        class Interrupting:
            def __getattr__(self, name):
                if name == "vkWaitForFences":
                    raise KeyboardInterrupt
                return getattr(real, name)

        monkeypatch.setattr(device, "lib", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            submission.wait()
        monkeypatch.undo()
        submission.wait()
        assert buffer.download(np.uint32).tolist() == [5] * 4
        program.close()
    assert program_module.GPU_TIMEOUT_S >= 10
