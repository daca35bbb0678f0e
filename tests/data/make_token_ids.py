"""Makes tests/data/token_ids.json: texts with the ids llama.cpp's own tokenizer gives them, per vocabulary.

Not run by the tests. To run it again, from the repository's root, with the SmolLM2 file in data/models:
    python -m venv xl && xl/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0
    xl/bin/python tests/data/make_token_ids.py
It also writes smollm2-vocabulary.gguf.gz, the SmolLM2 file's metadata without a tensor (model: Apache-2.0).
"""

import gzip
import json
import random
import urllib.request
from pathlib import Path

import gguf
import xllamacpp

HERE = Path(__file__).parent
SMOLLM2 = HERE.parents[1] / "data/models/SmolLM2-135M-Instruct.Q4_1.gguf"
VOCABULARIES = {
    "smollm2": SMOLLM2,
    "llama": HERE / "tiny/llama-q4_0.gguf",
    "llama31": HERE / "tiny/llama31-f32.gguf",
    "odd": HERE / "tiny/odd-q4_1.gguf",
    "odd24": HERE / "tiny/odd24-f32.gguf",
}
TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\r\n\r\n \t\n  x",
    "Hello, world!",
    " leading and trailing ",
    "don't DON'T we'll I'M they've he'd it's",
    "1234567890 3.14159 1e-5 ١٢٣ ²³ ½ Ⅷ 007",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A:\n\tpass\n",
    "a" * 300,
    "    " * 20 + "x",
    "naïve café Ångström coöperate",
    "e\u0301 a\u030a n\u0303 क्षत्रिय ก็ำ",
    "中文字符，没有空格。日本語のテキスト 한국어 텍스트",
    "עברית العربية فارسی",
    "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪",
    "\u200b\u200d\ufeff\u00a0\u2003\u3000\u2028\u2029x",
    "\x00\x01\x1b[0m\x7f\x80",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀 \U0010ffff \ue000",
    "ſ'ſ K Å ﬁ ß ẞ İ ı 'S 'ſ",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<s>a</s> <|endoftext|><|endoftext|> <|im_start|",
    "https://example.org/a?b=c&d=%20#frag user@example.org",
    "x=1;y=2;;;---===+++!!!???...…",
    "https://\\\\\"'`~^|{}[]()<>",
    "Zażółć gęślą jaźń ЁЖИК Ελληνικά",
    " \u00a0 \u00a0a\u0085b\u000bc\u000cd",
]


def random_texts(count: int) -> list[str]:
    """Seeded mixtures of code points from every plane, and of the fixed texts' pieces."""
    chooser = random.Random(7)
    ranges = [
        (32, 126),
        (0, 0x2FF),
        (0x300, 0x36F),
        (0x400, 0x1FFF),
        (0x2000, 0x2FFF),
        (0x3000, 0xD7FF),
        (0xE000, 0x10FFFF),
    ]
    texts = []
    for _ in range(count):
        low, high = chooser.choice(ranges)
        letters = [chr(chooser.randint(low, high)) for _ in range(chooser.randint(1, 24))]
        letters += [chooser.choice([" ", "\n", "a", "7", "'s", "  "]) for _ in range(chooser.randint(0, 12))]
        chooser.shuffle(letters)
        texts.append("".join(letters))
    return texts


def serve(path: Path, port: int) -> xllamacpp.Server:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port, parameters.n_ctx, parameters.n_gpu_layers = port, 256, 0
    parameters.warmup, parameters.verbosity = False, 0
    return xllamacpp.Server(parameters)


def tokenize(server: xllamacpp.Server, text: str, special: bool) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": special}).encode()
    request = urllib.request.Request(f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["tokens"]


def write_vocabulary() -> None:
    """The metadata of the SmolLM2 file alone, as a GGUF of no tensors."""
    reader = gguf.GGUFReader(SMOLLM2)
    end = min(tensor.field.offset for tensor in reader.tensors)
    head = bytearray(reader.data[:end].tobytes())
    head[8:16] = (0).to_bytes(8, "little")  # the tensor count
    with gzip.GzipFile(HERE / "smollm2-vocabulary.gguf.gz", "wb", mtime=0) as out:
        out.write(bytes(head))


if __name__ == "__main__":
    texts = TEXTS + random_texts(150)
    found: dict[str, object] = {"program": f"xllamacpp {xllamacpp.__version__}", "texts": texts}
    for place, (name, path) in enumerate(VOCABULARIES.items()):
        server = serve(path, 18300 + place)
        found[name] = {
            kind: [tokenize(server, text, kind == "special") for text in texts] for kind in ("plain", "special")
        }
        del server
    (HERE / "token_ids.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
    write_vocabulary()
