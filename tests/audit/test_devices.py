"""The limits of devices: found by the names people use, with a person's own cards, and refused where they are wrong."""

from pathlib import Path

import pytest

from labkit.audit.devices import find_device, read_devices
from labkit.errors import ParameterError

CARD = '[arc]\nname = "Intel Arc B580"\nsource = "a datasheet"\nmemory_gb_s = 456\n'


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "key", "count"),
    [
        ("R9700", "r9700", 1),
        ("AMD Radeon AI PRO R9700 (RADV GFX1201)", "r9700", 1),
        ("2x R9700", "r9700", 2),
        ("R9700 ×2", "r9700", 2),
        ("RX 9070 XT", "rx-9070-xt", 1),
        ("RX9070XT", "rx-9070-xt", 1),
        ("R9700 32 GB", "r9700", 1),
        ("AMD Radeon RX 9070 XT (RADV NAVI48)", "rx-9070-xt", 1),
        ("NVIDIA H200", "h200", 1),
        ("AMD EPYC 9684X 96-Core Processor", "epyc-9684x", 1),
    ],
)
def test_a_device_is_found_by_what_people_and_drivers_call_it(name: str, key: str, count: int):
    found = find_device(name, read_devices())
    assert found is not None
    assert (found.key, found.count) == (key, count)


@pytest.mark.parametrize(
    "name", ["RX 9070", "RX 9070 GRE", "GH200", "R97000", "RTX 4090", "", "0x R9700", "99999999x R9700"]
)
def test_another_device_is_not_taken_for_one(name: str):
    assert find_device(name, read_devices()) is None


def test_pci_numbers_go_before_the_name():
    found = find_device("a card", read_devices(), 0x1002, 0x7551)
    assert found is not None
    assert found.key == "r9700"


def test_the_r9700_has_the_limits_of_its_units():
    card = read_devices()["r9700"]
    assert (card.memory_gb_s, card.power_w, card.cache_mib) == (640, 300, 64)
    assert [card.rate_limit(bits)[0] for bits in (32, 16, 8, 4, None)] == [47.8, 191, 383, 766, 766]
    assert card.memory_limit(1359)[0] == pytest.approx(696, abs=0.5)  # 256 bit, 16 transfers a clock
    assert card.memory_limit(96)[0] == 640  # a clock at rest limits nothing
    assert card.memory_limit(20_000)[0] == 640  # the rate of a pin, not a clock


def test_two_cards_together_have_twice_the_limits():
    pair = find_device("2x R9700", read_devices())
    assert pair is not None
    assert pair.memory_limit()[0] == 1280
    assert pair.rate_limit(16)[0] == 382


def test_a_person_adds_a_card_beside_the_shipped_ones(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "devices.local.toml").write_text(CARD)
    found = find_device("Arc B580", read_devices(tmp_path))
    assert found is None  # only by its name or an alias
    (tmp_path / "data" / "devices.local.toml").write_text(CARD + 'aliases = ["Arc B580"]\n')
    found = find_device("Arc B580 (Mesa)", read_devices(tmp_path))
    assert found is not None
    assert found.memory_limit()[0] == 456
    assert found.rate_limit() == (None, "")
    assert "r9700" in read_devices(tmp_path)


@pytest.mark.parametrize("names", [
    'name = "AMD Radeon AI PRO R9700"\n', 'name = "r9700"\n', 'name = "Mine"\naliases = ["Radeon AI PRO R9700"]\n',
])  # fmt: skip
@pytest.mark.parametrize("key", ["my-card", "r9700", "zz"])
def test_a_card_of_ones_own_named_as_a_shipped_one_wins_whatever_its_key(tmp_path: Path, names: str, key: str):
    (tmp_path / "data").mkdir()
    text = f'[{key}]\n{names}source = "measured"\nmemory_gb_s = 700\n'
    (tmp_path / "data" / "devices.local.toml").write_text(text)
    devices = read_devices(tmp_path)
    for name in ("R9700", "AMD Radeon AI PRO R9700", "AMD Radeon AI PRO R9700 (RADV GFX1201)", "2x R9700"):
        found = find_device(name, devices)
        assert found is not None
        assert (found.key, found.memory_gb_s, found.power_w) == (key, 700, None)
    by_numbers = find_device("a card", devices, 0x1002, 0x7551)
    assert by_numbers is not None
    assert by_numbers.key == key
    assert len(devices) == len(read_devices())
    assert devices["rx-9070-xt"] == read_devices()["rx-9070-xt"]


def test_two_cards_of_ones_own_with_a_name_in_common_are_both_kept(tmp_path: Path):
    (tmp_path / "data").mkdir()
    other = CARD.replace("[arc]", "[arc-oc]").replace("B580", "B580 OC")
    shared = 'aliases = ["B580"]\n'
    (tmp_path / "data" / "devices.local.toml").write_text(CARD + shared + other + shared)
    assert {"arc", "arc-oc", "r9700"} <= set(read_devices(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CARD.replace("456", "-1"), "memory_gb_s is -1; give a number above 0"),
        (CARD.replace("456", "nan"), "memory_gb_s is nan; give a number above 0"),
        (CARD.replace("456", '"fast"'), "memory_gb_s is 'fast'"),
        (CARD.replace("memory_gb_s", "memory_mb_s"), "'memory_mb_s', which is not one of"),
        (CARD.replace('source = "a datasheet"\n', ""), "needs 'source'"),
        (CARD + "aliases = 3\n", "aliases is 3"),
        ("memory = 3\n", "memory stands outside a device"),
        ("[arc\n", "cannot be read"),
    ],
)
def test_a_wrong_file_gets_one_line_with_the_fault(tmp_path: Path, text: str, said: str):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "devices.local.toml").write_text(text)
    with pytest.raises(ParameterError) as caught:
        read_devices(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
