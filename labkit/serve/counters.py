"""What the server has done so far, as the text that GET /metrics gives (the format of Prometheus)."""

from collections import Counter

from labkit.engine.engine import Engine
from labkit.engine.request import Request


class Counters:
    """Counts and sums since the start. All are written on the loop."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()  # by (path, status)
        self.finishes: Counter[str] = Counter()
        self.hangups = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.first_tokens, self.first_token_s = 0, 0.0
        self.steps = self.rows = 0
        self.busy_s = 0.0

    def ended(self, request: Request) -> None:
        """Count a completion that left its slot."""
        done = request.completion
        if done is None:
            self.finishes["error"] += 1
            return
        self.finishes[done.finish] += 1
        self.prompt_tokens += len(done.prompt_ids) if done.token_ids else 0
        self.completion_tokens += len(done.token_ids)
        if done.ttft_s is not None:
            self.first_tokens += 1
            self.first_token_s += done.ttft_s

    def fold(self, engine: Engine) -> None:
        """Add up the engine's step records and let go of them: a server runs for weeks."""
        count = len(engine.steps)
        for step in engine.steps[:count]:
            self.steps += step.steps
            self.rows += step.rows * step.steps
            self.busy_s += step.end_s - step.start_s
        del engine.steps[:count]

    def text(self, engine: Engine, taken: int, capacity: int) -> str:
        """The whole, one number a line."""
        self.fold(engine)
        busy = len(engine.scheduler.busy)
        lines: list[str] = []

        def tell(name: str, kind: str, about: str, *values: tuple[str, float]) -> None:
            lines.append(f"# HELP labkit_{name} {about}")
            lines.append(f"# TYPE labkit_{name} {kind}")
            lines.extend(f"labkit_{name}{label} {value}" for label, value in values)

        tell(
            "http_answers_total", "counter", "Answers begun.",
            *((f'{{path="{path}",status="{status}"}}', n) for (path, status), n in sorted(self.answers.items())),
        )  # fmt: skip
        tell(
            "completions_total", "counter", "Completions that left the engine, by how they ended.",
            *((f'{{finish="{finish}"}}', n) for finish, n in sorted(self.finishes.items())),
        )  # fmt: skip
        tell("hangups_total", "counter", "Clients that left before their answer was whole.", ("", self.hangups))
        tell("prompt_tokens_total", "counter", "Tokens of prompts read.", ("", self.prompt_tokens))
        tell("completion_tokens_total", "counter", "Tokens generated.", ("", self.completion_tokens))
        tell("slots", "gauge", "Streams that may decode together.", ("", engine.slots))
        tell("slots_busy", "gauge", "Slots with a request.", ("", busy))
        tell("waiting", "gauge", "Completions waiting for a slot.", ("", max(0, taken - busy)))
        tell("capacity", "gauge", "Completions taken at once, waiting ones included.", ("", capacity))
        tell(
            "time_to_first_token_seconds", "summary", "From submission to the first token.",
            ("_sum", round(self.first_token_s, 6)), ("_count", self.first_tokens),
        )  # fmt: skip
        tell("engine_steps_total", "counter", "Steps of the engine.", ("", self.steps))
        tell("engine_rows_total", "counter", "Rows of those steps: tokens read or generated.", ("", self.rows))
        tell("engine_busy_seconds_total", "counter", "Seconds in those steps.", ("", round(self.busy_s, 6)))
        return "\n".join(lines) + "\n"
