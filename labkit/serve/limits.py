"""How much and how slowly a client may send and take: one record, in bytes, seconds and counts."""

from dataclasses import dataclass

from labkit.errors import ParameterError

MOST_CHOICES = 128  # `n` of OpenAI's API


@dataclass(frozen=True)
class Limits:
    """`queue`: requests that may wait beside those in slots. `body_bytes`: of one request, before it is read as JSON.

    `head_s`, `body_s`, `send_s`: seconds a client has to send the head of a request, to send its body, and to take what
    was written to it. `stop_s`: seconds running requests have to end once the server was told to. `connections`: open at
    once; one more is told so and closed. Raises ParameterError for values that are not positive (a queue may be 0).
    """

    queue: int = 64
    body_bytes: int = 1 << 20
    head_s: float = 10.0
    body_s: float = 30.0
    send_s: float = 30.0
    stop_s: float = 3.0
    connections: int = 512

    def __post_init__(self) -> None:
        for name, least in (("queue", 0), ("body_bytes", 1), ("connections", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 31:
                raise ParameterError(f"{name}={value!r} is not a whole number from {least}")
        for name in ("head_s", "body_s", "send_s", "stop_s"):
            if not 0 < getattr(self, name) <= 86400:
                raise ParameterError(f"{name}={getattr(self, name)!r} is not a number of seconds above 0")

    @classmethod
    def for_engine(cls, slots: int, context: int, queue: int) -> "Limits":
        """What fits an engine: 64 bytes of JSON a position of its context, and connections for all it serves twice."""
        return cls(queue=queue, body_bytes=max(1 << 20, 64 * context), connections=2 * (slots + queue) + 64)
