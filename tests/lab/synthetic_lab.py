"""A small lab made by hand for the publishing tests: runs in every state, a notebook of every output, ledgers."""

import base64
import csv
import io
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import plotly.graph_objects as go

from labkit.lab import figures
from labkit.lab.measurements import Measurement
from labkit.lab.plan import Plan, Rule
from labkit.lab.record import RunRecord
from labkit.lab.verdict import judge

WIDTHS = (1, 2, 4, 8, 16, 32)
BLOCKS = 10
DONE = "20261201T001626Z-batch-decode-0a1b2c3d"
KILLED = "20261201T020000Z-batch-decode-deadbeef"
PARTIAL = "20261201T030000Z-kv-type-00c0ffee"
QUESTION = "How much faster is decoding eight streams at once than one?"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYPhfDwAChAGAH8wRZAAAAABJRU5ErkJggg=="
)
TRACEBACK = [
    "\x1b[0;31mValueError\x1b[0m                Traceback",
    "\x1b[0;32m----> 1\x1b[0m fail()",
    "\x1b[0;31mValueError\x1b[0m: no",
]
PLAN = Plan(
    experiment="batch-decode",
    question=QUESTION,
    belief="Eight streams give at least four times the tokens of one.",
    believed_because="a step reads the weights once, however many rows it has",
    refuted_if="the interval lies under 4",
    kind="confirmatory",
    knob="width",
    cells=tuple({"width": width} for width in WIDTHS),
    control={"width": 1},
    repetitions=BLOCKS,
    rule=Rule(
        metric="decode_tok_s", cell={"width": 8}, against={"width": 1}, comparison=">=", threshold=4, margin=0.02
    ),
)
OTHER_PLAN = PLAN.model_copy(update={"experiment": "kv-type", "question": "Does an f32 cache change the speed?"})


def samples() -> list[tuple[int, int, str, str, float, str]]:
    """The rows of `measurements.csv`: two metrics, every width, ten blocks; 8 streams are about 5.8 times 1."""
    chance = random.Random(7)
    rows = []
    for block in range(BLOCKS):
        for width in WIDTHS:
            speed = 24.0 * width / (1 + width / 18) * chance.lognormvariate(0, 0.03)
            order, cell = len(rows) // 2, json.dumps({"width": width}, separators=(",", ":"))
            rows.append((block, order, cell, "decode_tok_s", speed, "2026-12-01T00:17:00Z"))
            rows.append((block, order, cell, "gpu_ms_step", 1000 * width / speed, "2026-12-01T00:17:00Z"))
    return rows


@cache
def scaling_figure() -> go.Figure:
    rows = samples()
    table = {"cell": [row[2] for row in rows], "metric": [row[3] for row in rows], "value": [row[4] for row in rows]}
    return figures.scaling(
        table,
        "width",
        "decode_tok_s",
        title="Eight streams decode 5.8 times as many tokens a second as one",
        subtitle=figures.describe(BLOCKS, "llvmpipe (LLVM 19.1.7)", "0a67793c0ffee"),
        ceiling=figures.Ceiling("read-bandwidth ceiling (measured)", {width: 34.0 * width for width in WIDTHS}),
    )


def plotly_output(figure: go.Figure) -> Any:
    """The output a kernel stores for a displayed figure."""
    bundle = json.loads(figure.to_json()) | {"config": {"plotlyServerURL": "https://plot.ly"}}
    return nbformat.v4.new_output("display_data", {"application/vnd.plotly.v1+json": bundle})


def notebook() -> Any:
    """An executed notebook: prose, folded code, text, a widget without state, HTML, pictures, an error, two figures."""
    new = nbformat.v4
    bars = figures.bars(
        {"width": [1, 1, 8, 8], "gpu_ms_step": [41.0, 42.0, 60.0, 61.5]},
        "width",
        "gpu_ms_step",
        title="A step of eight rows takes half as long again as a step of one",
        subtitle="2 repetitions",
    )
    table = "<table style='color:#333'><tr><th>width</th><th>tok/s</th></tr><tr><td>8</td><td>132</td></tr></table>"
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "m1"}, "text/plain": "  0%|          | 0/5"}
    cells = [
        new.new_markdown_cell(
            f"# Batched decode\n\n{QUESTION} The cost of a step is $t(n) = a + bn$ milliseconds.\n\n- one\n- two"
        ),
        new.new_code_cell("width = 8  # streams", execution_count=1, metadata={"tags": ["parameters"]}),
        new.new_code_cell("width = 16", execution_count=2, metadata={"tags": ["injected-parameters"]}),
        new.new_code_cell(
            "import labkit as lk\n\nlab = lk.Lab()\nfor block in range(10):\n    measure(block)",
            execution_count=3,
            outputs=[
                new.new_output(
                    "stream", name="stdout", text="block 0\rblock 5\rblock 9 done\n\x1b[1;32mids equal\x1b[0m\n"
                ),
                new.new_output("display_data", widget),
                new.new_output("execute_result", {"text/html": table, "text/plain": "a table"}, execution_count=3),
            ],
        ),
        new.new_markdown_cell(
            "## What the scaling looks like\n\n[the paper](https://example.org/paper) says otherwise."
        ),
        new.new_code_cell("figure.show()", execution_count=4, outputs=[plotly_output(scaling_figure())]),
        new.new_code_cell("bars.show()", execution_count=5, outputs=[plotly_output(bars)]),
        new.new_code_cell(
            "picture",
            execution_count=6,
            outputs=[
                new.new_output("display_data", {"image/png": base64.b64encode(PNG).decode(), "text/plain": "<Image>"})
            ],
        ),
    ]
    return new.new_notebook(cells=cells, metadata={"widgets": {"application/vnd.jupyter.widget-state+json": {}}})


