"""The GGUF reader: equal to the reference reader on good files, one ModelError on every bad one."""

import os
import random
import resource
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from crafted_gguf import TINY, craft

from labkit.errors import ModelError
from labkit.models.gguf import GgufFile, StringArray
from labkit.models.model import Model

FILES = sorted(path.name for path in TINY.glob("*.gguf"))
ROW = ("w", (32, 2), 0, 0)  # 2 rows of 32 F32: 256 bytes


@pytest.mark.quick
@pytest.mark.parametrize("name", FILES)
def test_metadata_and_tensors_equal_the_reference_reader(name: str) -> None:
    ours, theirs = GgufFile(TINY / name), gguf.GGUFReader(TINY / name)
    assert ours.version == 3
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        found = ours.metadata[key]
        found = list(found) if isinstance(found, StringArray | np.ndarray) else found
        assert found == field.contents(), key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert (mine.type.name, mine.nbytes, mine.offset) == (
            tensor.tensor_type.name,
            tensor.n_bytes,
            tensor.data_offset,
        )
        assert np.array_equal(ours.raw(mine), tensor.data.view(np.uint8).reshape(-1))


def test_every_type_of_value_is_read_as_written(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "values.gguf"), "llama")
    values = {"u8": 255, "i8": -128, "u16": 65535, "i16": -32768, "u32": 2**32 - 1, "i32": -(2**31), "u64": 2**64 - 1}
    values |= {"i64": -(2**63), "f32": 0.5, "f64": 1e300, "yes": True, "no": False, "text": "naïve 🙂"}
    names = {"u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32", "i32": "int32"}
    names |= {"u64": "uint64", "i64": "int64", "f32": "float32", "f64": "float64", "yes": "bool", "no": "bool"}
    for key, content in values.items():
        getattr(writer, f"add_{names.get(key, 'string')}")(key, content)
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("truths", [True, False])
    writer.add_array("texts", ["a", "", "ß"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = GgufFile(tmp_path / "values.gguf").metadata
    assert {key: metadata[key] for key in values} == values
    assert {key: type(metadata[key]) for key in values} == {key: type(content) for key, content in values.items()}
    assert metadata["numbers"].tolist() == [1, -2, 3]
    assert metadata["truths"].tolist() == [True, False]
    assert list(metadata["texts"]) == ["a", "", "ß"]
    assert metadata["texts"][1:] == ["", "ß"]


def test_version_2_reads_like_version_3(written) -> None:
    file = GgufFile(written({"key": "value"}, [ROW], data=256, version=2))
    assert (file.version, file.metadata["key"], file.tensors["w"].shape) == (2, "value", (2, 32))


def test_the_header_of_a_vocabulary_of_250_000_tokens_is_read_in_half_a_second(written) -> None:
    tokens = [f"token{number}" for number in range(250_000)]
    path = written({"tokens": tokens, "merges": [f"t o{number}" for number in range(250_000)]})
    took = []
    for _ in range(3):
        start = time.perf_counter()
        file = GgufFile(path)
        took.append(time.perf_counter() - start)
    print(f"header of 250,000 tokens and 250,000 merges: {min(took) * 1000:.0f} ms")
    assert min(took) < 0.5
    assert list(file.metadata["tokens"]) == tokens


def test_raw_bytes_are_a_read_only_view_that_outlives_close(written) -> None:
    file = GgufFile(written({}, [ROW], data=256))
    view = file.raw(file.tensors["w"])
    assert not view.flags.writeable
    assert not view.flags.owndata
    file.close()
    assert view.sum() == 0
    with pytest.raises(ModelError, match="is closed"):
        file.raw(file.tensors["w"])


HUGE = [2**33, 2**63, 2**64 - 1]
BAD = {
    "not-gguf": (b"PK\3\4" + bytes(100), "starts with"),
    "only-magic": (b"GGUF", "ends inside its header"),
    "version-1": (craft(version=1), "version is 1"),
    "version-99": (craft(version=99), "version is 99"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
    "key-length-0": (craft({"": 1}), "0 bytes long"),
    "key-not-utf8": (craft([(b"\xff\xfe", 1)]), "not UTF-8"),
    "key-twice": (craft([("k", 1), ("k", 2)]), "stands in it twice"),
    "text-not-utf8": (craft({"k": b"\xff"}), "not UTF-8"),
    "value-type-13": (craft({"k": (13, bytes(8))}), "type code 13"),
    "array-type-13": (craft({"k": (9, struct.pack("<IQ", 13, 1) + bytes(8))}), "type code 13"),
    "nested-array": (craft({"k": (9, struct.pack("<IQ", 9, 1) + bytes(12))}), "array of arrays"),
    "truth-value-2": (craft({"k": (7, b"\2")}), "truth value"),
    "alignment-0": (craft({"general.alignment": 0}), "alignment is 0"),
    "alignment-48": (craft({"general.alignment": 48}), "alignment is 48"),
    "alignment-text": (craft({"general.alignment": "32"}), "alignment is '32'"),
    "no-dimensions": (craft({}, [("w", (), 0, 0)], 256), "0 dimensions"),
    "five-dimensions": (craft({}, [("w", (1,) * 5, 0, 0)], 256), "5 dimensions"),
    "dimension-0": (craft({}, [("w", (0, 2), 0, 0)], 256), "shape"),
    "half-a-block": (craft({}, [("w", (48, 2), 8, 0)], 256), "whole blocks of 32"),
    "type-code-4": (craft({}, [("w", (32, 2), 4, 0)], 256), "type code 4"),
    "type-code-2^31": (craft({}, [("w", (32, 2), 2**31, 0)], 256), "type code 2147483648"),
    "unaligned-offset": (craft({}, [("w", (32, 2), 0, 8)], 512), "multiple of its alignment"),
    "tensor-twice": (craft({}, [ROW, ("w", (32, 2), 0, 256)], 512), "twice"),
    "overlap": (craft({}, [ROW, ("v", (32, 2), 0, 128)], 512), "overlap"),
    "same-bytes": (craft({}, [ROW, ("v", (32, 2), 0, 0)], 512), "overlap"),
    "data-cut-short": (craft({}, [ROW], 255), "cut short"),
    "offset-past-the-end": (craft({}, [("w", (32, 2), 0, 1 << 40)], 256), "cut short"),
    "offset-overflows": (craft({}, [("w", (32, 2), 0, 2**64 - 32)], 256), "cut short"),
    "size-overflows": (craft({}, [("w", (2**32, 2**32), 0, 0)], 256), "cut short"),
    "size-wraps-to-0": (craft({}, [("w", (2**62, 4), 0, 0)], 256), "cut short"),
    **{f"tensors-{n}": (craft(counts=(n, 0)), f"claims {n} tensors") for n in HUGE},
    **{f"entries-{n}": (craft(counts=(0, n)), f"claims {n} metadata entries") for n in HUGE},
    **{f"text-length-{n}": (craft({"k": (8, struct.pack("<Q", n))}), f"{n} bytes long") for n in HUGE},
    **{f"key-length-{n}": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, n) + bytes(64), f"{n} bytes long") for n in HUGE},
    **{f"numbers-{n}": (craft({"k": (9, struct.pack("<IQ", 4, n))}), f"claims {n} values") for n in HUGE},
    **{f"strings-{n}": (craft({"k": (9, struct.pack("<IQ", 8, n))}), f"claims {n} strings") for n in HUGE},
    **{
        f"string-in-array-{n}": (craft({"k": (9, struct.pack("<IQQ", 8, 1, n))}), "ends at byte|ends inside its header")
        for n in HUGE
    },
}


@pytest.mark.quick
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_ends_in_one_line_at_once(name: str, tmp_path: Path) -> None:
    raw, reason = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    start = time.perf_counter()
    with pytest.raises(ModelError, match=reason) as caught:
        GgufFile(path)
    assert time.perf_counter() - start < 1
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_many_empty_strings_stay_within_the_budget_of_strings(written) -> None:
    count = (1 << 21) + 1
    path = written({"k": (9, struct.pack("<IQ", 8, count) + bytes(8 * count))})
    with pytest.raises(ModelError, match=f"claims {count} strings"):
        GgufFile(path)


def test_a_string_array_that_is_no_utf8_says_which_string(written) -> None:
    file = GgufFile(written({"k": [b"good", b"\xff\xff"]}))
    with pytest.raises(ModelError, match="'k': string 1 is not UTF-8"):
        list(file.metadata["k"])


def test_what_is_no_file_says_so(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    reasons = {tmp_path: "folder", empty: "empty", pipe: "regular file", tmp_path / "absent.gguf": "no model file"}
    for path, reason in {**reasons, Path("/dev/null"): "regular file"}.items():
        with pytest.raises(ModelError, match=reason):
            GgufFile(path)


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    raw = (TINY / "llama-q4_0.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for length in [*range(1, 400), *range(400, len(raw), 997)]:
        path.write_bytes(raw[:length])
        with pytest.raises(ModelError):
            GgufFile(path)


def test_300_random_corruptions_raise_only_model_errors_within_a_second(tmp_path: Path) -> None:
    raw = (TINY / "llama-q4_0.gguf").read_bytes()
    header = min(tensor.offset for tensor in GgufFile(TINY / "llama-q4_0.gguf").tensors.values())
    chooser = random.Random(20261201)
    path, slowest = tmp_path / "corrupt.gguf", 0.0
    refusals: list[str] = []
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(300):
        damaged = bytearray(raw)
        kind = chooser.choice(["bits", "cut", "count", "swap"])
        if kind == "cut":
            del damaged[chooser.randrange(len(damaged)) :]
        elif kind == "swap":
            a, b, n = chooser.randrange(header), chooser.randrange(header), chooser.randrange(1, 64)
            damaged[a : a + n] = damaged[b : b + n]
        for _ in range(chooser.randrange(1, 9)):
            if kind == "bits":
                damaged[chooser.randrange(header)] ^= 1 << chooser.randrange(8)
            elif kind == "count":
                place = chooser.choice([8, 16, chooser.randrange(header - 8)])
                size = chooser.choice([4, 8])
                number = chooser.choice([0, 1, 2**31, 2**32, 2**33, 2**63, 2**64 - 1, chooser.getrandbits(64)])
                damaged[place : place + size] = number.to_bytes(8, "little")[:size]
        path.write_bytes(damaged)
        start = time.perf_counter()
        try:
            with Model(path) as model:
                model.tokenizer.decode(model.tokenizer.encode("def f(x): return 1", special=True))
                for name in model.tensors:
                    assert model.array(name).shape == model.tensors[name].shape
                assert model._repr_html_()
        except ModelError as error:
            refusals.append(str(error))
        slowest = max(slowest, time.perf_counter() - start)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    print(f"{len(refusals)} of 300 refused, slowest {slowest:.3f} s, memory grown by {grown:.0f} MiB")
    assert len(refusals) > 150
    assert all("\n" not in line and len(line) < 600 for line in refusals)
    assert slowest < 1
    assert grown < 200
