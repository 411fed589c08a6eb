"""Slow nodes and links in measurements, and their causes."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.model.measurement import LinkRate, Measurement, NodeRates, RankRates, find_slow

RATES = RankRates(
    fp32=1.0,
    bf16=8.0,
    memory=100.0,
    cpu=0.99,
    used_by_others=0.0,
    quota=0.0,
    megahertz=2600.0,
    flags=("avx512f", "amx_bf16"),
    interface="eth0",
    speed=25_000,
    faster="",
)


def make_measurement(gbit: dict[tuple[str, str], float] | None = None, **changed: RankRates) -> Measurement:
    """Return the measurement of three nodes whose links have 20 Gbit/s unless given, with changed rates of some."""
    names = ("a", "b", "c")
    rates = {(first, second): 20.0 for first in names for second in names if first != second} | (gbit or {})
    return Measurement(
        date="2026-11-26",
        stack="current",
        fingerprint="",
        nodes=tuple(NodeRates(node=name, cores=16, rates=changed.get(name, RATES)) for name in names),
        links=tuple(
            LinkRate(source=source, destination=destination, gbit=value, microseconds=20.0)
            for (source, destination), value in rates.items()
        ),
    )


def test_equal_nodes_and_links_are_not_slow() -> None:
    assert find_slow(make_measurement(a=replace(RATES, fp32=0.9), gbit={("a", "b"): 12.0})) == ()


def test_slow_node_is_named_with_its_cause() -> None:
    for rates, cause in (
        (replace(RATES, fp32=0.5, quota=8.0, cpu=0.5), "its cgroup limits it to the time of 8 of 16 cores"),
        (
            replace(RATES, bf16=4.0, cpu=0.6, used_by_others=6.0),
            "its ranks got 60% of the time of their 16 cores; other programs",
        ),
        (replace(RATES, bf16=0.0, flags=("avx512f",)), "its CPU lacks amx_bf16"),  # instructions
        (replace(RATES, fp32=0.5, megahertz=1200.0), "its cores run at 1200 MHz, not at 2600"),  # frequency
        (replace(RATES, memory=40.0), "unknown"),
    ):
        (slow,) = find_slow(make_measurement(b=rates))
        assert slow.subject == "b"
        assert f"likely cause: {cause}" in slow.describe()


def test_slow_links_are_named_by_direction() -> None:
    slow = find_slow(make_measurement({("a", "b"): 3.0, ("c", "a"): 0.5}))
    assert [item.subject for item in slow] == ["a to b", "c to a"]
    assert "12.0% of the speed of the interfaces" in slow[0].cause
    assert "2.0% of the speed of the interfaces" in slow[1].cause