def record(run_id: str, **fields: Any) -> RunRecord:
    """A run's record with everything a real one has; `fields` replace parts."""
    experiment = run_id.split("-", 1)[1].rsplit("-", 1)[0]
    known: dict[str, Any] = {
        "id": run_id,
        "experiment": experiment,
        "state": "completed",
        "started": f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}T{run_id[9:11]}:{run_id[11:13]}:{run_id[13:15]}Z",
        "ended": "2026-12-01T04:00:00Z",
        "parameters": {"model": "smollm2-135m", "widths": list(WIDTHS), "quick": True, "kv": "f16"},
        "plan_hash": PLAN.hash,
        "exploratory": False,
        "device": {
            "name": "llvmpipe (LLVM 19.1.7, 256 bits)",
            "type": "cpu",
            "driver_name": "llvmpipe",
            "driver_info": "Mesa 25.0.7",
            "api_version": "1.4.305",
            "limits": {"maxStorageBufferRange": 134217728},
        },
        "host": {"cpu": "a processor", "cores": 2, "ram_bytes": 8 << 30, "os": "Debian 12"},
        "model": {"name": "SmolLM2-135M-Instruct", "sha256": "ab" * 32, "architecture": "llama"},
        "shaders": {"matmul.comp": "cd" * 32},
        "program_fingerprints": {"decode 8": "ef" * 32},
        "git": {"commit": "0a67793" + "0" * 33, "dirty": False},
        "packages": {"labkit": "0.1.0", "numpy": "2.4.6"},
        "checks": [{"name": "ids equal the reference", "passed": True, "detail": "48 of 48"}],
        "verdict": judge(PLAN, [Measurement(*row) for row in samples()]).model_dump(mode="json"),
    }
    return RunRecord.model_validate(known | fields)


def write_run(
    root: Path, run: RunRecord, *, partial: bool = False, document: Any = None, plan: Plan | None = None
) -> Path:
    """Writes a run folder with every file of the format; its folder."""
    folder = root / "data" / "runs" / f"{'.partial-' if partial else ''}{run.id}"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(run.to_json())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("block", "order", "cell", "metric", "value", "utc"))
    writer.writerows((*row[:4], repr(row[4]), row[5]) for row in samples())
    (folder / "measurements.csv").write_text(text.getvalue())
    request = {"block": 0, "cell": {"width": 8}, "slot": 3, "prompt_sha256": "aa" * 32, "prompt_tokens": 16}
    (folder / "requests.jsonl").write_text(json.dumps(request) + "\n")
    plan = plan or (PLAN if run.experiment == "batch-decode" else OTHER_PLAN)
    (folder / "plan.json").write_text(plan.canonical())
    conclusion = {
        "claims": ["On llvmpipe, eight streams of SmolLM2-135M decode 5.8 times the tokens of one."],
        "should_not_claim": ["Anything about a GPU.", "Anything about depths over 40 tokens."],
    }
    (folder / "conclusion.json").write_text(json.dumps(conclusion))
    (folder / "figure.json").write_text(scaling_figure().to_json())
    (folder / "notebook.ipynb").write_text(nbformat.writes(document or notebook()))
    (folder / "log.txt").write_text("block 0\nblock 1\n")
    return folder


FINDINGS = f"""# Findings

What was found, newest first.

## 2026-12-01 · Eight streams decode 5.8 times the tokens of one

**confirmed** on llvmpipe: 5.816× [5.649, 5.988], ten pairs, run {DONE}.

| width | tok/s |
|---|---|
| 8 | 132 |

Can be claimed: see [the run](data/runs/{DONE}/). The rows: [csv](data/runs/{DONE}/measurements.csv).
It overturned [a belief](MISTAKES.md#batching-is-free). A file that is not published: [code](labkit/cli.py).

<script>alert(1)</script><img src="https://tracker.example/x.png" onerror="alert(1)">

## 2026-11-30 · An older entry

<a id="entry-0042"></a>
## 2026-11-29 · An entry with an anchor of its own

~~struck through~~, with `code` and a [source](https://example.org/source).
"""

MISTAKES = "# Mistakes\n\n## Batching is free\n\nIt was believed that it is. It is not.\n"


def make_lab(root: Path) -> Path:
    """A lab with a finished run, a killed one, one that is still partial, two ledgers and a picture."""
    (root / "labkit").mkdir(parents=True)
    (root / "FINDINGS.md").write_text(FINDINGS)
    (root / "MISTAKES.md").write_text(MISTAKES)
    (root / "figures").mkdir()
    (root / "figures" / "batch-decode.png").write_bytes(PNG)
    write_run(root, record(DONE))
    killed = {"state": "killed", "reason": "the run's process was killed in cell 4 of 8", "verdict": None}
    document = notebook()
    document.cells = document.cells[:4]
    document.cells.append(
        nbformat.v4.new_code_cell(
            "fail()",
            execution_count=4,
            outputs=[nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=TRACEBACK)],
        )
    )
    document.cells.append(nbformat.v4.new_code_cell("never()", metadata={"lab": {"state": "not-run"}}))
    write_run(root, record(KILLED, **killed), document=document)
    folder = write_run(root, record(PARTIAL, state="running", ended=None, verdict=None), partial=True)
    (folder / "progress.json").write_text(json.dumps({"done": 12, "total": 60, "text": "block 2"}))
    return root
