"""Cuts that `lab tune` kept: read back whole, and forgotten when they are not of this device, driver and kernels."""

import json

import pytest
from click.testing import CliRunner

from labkit.commands.tune import command
from labkit.errors import LabError
from labkit.ops import linear_tuned
from labkit.ops.linear_cuts import Coopmat, Matvec, choose
from labkit.ops.linear_fragments import Fragments
from labkit.ops.linear_tuned import keep, key_of, path_of, tuned

CUTS = {
    key_of("f16", 1, 64, 32): Matvec(1, 2, 8, 4, pipe=True),
    key_of("q8", 8, 64, 32): Fragments(2, 1, 1, 1, 4, paired=True),
    key_of("q4k", 8, 64, 256): Coopmat(1, 1, 1, 1, 2, 1, 16, 32),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache of the test's own, and nothing known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LABKIT_DISABLE", raising=False)
    linear_tuned._known.clear()
    yield tmp_path
    linear_tuned._known.clear()


def read_again(device):
    linear_tuned._known.clear()
    return tuned(device)


def test_what_is_kept_is_read_back_and_joined_by_later_cuts(device):
    assert tuned(device) == {}
    keep(device, CUTS)
    assert tuned(device) == read_again(device) == CUTS
    later = {key_of("f16", 1, 64, 32): Matvec(1, 1, 16, 2)}
    keep(device, later)
    assert read_again(device) == CUTS | later
    assert not list(path_of(device).parent.glob("*.tmp"))


def test_a_kept_cut_is_chosen_before_the_default(device, monkeypatch):
    monkeypatch.setattr(type(device), "is_cpu", property(lambda self: False))
    default, _ = choose(device, "f16", 1, 64, 32, exact=False, swiglu=False)
    keep(device, CUTS)
    cut, why = choose(device, "f16", 1, 64, 32, exact=False, swiglu=False)
    assert (cut, why) == (CUTS[key_of("f16", 1, 64, 32)], "tuned on this device")
    assert cut != default
    assert choose(device, "f16", 1, 64, 32, exact=True, swiglu=False)[0] != cut
    monkeypatch.setenv("LABKIT_DISABLE", "tuned")
    linear_tuned._known.clear()
    assert choose(device, "f16", 1, 64, 32, exact=False, swiglu=False)[0] == default


@pytest.mark.parametrize(
    "change", [{"kernels": "0123456789abcdef"}, {"format": 1}, {"cuts": None}, {"cuts": 5}], ids=str
)
def test_cuts_of_other_kernels_or_another_format_are_forgotten(device, change):
    path = keep(device, CUTS)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_again(device) == {}


@pytest.mark.parametrize(
    "entry",
    [{"cut": "Matvec"}, {"cut": "Nothing"}, {"cut": ["Matvec"]}, {"cut": "Matvec", "cols": "1"}, [], None, 7,
     {"cut": "Matvec", "cols": 1, "tiles": 1, "teams": 8, "unroll": 1, "wings": 2}],
    ids=str,
)  # fmt: skip
def test_an_entry_that_is_no_cut_is_left_out(device, entry):
    path = keep(device, CUTS)
    document = json.loads(path.read_text())
    document["cuts"]["f16 2x64x32"] = entry
    path.write_text(json.dumps(document))
    assert read_again(device) == CUTS


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\x00"], ids=repr)
def test_a_damaged_file_counts_as_none(device, text):
    keep(device, CUTS).write_text(text)
    assert read_again(device) == {}


def test_a_cache_that_cannot_be_written_is_one_line(device, own_cache):
    (own_cache / "labkit").write_text("a file where the folder should be")
    with pytest.raises(LabError, match=r"the cuts could not be kept in .*XDG_CACHE_HOME"):
        keep(device, CUTS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--shape", "tiny"], "is a driver on the CPU: only a GPU's cuts are tuned"),
        (["--shape", "tiny", "--batch", "1,x"], "'1,x' is not a list of numbers"),
        ([], "name a model, or give --shape"),
        (["--shape", "nothing"], "nothing"),
    ],
    ids=["cpu", "batch", "neither", "unknown"],
)
def test_lab_tune_refuses_in_one_line(device, given, said):
    if not device.is_cpu and "unknown" not in said and given == ["--shape", "tiny"]:
        pytest.skip("this device is tuned")
    done = CliRunner().invoke(command, [*given, "--device", device.name])
    assert isinstance(done.exception, LabError)
    assert done.exception.exit_code == 2
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
