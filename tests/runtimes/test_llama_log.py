"""The settings that llama.cpp tells in its log, as two of its builds wrote them."""

from pathlib import Path

from labkit.runtimes.llama_log import read_settings

LATE_2026 = """0.00.004.330 I print_info: file type   = (guessed) Q8_0
0.00.007.010 W llama_context: n_ctx is not divisible by n_seq_max - rounding down to 512
0.00.007.010 I llama_context: n_seq_max             = 2
0.00.007.010 I llama_context: n_ctx                 = 512
0.00.007.010 I llama_context: n_ctx_seq             = 256
0.00.007.010 I llama_context: n_batch               = 2048
0.00.007.010 I llama_context: n_ubatch              = 64
0.00.007.232 I llama_kv_cache: size =    0.38 MiB (   256 cells,   3 layers,  2/2 seqs), K (f16):    0.19 MiB, V (f16):    0.19 MiB
"""
B9190 = """llama_context: n_seq_max     = 4
llama_context: n_ctx         = 1024
llama_context: n_ctx_seq     = 256
llama_context: n_ubatch      = 32
llama_kv_cache: size =    0.38 MiB (   256 cells,   3 layers,  4/4 seqs), K (q8_0):    0.19 MiB, V (f16):    0.19 MiB
llama_context: n_seq_max     = 1
llama_context: n_ubatch      = 512
"""


def test_settings_are_what_the_context_came_to(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LATE_2026)
    assert read_settings(log) == {"slots": 2, "context": 256, "ub": 64, "kv": "f16", "quant": "(guessed) Q8_0"}
    log.write_text(B9190)
    assert read_settings(log) == {"slots": 4, "context": 256, "ub": 32, "kv": "q8_0/f16"}


def test_a_log_that_is_not_there_or_says_nothing_tells_nothing(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none.log") == {}
    (tmp_path / "other.log").write_bytes(b"\xff\xfe hello")
    assert read_settings(tmp_path / "other.log") == {}
