"""Formats of sysfs files, with every oddity that was seen somewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.probe.fabric import sysfs_formats
from agent.probe.fabric.sysfs_formats import Numbered, Rate


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("400 Gb/sec (4X NDR)\n", Rate(400, 4, "NDR")),
        ("200 Gb/sec (2X NDR)", Rate(200, 2, "NDR")),
        ("56 Gb/sec (4X FDR)", Rate(56, 4, "FDR")),
        ("25 Gb/sec (1X EDR)", Rate(25, 1, "EDR")),
        ("10 Gb/sec (4X)", Rate(10, 4, None)),
        ("10 Gb/sec (4X )", Rate(10, 4, None)),
        ("2.5 Gb/sec (1X SDR)", Rate(2.5, 1, "SDR")),
        ("40 Gb/sec (4X FDR10)", Rate(40, 4, "FDR10")),
        ("800 Gb/sec (4X XDR)", Rate(800, 4, "XDR")),
        ("100 Gb/sec", Rate(100, None, None)),
        ("", None),
        ("fast", None),
        ("400 Gb/sec (4X NDR) and more", None),
        ("99999999999999999999 Gb/sec (4X)", None),
    ],
)
def test_rate(text: str, meant: Rate | None) -> None:
    assert sysfs_formats.rate(text) == meant


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("4: ACTIVE\n", "ACTIVE"),
        ("1: DOWN", "DOWN"),
        ("2: INIT", "INIT"),
        ("3: ARMED", "ARMED"),
        ("5: ACTIVE_DEFER", "ACTIVE_DEFER"),
        ("0: NOP", "NOP"),
        # The number rules.
        ("4: Active", "ACTIVE"),
        ("4", "ACTIVE"),
        ("\n4: ACTIVE\n\n", "ACTIVE"),
        ("ACTIVE", "ACTIVE"),
        ("6: NEW", None),
        ("", None),
        (": ACTIVE", None),
    ],
)
def test_port_state(text: str, state: str | None) -> None:
    assert sysfs_formats.port_state(text) == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("5: LinkUp", "LinkUp"),
        ("2: Polling", "Polling"),
        ("3: Disabled", "Disabled"),
        ("4: ACTIVE", "ACTIVE"),
        ("3", "Disabled"),
        ("7: Phy Test", "Phy Test"),
        ("LinkUp", "LinkUp"),
        ("what", None),
    ],
)
def test_phys_state(text: str, state: str | None) -> None:
    assert sysfs_formats.phys_state(text) == state


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("InfiniBand\n", "InfiniBand"),
        ("InfiniBand\n\n", "InfiniBand"),
        ("\nEthernet", "Ethernet"),
        ("Unknown", "Unknown"),
        ("ethernet?", None),
    ],
)
def test_link_layer(text: str, layer: str | None) -> None:
    assert sysfs_formats.link_layer(text) == layer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("18446744073709551615", (1 << 64) - 1),
        ("18446744073709551616", None),
        ("N/A (no PMA)", None),
        ("-1", None),
        ("", None),
    ],
)
def test_counter(text: str, number: int | None) -> None:
    assert sysfs_formats.counter(text) == number


def test_numbers() -> None:
    assert sysfs_formats.hexadecimal("0x3a4") == 0x3A4
    assert sysfs_formats.hexadecimal("0x0") == 0
    assert sysfs_formats.hexadecimal("0x") is None
    assert sysfs_formats.decimal("-1\n") == -1
    assert sysfs_formats.decimal("9" * 19) is None
    # Digits of other scripts are none of the kernel's.
    assert sysfs_formats.decimal("\u0663") is None
    assert sysfs_formats.numbered("7: unspecified") == Numbered(7, "unspecified")
    assert sysfs_formats.numbered("1:CA") == Numbered(1, "CA")


def test_guids_and_gids() -> None:
    assert sysfs_formats.guid("0002:C903:00f9:bfa0\n") == "0002:c903:00f9:bfa0"
    assert sysfs_formats.guid("0002:c903:00f9") is None
    assert sysfs_formats.gid("fe80:0000:0000:0000:0002:c903:00f9:bfa1") is not None
    assert sysfs_formats.gid("fe80::1") is None


def test_the_address_of_an_infiniband_interface_ends_with_its_port() -> None:
    address = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:f9:bf:a1"
    assert sysfs_formats.ipoib_port_guid(address) == "0002:c903:00f9:bfa1"
    assert sysfs_formats.ipoib_port_guid("52:54:00:12:34:56") is None


def test_words_are_printable() -> None:
    assert sysfs_formats.word("HPE 100Gb 1-port OP101 QSFP28\n") == "HPE 100Gb 1-port OP101 QSFP28"
    assert sysfs_formats.word("\x1b[31mred") is None
    assert sysfs_formats.uevent("DRIVER=mlx5_core\nPCI_ID=15B3:1021\nbroken\n") == {
        "DRIVER": "mlx5_core",
        "PCI_ID": "15B3:1021",
    }


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    for parse in (
        sysfs_formats.rate,
        sysfs_formats.port_state,
        sysfs_formats.phys_state,
        sysfs_formats.link_layer,
        sysfs_formats.counter,
        sysfs_formats.decimal,
        sysfs_formats.hexadecimal,
        sysfs_formats.guid,
        sysfs_formats.gid,
        sysfs_formats.word,
        sysfs_formats.ipoib_port_guid,
        sysfs_formats.uevent,
    ):
        parse(text)
