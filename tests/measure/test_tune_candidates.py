"""The cuts that `lab tune` tries: those a device can run."""

from types import SimpleNamespace

import pytest

from labkit.measure.tune import candidates
from labkit.ops.linear_cuts import Coopmat, MatvecK
from labkit.vulkan.compile import load_spirv
from labkit.vulkan.reflect import reflect

LIMIT = 49152  # bytes of shared memory


def device(*features: str) -> SimpleNamespace:
    info = SimpleNamespace(max_shared_bytes=LIMIT, subgroup_min=32, subgroup_max=32, subgroup_size=32)
    return SimpleNamespace(
        coopmat_size=16, coopmat_columns=frozenset({8, 16}), info=info, has=lambda *names: set(names) <= set(features)
    )


def shared_bytes(layout: str, cut: Coopmat) -> int:
    """What the shader declares for the cut."""
    constants = {
        "CM": cut.size, "CN": cut.width, "CK": cut.size, "FR": cut.fr, "FC": cut.fc, "SR": cut.sr, "SC": cut.sc,
        "SK": cut.sk, "UNROLL": cut.unroll, "SUBGROUP": 32, "LOCAL": 32 * cut.sr * cut.sc * cut.sk,
    }  # fmt: skip
    return reflect(load_spirv("linear_coopmat", layout), "linear_coopmat", constants).shared_bytes


@pytest.mark.parametrize("layout", ["f16", "bf16", "q4k", "q5k", "q6k"])
@pytest.mark.parametrize("rows", [2, 8, 16, 32, 64])
def test_every_cut_of_matrices_fits_in_shared_memory_and_holds_all_rows(layout, rows):
    cuts = list(candidates(device("intdot"), layout, rows, 4096, 4096, swiglu=False))
    matrices = [cut for cut in cuts if isinstance(cut, Coopmat)]
    assert len(matrices) == len(set(matrices)) > 4
    for cut in matrices:
        assert shared_bytes(layout, cut) <= LIMIT
        assert cut.fc * cut.width >= rows
        assert cut.sr * cut.sk * 32 <= 1024


def test_a_few_rows_of_k_quants_are_tried_by_integer_dot_products_where_there_are_some():
    def kinds(rows, *features):
        return {type(cut) for cut in candidates(device(*features), "q4k", rows, 4096, 4096, swiglu=False)}

    assert kinds(8, "intdot") == {Coopmat, MatvecK}
    assert kinds(16, "intdot") == kinds(8) == {Coopmat}
