"""vLLM, guidellm and aiperf: their requests and summaries in our metrics, whose definitions are not always theirs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import RunError
from labkit.lab.importers.document import read_document
from labkit.lab.importers.registry import Contents, importer_of

pytestmark = pytest.mark.quick
Altered = Callable[..., Path]


def read(path: Path) -> Contents:
    document = read_document(path)
    return importer_of(document).read(document)


def without_arrays(value: dict[str, Any]) -> None:
    for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"):
        del value[name]


# vLLM


def test_the_metrics_of_vllm_come_from_its_requests(samples: Path) -> None:
    [one] = read(samples / "vllm.json").measured
    assert one.knobs == {"runtime": "vllm", "phase": "mixed", "streams": 2, "prompt": 256, "generate": 4}
    assert one.metrics["ttft_s"] == pytest.approx(0.0575)  # median of 50, 60, 55 and 65 ms
    assert one.metrics["tpot_s"] == pytest.approx(0.021)  # mean gaps of 20, 22, 21 and 21 ms
    assert one.metrics["itl_s"] == pytest.approx(0.0205)  # median of all twelve gaps
    assert one.metrics["e2e_s"] == pytest.approx(0.122)  # 110, 126, 118 and 128 ms
    assert one.metrics["total_tok_s"] == pytest.approx(16 / 0.254)
    assert one.metrics["makespan_s"] == 0.254


def test_a_request_that_failed_is_kept_with_its_error_and_counts_in_no_latency(samples: Path) -> None:
    [one] = read(samples / "vllm.json").measured
    failed = one.requests[4]
    assert failed["error"] == "Internal Server Error"
    assert failed["finish"] == "error"
    assert "ttft_s" not in failed
    assert one.metrics["completion_tokens"] == 4


def test_a_summary_of_vllm_without_requests_gives_the_same_metrics(samples: Path, altered: Altered) -> None:
    [whole] = read(samples / "vllm.json").measured
    [summary] = read(altered("vllm.json", without_arrays)).measured
    assert summary.metrics == pytest.approx(whole.metrics)
    assert "prompt" not in summary.knobs  # the lengths of single requests are not told


def test_requests_that_arrive_at_a_rate_are_no_number_of_streams(samples: Path) -> None:
    [one] = read(samples / "vllm-summary.json").measured
    assert "streams" not in one.knobs
    assert one.knobs["request_rate"] == 4.0
    assert one.knobs["max_concurrency"] == 32
    assert "runtime" not in one.knobs  # openai-chat is a kind of API, which many programs speak


def test_requests_sent_all_at_once_are_as_many_streams(altered: Altered) -> None:
    [one] = read(altered("vllm.json", lambda value: value.update(max_concurrency=None))).measured
    assert one.knobs["streams"] == 5


def test_a_zero_that_vllm_writes_for_want_of_samples_is_no_measurement(altered: Altered) -> None:
    def prompts_alone(value: dict[str, Any]) -> None:
        without_arrays(value)
        value.update(median_tpot_ms=0.0, median_itl_ms=0.0)

    [one] = read(altered("vllm.json", prompts_alone)).measured
    assert "tpot_s" not in one.metrics
    assert "itl_s" not in one.metrics


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completed": 5, "request_throughput": 5 / 0.254}, "completed is 5, but 4 requests have an output"),
        ({"total_output_tokens": 32, "output_throughput": 32 / 0.254}, "is 32, but output_lens sum to 16"),
        ({"output_throughput": 100.0}, "output_throughput is 100, but 16 in 0.254 s are 62.9"),
        ({"ttfts": [0.05]}, "ttfts has 1 entries, where output_lens has 5"),
        ({"completed": 0}, "no request succeeded"),
        ({"date": "yesterday"}, "date is 'yesterday'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_summary_of_vllm_that_its_requests_do_not_give_is_refused(
    altered: Altered, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(RunError, match=said):
        read(altered("vllm.json", lambda value: value.update(change)))


def test_a_file_that_vllm_appended_to_holds_repetitions(tmp_path: Path, samples: Path) -> None:
    line = json.dumps(json.loads((samples / "vllm.json").read_text()))
    path = tmp_path / "appended.json"
    path.write_text(f"{line}\n{line}\n")
    assert len(read(path).measured) == 2


# guidellm


def test_each_benchmark_of_guidellm_is_a_cell_by_its_strategy(samples: Path) -> None:
    contents = read(samples / "guidellm.json")
    one, two, poisson = (dict(measured.knobs) for measured in contents.measured)
    assert one == {"phase": "mixed", "streams": 1, "prompt": 64, "generate": 8}
    assert two["streams"] == 2
    assert "streams" not in poisson
    assert poisson["request_rate"] == 2.0
    assert poisson["arrival"] == "poisson"
    assert contents.model == {"name": "Qwen3-8B"}
    assert contents.packages == {"guidellm": "0.8.1"}


def test_the_tpot_of_guidellm_is_not_its_time_per_output_token(samples: Path) -> None:
    """Theirs counts the first token: (40 + 7 × 25) / 8 = 26.9 ms; ours is the 25 ms of each later token."""
    [one, *_] = read(samples / "guidellm.json").measured
    assert one.metrics["tpot_s"] == pytest.approx(0.025, rel=1e-4)
    assert one.metrics["ttft_s"] == pytest.approx(0.04)
    assert "itl_s" not in one.metrics  # it keeps no gaps
    assert one.metrics["total_tok_s"] == pytest.approx(24 / 0.75)


def test_times_of_guidellm_count_from_the_first_request_of_the_report(samples: Path) -> None:
    _, two, _ = read(samples / "guidellm.json").measured
    assert two.requests[0]["submit_s"] == pytest.approx(2.0, abs=1e-6)
    assert two.requests[0]["first_token_s"] == pytest.approx(2.05, abs=1e-6)
    assert two.requests[4]["error"] == "Server error 500"
    assert two.requests[0]["cached_tokens"] == 0


def test_where_guidellm_kept_only_some_requests_its_summaries_count(altered: Altered) -> None:
    def sampled(report: dict[str, Any]) -> None:
        del report["benchmarks"][0]["requests"]["successful"][1:]

    [one, *_] = read(altered("guidellm.json", sampled)).measured
    assert one.metrics["ttft_s"] == pytest.approx(0.04)
    assert "tpot_s" not in one.metrics
    assert "makespan_s" not in one.metrics
    assert "prompt" not in one.knobs


# aiperf


def test_records_of_aiperf_are_requests_without_the_warm_up(samples: Path) -> None:
    contents = read(samples / "aiperf.jsonl")
    [one] = contents.measured
    assert len(one.requests) == 4
    assert one.requests[3]["error"] == "Service Unavailable"
    assert one.metrics["ttft_s"] == pytest.approx(0.041)
    assert one.metrics["tpot_s"] == pytest.approx(0.061 / 3)  # 20, 21 and 20.33 ms
    assert one.metrics["itl_s"] == pytest.approx(0.02)
    assert one.metrics["makespan_s"] == pytest.approx(0.212)  # from 0 to 110 + 41 + 61 ms
    assert one.metrics["total_tok_s"] == pytest.approx(12 / 0.212)
    assert "streams" not in one.knobs  # the records do not tell
    assert contents.started is not None
    assert contents.started.isoformat().startswith("2026-08-01T10:40:00")


def test_the_summary_of_aiperf_tells_streams_and_model(samples: Path) -> None:
    contents = read(samples / "aiperf.json")
    [one] = contents.measured
    assert one.knobs == {"phase": "mixed", "streams": 2, "prompt": 64, "generate": 4}
    assert one.metrics["tpot_s"] == pytest.approx(0.0203)
    assert one.metrics["total_tok_s"] == pytest.approx(12 / 0.2142857)  # its own 54.8 is over its start and end too
    assert one.metrics["request_s"] == pytest.approx(3 / 0.2142857)
    assert contents.model == {"name": "Qwen3-8B"}
    assert contents.packages == {"aiperf": "0.13.0"}


def test_chunks_that_are_not_tokens_are_no_gaps_between_tokens(tmp_path: Path, samples: Path) -> None:
    rows = [json.loads(line) for line in (samples / "aiperf.jsonl").read_text().splitlines()]
    for row in rows:
        if row["metrics"]:
            row["metrics"]["output_sequence_length"]["value"] = 9
    path = tmp_path / "chunks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    [one] = read(path).measured
    assert "itl_s" not in one.metrics


def test_an_aiperf_run_that_did_not_end_is_refused(altered: Altered) -> None:
    with pytest.raises(RunError, match="is_complete is false"):
        read(altered("aiperf.json", lambda value: value.update(is_complete=False)))


def test_a_unit_that_is_no_time_is_refused(altered: Altered) -> None:
    with pytest.raises(RunError, match=r"time_to_first_token\.unit is 'parsecs'"):
        read(altered("aiperf.json", lambda value: value["time_to_first_token"].update(unit="parsecs")))
