"""Which rows run in the next step: requests into slots, decode rows first, prompts in chunks behind them."""

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from labkit.engine.request import Request
from labkit.ops.rows import ACTIVE, PROMPT


@dataclass
class Slot:
    """One stream's place in the cache: the tokens it holds and how many of them are computed."""

    index: int
    request: Request | None = None
    ids: list[int] = field(default_factory=list)
    computed: int = 0  # positions 0 .. computed-1 are in the cache

    @property
    def pending(self) -> int:
        """Tokens known but not yet in the cache: one while decoding, more while the prompt is read."""
        return len(self.ids) - self.computed

    @property
    def prompt_length(self) -> int:
        """Length of the request's prompt in tokens."""
        return len(self.request.prompt_ids) if self.request else 0


@dataclass(frozen=True, eq=False)
class Step:
    """Rows of one step: uint32 [R, 5] of (token, slot, position, flags, tokens the slot may still generate, this row's
    included). `wanted` are the rows whose logits are sampled. `decode_only`: one row a slot, all wanted. The first `single`
    rows are one of a slot each; behind them lie prompts, whose rows follow each other."""

    rows: np.ndarray
    wanted: tuple[int, ...]
    decode_only: bool
    single: int
    advanced: int = 0  # decode steps that ran since the rows were made: every position is that much further

    @property
    def depth(self) -> int:
        """Positions the deepest row sees."""
        return self._first_depth + self.advanced

    @cached_property
    def _first_depth(self) -> int:
        return int(self.rows[:, 2].max()) + 1

    @cached_property
    def single_depth(self) -> int:
        """Positions the deepest of the single rows sees; 0 without any."""
        return int(self.rows[: self.single, 2].max()) + 1 + self.advanced if self.single else 0

    def later(self, steps: int) -> "Step":
        """The same streams, `steps` decode steps on."""
        step = Step(self.rows, self.wanted, self.decode_only, self.single, self.advanced + steps)
        step.__dict__["_first_depth"] = self._first_depth
        return step


class Scheduler:
    """Slots, the waiting line, and the choice of rows. Knows nothing of the device."""

    def __init__(self, slots: int, context: int, max_rows: int, ub: int) -> None:
        self.slots = [Slot(i) for i in range(slots)]
        self.context, self.max_rows, self.ub = context, max_rows, ub
        self.waiting: deque[Request] = deque()
        self.busy: list[Slot] = []  # slots with a request, in order

    def admit(self) -> list[Slot]:
        """Move waiting requests into free slots, first come first served; returns the slots filled."""
        filled = []
        for slot in self.slots:
            if not self.waiting:
                break
            if slot.request is None:
                request = self.waiting.popleft()
                slot.request, slot.ids, slot.computed = request, list(request.prompt_ids), 0
                request.slot = slot.index
                filled.append(slot)
        if filled:
            self.busy = [slot for slot in self.slots if slot.request is not None]
        return filled

    def remaining(self, slot: Slot) -> int:
        """Tokens the slot may still generate before max_tokens or the end of its context."""
        assert slot.request is not None
        return min(slot.request.max_tokens - len(slot.request.token_ids), self.context - len(slot.ids) + 1)

    def plan(self, row_limit: int | None = None) -> Step | None:
        """The next step, or None when nothing waits. Decoding slots get their row first, then prompts in chunks."""
        limit = min(self.max_rows, row_limit or self.max_rows)
        busy = self.busy
        if not busy:
            return None
        parts: list[np.ndarray] = []
        wanted: list[int] = []
        decoding = [slot for slot in busy if slot.pending == 1]
        reading = [slot for slot in busy if slot.pending > 1]
        made = 0
        for slot in (*decoding, *reading):
            take = min(
                slot.pending, limit - made, self.ub + min(len(decoding), made) - made
            )  # one row, or of prompts ub
            if take <= 0:
                break
            part = np.empty((take, 5), np.uint32)
            part[:, 0] = slot.ids[slot.computed : slot.computed + take]
            part[:, 1] = slot.index
            part[:, 2] = np.arange(slot.computed, slot.computed + take)
            part[:, 3] = ACTIVE
            part[part[:, 2] < slot.prompt_length, 3] |= PROMPT
            part[:, 4] = self.remaining(slot)
            parts.append(part)
            made += take
            if slot.computed + take == len(slot.ids):
                wanted.append(made - 1)
        decode_only = not reading and made == len(busy) and all(s.computed >= s.prompt_length for s in busy)
        return Step(np.concatenate(parts), tuple(wanted), decode_only, min(len(decoding), made))

    def free(self, slot: Slot) -> None:
        """Give the slot back."""
        slot.request, slot.ids, slot.computed = None, [], 0
        self.busy = [other for other in self.busy if other is not slot]
