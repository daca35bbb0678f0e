"""Client against server clock: a client cannot see tokens faster than the server made them."""

from collections.abc import Iterator
from statistics import median

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector

OVER = 1.02
CLOCK_S = 0.002  # what two clocks of one machine may differ by
PAIRS = (
    ("prefill_tok_s", "server_prefill_tok_s"),
    ("stream_tok_s", "server_decode_tok_s"),
    ("decode_tok_s", "server_decode_tok_s"),
)


@detector("client-faster-than-server", 10, version=1, title="Client against server clock")
def client_faster_than_server(evidence: Evidence) -> Iterator[Notice]:
    """The rate a client saw against the rate its server states for the same tokens, and of single requests the time a
    client waited against the time the server worked: the wait holds the work. Over 2 % fails: one of them counts tokens
    that the other does not, or a clock is wrong."""
    alike: dict[object, list[Observation]] = {}
    for one in evidence.observations:
        alike.setdefault((one.group, one.likeness()), []).append(one)
    for together in alike.values():
        for client, server in PAIRS:
            yield from judge_rates(client, server, together)
    for one in evidence.observations:
        yield from judge_requests(one)


def judge_rates(client: str, server: str, together: list[Observation]) -> Iterator[Notice]:
    """The notice on two rates of the same conditions; none where one is not given or is of several streams."""
    seen = next((one for one in together if client in one.metrics), None)
    made = next((one for one in together if server in one.metrics), None)
    if seen is None or made is None or (client == "decode_tok_s" and seen.streams != 1):
        return
    least, most = seen.low(client) or 0.0, made.high(server) or 0.0
    if most <= 0:
        return
    about = tuple(dict.fromkeys((seen.subject, made.subject)))
    ratio = seen.metrics[client] / made.metrics[server]
    lines = (f"client {number(seen.metrics[client])} / server {number(made.metrics[server])} tok/s = {number(ratio)}",)
    paired = dict((sample.block, sample.value) for sample in made.samples.get(server, ()))
    ratios = [s.value / paired[s.block] for s in seen.samples.get(client, ()) if paired.get(s.block)]
    over = min(ratios) > OVER if ratios else least / most > OVER
    if not over:
        text = f"{seen.subject}: the client's rate is {number(ratio)} times the server's"
        yield Notice(outcome="ok", text=text, subject=seen.subject, about=about, arithmetic=lines)
        return
    text = (
        f"{seen.subject}: the client saw {number(seen.metrics[client])} tok/s of a server that made "
        f"{number(made.metrics[server])}: one of them counts tokens the other does not, or a clock is wrong"
    )
    yield Notice(outcome="fail", text=text, subject=seen.subject, about=about, arithmetic=lines)


def judge_requests(one: Observation) -> Iterator[Notice]:
    """The notice on a cell whose requests tell both clocks."""
    ratios, worst = [], (1.0, 0.0, 0.0)
    for request in one.requests:
        times = [
            request.number(name) for name in ("submit_s", "last_token_s", "server.prompt_ms", "server.predicted_ms")
        ]
        if any(time is None for time in times):
            continue
        submitted, last, prompt, predicted = (time for time in times if time is not None)
        waited, worked = last - submitted, (prompt + predicted) / 1e3
        if waited <= 0:
            continue
        ratio = worked / waited if worked - waited > CLOCK_S else min(1.0, worked / waited)
        ratios.append(ratio)
        worst = max(worst, (ratio, worked, waited))
    if not ratios:
        return
    over = sum(ratio > OVER for ratio in ratios)
    if not over:
        text = f"{one.subject}: each of {len(ratios)} requests waited at least as long as its server worked"
        yield Notice(outcome="ok", text=text, subject=one.subject, about=(one.subject,))
        return
    lines = (
        f"server worked {number(worst[1])} s / client waited {number(worst[2])} s = {number(worst[0])}",
        f"{over} of {len(ratios)} requests over {OVER}",
    )
    text = (
        f"{one.subject}: {over} of {len(ratios)} requests were answered in less time than their server worked on them"
    )
    outcome = "fail" if median(ratios) > OVER else "warn"
    yield Notice(outcome=outcome, text=text, subject=one.subject, about=(one.subject,), arithmetic=lines)  # type: ignore[arg-type]
