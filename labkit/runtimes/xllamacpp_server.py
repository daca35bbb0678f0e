"""llama-server of the PyPI package xllamacpp (llama.cpp on the CPU), as a process of its own: run by its path, with the
interpreter that has the package, `python -P xllamacpp_server.py --model FILE.gguf --port 8080 ...`; it needs nothing else."""

import argparse
import os
import signal
import threading


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="positions of a slot")
    parser.add_argument("--ub", type=int, required=True)
    parser.add_argument("--kv", required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.port = given.port
    if hasattr(params, "hostnames"):
        params.hostnames = [given.host]
    else:  # before 2026.10
        params.hostname = given.host
    params.n_parallel, params.n_ctx = given.slots, given.slots * given.context
    params.n_ubatch, params.n_batch = given.ub, max(given.ub, 2048)
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{given.kv.upper()}", None)
    if kind is None:
        parser.error(f"--kv {given.kv} is no type that llama.cpp has")
    params.cache_type_k = params.cache_type_v = kind
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    # each stream its own cache, nothing kept from an earlier request, no settings guessed: what is measured is asked for
    params.kv_unified, params.fit_params = False, False
    params.cache_ram_mib = params.n_ctx_checkpoints = 0
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = True
    params.ui, params.warmup = False, False
    params.verbosity = 4  # from which on it tells what the context came to
    server = xllamacpp.Server(params)
    print(f"xllamacpp {xllamacpp.__version__} listens on {server.listening_address}", flush=True)
    stop.wait()
    os._exit(0)  # its own threads would end in their time


if __name__ == "__main__":
    main()
