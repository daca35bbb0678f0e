"""Client against server clock: eight tokens of which one was never seen; honest rates and requests pass."""

import pytest
from make_evidence import claims_of, notices, observed

from labkit.audit.evidence import Request

ID = "client-faster-than-server"


@pytest.mark.quick
def test_a_client_that_counts_the_unseen_end_of_text_is_faster_than_its_server():
    # BLU's short cells: 8 tokens, client 41.1 tok/s, server 35.3 tok/s: 8 / 7 = 1.14 of it is the count
    rows = [
        observed("stream_tok_s", 41.1, "client", streams=1.0),
        observed("server_decode_tok_s", 35.3, "server", streams=1.0),
    ]
    (notice,) = notices(ID, claims_of(*rows))
    assert notice.outcome == "fail"
    assert "1.164" in notice.arithmetic[0]


def test_a_client_behind_its_server_passes():
    # llama-server on an H200: 9,663 tok/s to the first token, 9,835 by the server's own clock
    rows = [observed("prefill_tok_s", 9663.3, "client"), observed("server_prefill_tok_s", 9835.4, "server")]
    assert [notice.outcome for notice in notices(ID, claims_of(*rows))] == ["ok"]


def test_a_throughput_of_several_streams_is_not_held_against_one_streams_server_rate():
    rows = [observed("decode_tok_s", 77.0, streams=2.0), observed("server_decode_tok_s", 40.0, streams=2.0)]
    assert notices(ID, claims_of(*rows)) == []


def waited(seconds: float) -> Request:
    """A request whose server worked 20.7 ms on the prompt and 1,411.8 ms on the tokens."""
    row = {"submit_s": 5.0, "last_token_s": 5.0 + seconds, "server": {"prompt_ms": 20.7, "predicted_ms": 1411.8}}
    return Request("cell", 0, row)


def test_a_request_cannot_be_answered_in_less_time_than_its_server_worked():
    honest = observed("decode_tok_s", 730.0, "cell", requests=(waited(1.4338), waited(1.4331), waited(1.4310)))
    assert [notice.outcome for notice in notices(ID, claims_of(honest))] == ["ok"]
    wrong = observed("decode_tok_s", 730.0, "cell", requests=(waited(1.30), waited(1.31), waited(1.4338)))
    (notice,) = notices(ID, claims_of(wrong))
    assert notice.outcome == "fail"
    assert "2 of 3 requests" in notice.text
