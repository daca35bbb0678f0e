"""The registry of metrics: complete definitions, one meaning a name, unknown names refused with near ones."""

import re
import subprocess
import sys

import pytest

from labkit.errors import LabError, ParameterError
from labkit.measure.metrics import METRICS, define, metric

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_metric_is_defined_completely(name: str) -> None:
    known = METRICS[name]
    assert known.id == name
    assert known.unit
    assert known.definition
    assert known.formula
    assert known.better in ("higher", "lower", "none")
    assert known.definition in known._repr_html_().replace("&#x27;", "'").replace("&gt;", ">")


@pytest.mark.parametrize(
    ("suffix", "unit"),
    [("_tok_s", "tok/s"), ("_gb_s", "GB/s"), ("_bytes", "bytes"), ("_w", "W"), ("_us", "us"), ("_req_s", "req/s")],
)
def test_a_unit_in_a_name_is_the_metrics_unit(suffix: str, unit: str) -> None:
    named = [known for name, known in METRICS.items() if name.endswith(suffix)]
    assert named
    assert {known.unit for known in named} == {unit}


def test_rates_are_better_higher_and_times_lower() -> None:
    for name, known in METRICS.items():
        if re.search(r"_(tok|req|gb)_s$", name):
            assert known.better == "higher", name
        elif known.unit in ("s", "ms", "us"):
            assert (known.better, known.timed) == ("lower", True), name


@pytest.mark.parametrize(
    ("name", "id", "unit", "better"),
    [
        ("TTFT", "ttft_s", "s", "lower"),
        ("TPOT", "tpot_s", "s", "lower"),
        ("ITL", "itl_s", "s", "lower"),
        ("goodput", "goodput_req_s", "req/s", "higher"),
        ("prefill throughput", "prefill_tok_s", "tok/s", "higher"),
        ("decode throughput", "decode_tok_s", "tok/s", "higher"),
        ("acceptance rate", "acceptance", "1", "higher"),
        ("tokens per step", "tokens_per_step", "tok", "higher"),
        ("J/token", "j_per_token", "J/tok", "lower"),
    ],
)
def test_what_the_field_measures_is_there_under_its_own_name(name: str, id: str, unit: str, better: str) -> None:
    known = METRICS[id]
    assert (known.name, known.unit, known.better) == (name, unit, better)
    assert f"{name}: " in known.row()[3]
    with pytest.raises(ParameterError, match=rf"did you mean {id}"):
        metric(name)


def test_no_two_metrics_share_a_name_of_the_field() -> None:
    names = [known.name for known in METRICS.values() if known.name]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("decode_toks", "decode_tok_s"), ("ttft", "ttft_s"), ("prefil_tok_s", "prefill_tok_s"), ("gpu_ms", "gpu_ms_step")],
)
def test_an_unknown_metric_is_refused_with_the_nearest_names(wrong: str, near: str) -> None:
    with pytest.raises(ParameterError, match=rf"'{wrong}' is not a registered metric; did you mean .*{near}"):
        metric(wrong)


def test_a_metric_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(ParameterError, match=r"there are: acceptance, .*ttft_s"):
        metric("qqqq")


def test_one_name_never_means_two_things() -> None:
    with pytest.raises(LabError, match="ttft_s is defined already: time to first token"):
        define("ttft_s", "s", "lower", "something else", "x")
    with pytest.raises(LabError, match="cannot be a metric"):
        define("tok/s", "tok/s", "higher", "not a keyword", "x")
    assert "tok/s" not in METRICS


def test_the_registry_loads_without_heavy_libraries() -> None:
    code = "import sys, labkit.measure.metrics; print('scipy.stats' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
