"""The device's ceilings: measured with checked kernels, kept by device and driver, read again."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import DeviceError, ParameterError
from labkit.measure import matrix_rate as rates
from labkit.measure import roofline
from labkit.measure.bench.ceilings import Ceilings, ceilings_of
from labkit.measure.processes import cpu_seconds
from labkit.measure.roofline import MatrixRate, ReadBandwidth, matrix_rate, read_bandwidth, warm_up
from labkit.vulkan.device import Device
from labkit.vulkan.hardware import MatrixShape, matrix_shapes, pci_address

SHARE = roofline.others_share  # as it is: the fixture below has it say 0


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own, a short stream and short loops: what is tested is not how fast the device is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(roofline, "stream_bytes", lambda device: 1 << 22)
    monkeypatch.setattr(roofline, "others_share", lambda *_: 0.0)
    monkeypatch.setattr(rates, "_LONG_S", 1e-4)
    monkeypatch.setattr(rates, "_CUTS_CPU", ((2, 2, 1),))


def test_the_read_bandwidth_is_measured_once_and_kept(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_bandwidth(device, repetitions=3)
    assert 0 < first.gb_s <= first.best_gb_s
    assert first.device == device.name
    monkeypatch.setattr(roofline, "_measure", lambda *_: pytest.fail("it was measured again"))
    assert read_bandwidth(device) == first


def test_what_was_measured_beside_other_programs_is_not_kept(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "others_share", lambda *_: 0.3)
    assert read_bandwidth(device, repetitions=1).gb_s > 0
    assert roofline._path(device).exists() is not device.is_cpu


def test_the_load_of_others_is_what_this_process_did_not_take() -> None:
    cores = os.cpu_count() or 1
    all_s, own_s = cpu_seconds(roofline.PROC), time.process_time()
    if all_s is None:
        pytest.skip("this system does not tell the seconds that its processor ran")
    assert SHARE(time.monotonic() - 10, all_s - 4 * cores, own_s) == pytest.approx(0.4, abs=0.05)
    assert SHARE(time.monotonic() - 10, all_s - 4 * cores, own_s - 4 * cores) == pytest.approx(0, abs=0.05)
    assert SHARE(0.0, None, own_s) == 0


def test_what_an_older_labkit_kept_is_measured_again(device: Device) -> None:
    path = roofline._path(device)
    path.parent.mkdir(parents=True)
    old = ReadBandwidth(1e9, 1e9, 1, 1, "", "", "")
    path.write_text(json.dumps(asdict(old)))
    assert read_bandwidth(device, repetitions=1).gb_s < 1e6
    path.write_text("{ torn")
    assert read_bandwidth(device, repetitions=1).gb_s < 1e6


def test_a_wrong_checksum_is_an_error_and_not_a_rate(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    right = type(np.random.default_rng()).integers

    class OneOff:
        """A generator whose numbers change after they were summed: as if the device read something else."""

        def __init__(self, seed: int) -> None:
            self.chance = np.random.Generator(np.random.PCG64(seed))

        def integers(self, *arguments: object, **options: object) -> np.ndarray:
            return right(self.chance, *arguments, **options).view(Altered)

    class Altered(np.ndarray):
        def sum(self, *arguments: object, **options: object) -> object:
            return super().sum(*arguments, **options) + 1

    monkeypatch.setattr(np.random, "default_rng", OneOff)
    with pytest.raises(DeviceError, match="read a wrong checksum"):
        roofline._measure(device, 1)


def test_reads_and_products_are_kept_in_one_file(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    read, rate = read_bandwidth(device, repetitions=1), matrix_rate(device, "float32", repetitions=1)
    assert set(json.loads(roofline._path(device).read_text())) == {"read", "float32"}
    monkeypatch.setattr(rates, "measure", lambda *_: pytest.fail("it was measured again"))
    assert (read_bandwidth(device), matrix_rate(device, "float32")) == (read, rate)


def test_a_home_that_cannot_be_written_costs_only_the_keeping(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert matrix_rate(device, "float32", repetitions=1).tflop_s > 0


def test_fused_multiply_adds_run_on_every_device(device: Device) -> None:
    rate = matrix_rate(device, "float32", repetitions=3)
    assert (rate.kind, rate.shape) == ("float32", ())
    assert 0 < rate.tflop_s <= rate.best_tflop_s
    assert "float32" in rates.kinds(device)


def test_the_check_of_a_loop_tells_one_round_from_another(device: Device) -> None:
    with device.pool("rate") as pool:
        for trial in rates._fused(device, pool):
            program = trial.build(33)
            program.submit().wait()
            assert trial.check(33)
            assert not trial.check(34)
            program.close()


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_matrix_products_are_the_sums_they_must_be(kind: str, coopmat_device: Device) -> None:
    if kind not in rates.kinds(coopmat_device):
        pytest.skip(f"{coopmat_device.name} lists no {kind} matrix product")
    with coopmat_device.pool("rate") as pool:
        for trial in rates._matrices(coopmat_device, pool, kind):
            program = trial.build(5)
            program.submit().wait()
            assert trial.check(5)
            assert not trial.check(6)
            program.close()
        coopmat_device.poison and pool.check_guards()
    rate = matrix_rate(coopmat_device, kind, repetitions=2)
    assert rate.kind == kind
    assert rate.shape in {(s.m, s.n, s.k) for s in matrix_shapes(coopmat_device)}
    assert matrix_rate(coopmat_device, kind) == rate  # the shape comes back as a tuple


def test_a_wrong_product_is_an_error_and_not_a_rate(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates._Trial, "__init__", _always_wrong(rates._Trial.__init__))
    with pytest.raises(DeviceError, match=r"computes float32 .* wrong: do not trust it"):
        rates.measure(device, "float32", 1)


def _always_wrong(make):  # type: ignore[no-untyped-def]
    def init(self, cut, shape, flops, most, build, check):  # type: ignore[no-untyped-def]
        make(self, cut, shape, flops, most, build, lambda rounds: False)

    return init


def test_unknown_and_missing_kinds_are_told_apart(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="a matrix rate of 'fp4' is not one of float16, int8, float32"):
        matrix_rate(device, "fp4")
    monkeypatch.setattr(rates, "matrix_shapes", lambda device: [])
    with pytest.raises(DeviceError, match="lists no float16 matrix product; there are float32"):
        matrix_rate(device, "float16")


def test_shares_are_of_the_measured_ceilings_and_the_best_floating_rate() -> None:
    read = ReadBandwidth(100.0, 110.0, 1, 1, "d", "v", "u")
    each = {
        kind: MatrixRate(kind, rate, rate, (), "cut", 1, "d", "v", "u")
        for kind, rate in (("float16", 2.0), ("int8", 8.0), ("float32", 4.0))
    }
    ceilings = Ceilings(read, each)
    assert ceilings.shares({"achieved_gb_s": 25.0, "achieved_gflop_s": 1000.0}) == {
        "share_of_read_bandwidth": 0.25, "share_of_matrix_rate": 0.25,
    }  # fmt: skip
    assert ceilings.shares({"kernel_us": 1.0}) == {}


def test_one_kind_that_is_computed_wrong_leaves_the_others(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rates.measure

    def measure(on: Device, kind: str, repetitions: int) -> MatrixRate:
        if kind != "float32":
            raise DeviceError(f"{kind} is wrong here")
        return real(on, kind, repetitions)

    monkeypatch.setattr(rates, "kinds", lambda on: ["float16", "float32"])
    monkeypatch.setattr(rates, "measure", measure)
    found = ceilings_of(device)
    assert list(found.rates) == ["float32"]
    assert "float16 is wrong here" in found.text()


def test_warming_up_is_for_gpus(device: Device) -> None:
    if not device.is_cpu:
        pytest.skip("a GPU is warmed up for as long as asked: a test of time alone")
    warm_up(device, seconds=1e9)


def test_shapes_and_place_are_what_the_driver_says(device: Device) -> None:
    shapes = matrix_shapes(device)
    assert bool(device.coopmat_size) <= bool(shapes)
    assert MatrixShape(16, 8, 32, "int8", "int8", "int32").flops == 2 * 16 * 8 * 32
    assert pci_address(device) is None or len(str(pci_address(device)).split(":")) == 3
