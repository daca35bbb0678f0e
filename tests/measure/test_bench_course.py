"""What a bench measures and how it counts: settings, prompts, windows, costs, and the order of sides and blocks."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import ParameterError
from labkit.measure.bench import session
from labkit.measure.bench.costs import costs_of
from labkit.measure.bench.peer import shape as server_shape
from labkit.measure.bench.settings import Cell, Prompts, Settings
from labkit.measure.bench.sides import LabkitSide, Sample, decode_metrics, prefill_metrics
from labkit.measure.bench.streams import Arrivals, window_of
from labkit.models.model import Model
from labkit.models.shapes import ShapeModel

TINY = Path(__file__).parents[1] / "data" / "tiny"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batch": (0,)}, "--batch 0 is not a whole number from 1 to 256"),
        ({"batch": (4, 4)}, "--batch names a value twice: 4, 4"),
        ({"prompt": (0,)}, "--prompt 0 is not"),
        ({"batch": (), "prompt": ()}, "nothing to measure"),
        ({"depth": ()}, "--depth names no depth"),
        ({"generate": 3}, "--generate 3 is not a whole number from 4"),
        ({"repetitions": 0}, "--repetitions 0 is not"),
        ({"slots": 8}, "--slots 8 is fewer than the 32 streams of --batch"),
        ({"context": 64}, "--context 64 is short of the 150 positions"),
        ({"ub": 0}, "--ub 0 is not"),
    ],
)
def test_settings_out_of_range_are_refused_with_the_value(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Settings(**fields)


def test_every_runtime_has_every_cell_and_none_twice() -> None:
    settings = Settings(batch=(1, 8), prompt=(512,), depth=(0, 100))
    cells = settings.cells(["labkit", "llama-server"], "f16")
    assert len(cells) == len(set(cells)) == 2 * (2 * 2 + 1)
    assert {(c.phase, c.streams, c.prompt) for c in cells if c.runtime == "labkit"} == {
        ("decode", 1, 16), ("decode", 8, 16), ("decode", 1, 100), ("decode", 8, 100), ("prefill", 1, 512),
    }  # fmt: skip


def test_streams_get_a_lead_for_the_steps_that_read_the_prompts_of_others() -> None:
    settings = Settings(batch=(32,), depth=(4096,), prompt=())
    cell = settings.cells(["labkit"], "f16")[0]
    assert settings.tokens(cell) >= settings.generate + 32 * 4096 // 512
    assert settings.decode_context > 4096 + settings.tokens(cell)
    assert server_shape(settings, ["decode"], 32768)[1] >= settings.decode_context
    assert server_shape(settings, ["decode"], 2048) == (32, 2048)
    assert server_shape(Settings(prompt=(512,)), ["prefill"], 32768) == (1, 768)


def test_prompts_of_one_run_never_begin_alike() -> None:
    prompts = Prompts(32000)
    made = [p for key in range(10) for p in prompts.take((key, "decode"), 32, 16)]
    made += [p for key in range(10) for p in prompts.take((key, "prefill"), 1, 512)]
    assert len({p[0] for p in made}) == len(made) == 330
    assert all(len(p) in (16, 512) and min(p) >= 300 and max(p) < 32000 for p in made)


def test_each_runtime_gets_the_same_prompts_for_the_same_block() -> None:
    prompts = Prompts(1000, seed=3)
    first = prompts.take((0, "decode"), 4, 16)
    assert prompts.take((0, "decode"), 4, 16) == first
    assert prompts.take((1, "decode"), 4, 16) != first
    assert Prompts(1000, seed=3).take((0, "decode"), 4, 16) == first
    assert Prompts(1000, seed=4).take((0, "decode"), 4, 16) != first


def test_a_small_vocabulary_still_gives_different_prompts_at_once() -> None:
    prompts = Prompts(20, avoid={3})
    for block in range(5):
        taken = prompts.take((block, "decode"), 8, 4)
        assert len({p[0] for p in taken}) == 8
        assert all(3 not in p for p in taken)
    with pytest.raises(ParameterError, match="a vocabulary of 1 has no token"):
        Prompts(1, avoid={0})


def streams() -> list[Arrivals]:
    """Two streams: the first sends from second 1 to 6, the other from 3 to 8, a token a second."""
    return [Arrivals(10, 0.0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Arrivals(20, 0.0, [3.0, 4.0, 5.0, 6.0, 7.0, 8.0])]


def test_the_window_is_where_all_streams_decode() -> None:
    window = window_of(streams())
    assert (window.start_s, window.end_s) == (3.0, 6.0)
    assert window.counts == (3, 3)
    assert window.tok_s == pytest.approx(2.0)
    assert window.step_s == pytest.approx(1.0)
    # the first has seen 10 + 3 tokens at the start and three more at the end, the other 20 + 1
    assert window.depth == pytest.approx((14.5 + 22.5) / 2)
    assert window.row(1, lambda at: at - 1) == {"window_start_s": 2.0, "window_end_s": 5.0, "window_tokens": 3}


def test_streams_that_do_not_overlap_have_no_rate() -> None:
    apart = [Arrivals(1, 0.0, [1.0, 2.0]), Arrivals(1, 0.0, [3.0, 4.0])]
    with pytest.raises(ParameterError, match="2 streams did not all decode at once"):
        window_of(apart)
    with pytest.raises(ParameterError, match="fewer than two tokens"):
        window_of([Arrivals(1, 0.0, [1.0])])


def test_costs_count_what_a_step_reads_and_computes() -> None:
    model = ShapeModel("tiny", "f16")
    costs, c = costs_of(model), model.config
    attention = 128 * 128 * 2 + 2 * 128 * 64
    mlp = 3 * 128 * 256
    assert costs.body == 2 * (attention + mlp)
    assert costs.head == 512 * 128
    norms = (2 * 2 + 1) * 128 * 4
    assert costs.weight_bytes == 2 * (costs.body + costs.head) + norms  # the embedding table is not read whole
    assert costs.kv_bytes == 2 * c.layers * c.kv_heads * c.head_dim * 2
    assert costs.decode_bytes(4, 100) == costs.weight_bytes + 400 * costs.kv_bytes
    assert costs.decode_flops(1, 0) == 2 * (costs.body + costs.head)
    # a prompt token sees itself and those before it: 1 + 2 + 3
    assert costs.prefill_flops(3) == 2 * costs.body * 3 + 2 * costs.head + 4 * 128 * 2 * 6


def test_a_tied_table_is_read_as_the_output_projection() -> None:
    with Model(TINY / "llama-f32.gguf") as model:
        costs = costs_of(model)
        assert model.config.tied == ("output.weight" not in model.tensors)
        matrices = sum(t.shape[0] * t.shape[1] for t in model.tensors.values() if len(t.shape) == 2)
        table = model.tensors["token_embd.weight"]
        once = 0 if model.config.tied else table.shape[0] * table.shape[1]
        assert costs.body + costs.head == matrices - once
        assert costs.weight_bytes == model.nbytes - (0 if model.config.tied else table.nbytes)


def test_metrics_follow_from_times_and_costs() -> None:
    costs = costs_of(ShapeModel("tiny", "f16"))
    metrics, window = decode_metrics(streams(), costs)
    assert metrics["decode_tok_s"] == pytest.approx(2.0)
    assert metrics["step_ms"] == pytest.approx(1000.0)
    assert metrics["achieved_gb_s"] == pytest.approx(costs.decode_bytes(2, window.depth) / 1e9)
    prefill = prefill_metrics(100, 0.5, costs)
    assert prefill["prefill_tok_s"] == 200
    assert prefill["achieved_gflop_s"] == pytest.approx(costs.prefill_flops(100) / 0.5 / 1e9)


class FakeSide:
    """A side that says what it was asked."""

    def __init__(self, name: str, log: list[tuple[str, Cell]], prompts: list[Any]) -> None:
        self.name, self.log, self.prompts = name, log, prompts

    def measure(self, cell: Cell, prompts: Sequence[Sequence[int]], since: Callable[[float], float]) -> Sample:
        assert cell.runtime == self.name
        assert len(prompts) == cell.streams
        self.log.append((self.name, cell))
        self.prompts.append((cell.phase, cell.streams, prompts))
        return Sample({}, [], 0.0, 1.0)

    def spent(self, cell: Cell) -> list[Any]:
        return []

    def close(self) -> None:
        self.log.append((self.name, "closed"))  # type: ignore[arg-type]


def plan_for(device: Any, stored: list[Any], settings: Settings, **more: Any) -> session.Plan:
    return session.Plan(
        settings, device, float, lambda *sample: stored.append(sample), lambda text: None, lambda: None,
        lambda text: stored.append(text), lambda name, what: stored.append((name, what)), lambda side: None,
        lambda cell, rows: None, Path("log"), **more,
    )  # fmt: skip


def test_sides_take_turns_in_complete_randomised_blocks_after_a_warm_up(device: Any) -> None:
    log: list[tuple[str, Cell]] = []
    prompts: list[Any] = []
    stored: list[Any] = []
    settings = Settings(batch=(1, 2), prompt=(8,), repetitions=6, seed=1)
    sides = [FakeSide("labkit", log, prompts), FakeSide("llama-server", log, prompts)]
    session._Course(plan_for(device, stored, settings), "f16", Prompts(5000)).run(sides)
    cells = settings.cells(["labkit", "llama-server"], "f16")
    measured = [cell for _, cell in log]
    assert sorted(map(str, measured[: len(cells)])) == sorted(map(str, cells))  # each once, not kept
    blocks = [measured[i : i + len(cells)] for i in range(len(cells), len(measured), len(cells))]
    assert len(blocks) == 6
    assert all(sorted(map(str, block)) == sorted(map(str, cells)) for block in blocks)
    assert len({tuple(map(str, block)) for block in blocks}) > 1
    assert [(cell, block) for cell, block, _ in stored] == [(c, b) for b, block in enumerate(blocks) for c in block]
    assert any(a.runtime != b.runtime for block in blocks for a, b in itertools.pairwise(block))
    # in one block a cell of either runtime reads the same prompts, and no two blocks share one
    by_block = [prompts[i : i + len(cells)] for i in range(0, len(prompts), len(cells))]
    for block in by_block:
        assert all(sum(p == q for _, _, q in block) == 2 for _, _, p in block)
    firsts = [ids[0] for block in by_block for _, _, each in block for ids in each]
    assert len(firsts) == 2 * len(set(firsts))


def test_a_peer_that_does_not_fit_beside_is_measured_after_and_the_record_says_so(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, Cell]] = []
    stored: list[Any] = []
    servers: list[list[str]] = []

    def fake_ours(*arguments: Any, **options: Any) -> FakeSide:
        return FakeSide("labkit", log, [])

    class FakeServer:
        arguments = ("llama-server", "-m", "x")

    def fake_peer(*arguments: Any, phases: list[str], **options: Any) -> FakeSide:
        servers.append(list(phases))
        side = FakeSide("llama-server", log, [])
        side.server = FakeServer()  # type: ignore[attr-defined]
        return side

    fake_ours.name = LabkitSide.name  # type: ignore[attr-defined]
    monkeypatch.setattr(session, "LabkitSide", fake_ours)
    monkeypatch.setattr(session, "PeerSide", fake_peer)
    monkeypatch.setattr(type(device), "memory_free", lambda self: 1000)
    settings = Settings(batch=(1,), prompt=(8,), repetitions=2)
    plan = plan_for(device, stored, settings, peer=object())
    session.bench_model(plan, ShapeModel("tiny", "q8_0"), "q8_0")
    names = [name for name, _ in log]
    assert names == sorted(names)  # all of labkit's, its closing among them, before the first of the peer's
    assert servers == [["decode"], ["prefill"]]
    assert sum("was measured after labkit" in str(line) for line in stored) == 1
    assert [cell for name, cell in log if cell == "closed"] == ["closed"] * 3
