"""Selection of the HCAs for jobs: the compute HCAs, without those for storage and management.

Without a list, NCCL takes every active port. The rule: drop unfit ports; of the remaining classes
of similar ports, prefer the one nearest to the GPUs, then the one with the most bandwidth. An
operator's setting overrides the rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from muster.fabric.gids import Family, Range, fit_index, flid_index, nccl_index, routable
from muster.fabric.model import ACTIVE, ETHERNET, INFINIBAND, Affinity, AffinityClass, Fabric, Hca
from muster.fabric.natural_sort import function_order
from muster.fabric.operator_rules import Rules, naming, networks
from muster.fabric.port_classes import (
    by_bandwidth,
    cabled,
    clearly,
    grouped,
    in_words,
    speed_of,
    speed_of_class,
)
from muster.fabric.topology import NEAR, card_of, rank
from muster.fabric.unsupported_devices import unfit, unnamable

_OWN: Final = "169.254."


class Choice(msgspec.Struct, frozen=True):
    """The ports with their decisions, in the given order.

    `family` is the address family for RoCE, `within` the networks of the addresses. `close`:
    another class has almost as much bandwidth. `unmatched`: entries of the rules that match no
    port.
    """

    hcas: tuple[Hca, ...]
    fabric: Fabric
    family: Family = "AF_INET"
    within: tuple[Range, ...] = ()
    close: bool = False
    unmatched: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[Hca, ...]:
        """The ports for jobs."""
        return tuple(hca for hca in self.hcas if hca.use)


@dataclass(slots=True)
class _Sorted:
    """Ports during the selection; `decided` is by key."""

    decided: dict[str, Hca] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()
    close: bool = False

    def no(self, hca: Hca, reason: str, *, expected: bool = False) -> None:
        self.decided[hca.key] = replace(hca, use=False, reason=reason, expected=expected)

    def yes(self, hca: Hca, reason: str) -> None:
        self.decided[hca.key] = replace(hca, use=True, reason=reason, expected=True)


def choose(hcas: Sequence[Hca], affinity: Sequence[Affinity], rules: Rules | None = None) -> Choice:
    """Decide for each port whether jobs use it, with the reason."""
    rules = rules or Rules()
    found = [replace(hca, usable_by_nccl_ib=_passes(hca)) for hca in grouped(hcas)]
    unmatched = tuple(
        entry
        for entry in dict.fromkeys((*rules.include, *rules.exclude))
        if naming((entry,), found) is None
    )
    done = _Sorted()
    left = []
    for hca in found:
        out = naming(rules.exclude, [hca])
        if out is not None:
            done.no(hca, f"excluded by the configuration ({out})")
        else:
            left.append(hca)
    if rules.include:
        _by_rules(left, rules, done)
    else:
        _by_rule(left, affinity, done)
    within = networks(rules)
    family = _one_family(done, within, forced=bool(rules.include))
    decided = [_with_index(done.decided[hca.key], family, within) for hca in found]
    decided = _with_rails(decided)
    return Choice(tuple(decided), _summary(decided, done), family, within, done.close, unmatched)


def hindrance(hca: Hca) -> str | None:
    """Return why a port of the compute class cannot be used now, on evidence; None if nothing is
    known.
    """
    if hca.state is not None and hca.state != ACTIVE:
        return f"port {hca.state}" + (f", {hca.phys_state}" if hca.phys_state else "")
    if hca.uverbs_error is not None:
        return f"{hca.uverbs or 'its uverbs device'} cannot be opened: {hca.uverbs_error}"
    if hca.link_layer == ETHERNET and has_no_address(hca):
        where = f"netdev {', '.join(hca.netdevs)}" if hca.netdevs else "its netdev"
        own = own_addresses(hca)
        but = f" but {', '.join(own)} (no DHCP server answered)" if own else ""
        return f"no routable GID: {where} has no IPv4/IPv6 address{but}"
    return None


def own_addresses(hca: Hca) -> list[str]:
    """Return the IPv4 addresses that its interface assigned itself."""
    found = (gid.address for gid in hca.gids if gid.address is not None)
    return list(dict.fromkeys(address for address in found if address.startswith(_OWN)))


def has_no_address(hca: Hca) -> bool:
    """True if the GID table was read completely and reaches no peer beyond the own segment."""
    return hca.gid_slots is not None and not hca.gids_unread and not routable(hca.gids)


def _passes(hca: Hca) -> bool | None:
    """True if NCCL's own filter accepts it: an active port of InfiniBand or Ethernet."""
    if hca.state not in (None, ACTIVE) or hca.link_layer not in (None, ETHERNET, INFINIBAND):
        return False
    return None if hca.state is None or hca.link_layer is None else True


def _by_rules(left: Sequence[Hca], rules: Rules, done: _Sorted) -> None:
    up = [hca for hca in left if hca.state in (None, ACTIVE) and naming(rules.include, [hca])]
    with_owners = _with_owners(up)
    for hca in left:
        entry = naming(rules.include, [hca])
        if entry is None:
            done.no(hca, "not among those that the configuration includes")
        elif hca.state is not None and hca.state != ACTIVE:
            done.no(hca, f"included by the configuration, but {hindrance(hca)}", expected=True)
        elif unnamable(hca) or hca.link_layer not in (None, ETHERNET, INFINIBAND):
            done.no(hca, f"included by the configuration, but {unfit(hca)}", expected=True)
        else:
            against = unfit(hca) or hindrance(hca) or with_owners.get(hca.key)
            included = f"included by the configuration ({entry})"
            done.yes(hca, included if against is None else f"{included}, although: {against}")


def _by_rule(left: Iterable[Hca], affinity: Sequence[Affinity], done: _Sorted) -> None:
    nearest = _nearest(affinity)
    ready: list[Hca] = []
    hindered: list[tuple[Hca, str]] = []
    for hca in left:
        reason = unfit(hca)
        if reason is not None:
            done.no(hca, reason)
            continue
        reason = hindrance(hca)
        if reason is None:
            ready.append(hca)
        else:
            hindered.append((hca, reason))
    ready = _without_virtual_functions(ready, done)
    # A virtual function whose owner is here is no separate card.
    dark = [hca for hca, _ in hindered if ready and hca.physical_function is None]
    by_gpus = _by_gpus(ready, dark, nearest)
    if by_gpus:
        ready = _without_far(ready, nearest, done)
        dark = [hca for hca in dark if not _is_far(hca, nearest)]
    groups: dict[str, list[Hca]] = {}
    for hca in (*ready, *dark):
        groups.setdefault(hca.group, []).append(hca)
    weighed = {name: cabled(ports) for name, ports in groups.items()}
    order = _order(weighed, {hca.group for hca in ready})
    chosen = order[0] if order else None
    done.alternatives = tuple(in_words(name, groups[name]) for name in order[1:])
    done.close = len(order) > 1 and not clearly(weighed[order[0]], weighed[order[1]])
    for hca in ready:
        if hca.group == chosen:
            done.yes(hca, _why(hca, nearest))
        else:
            used = in_words(chosen or "", groups[chosen or ""])
            done.no(hca, f"another class than the compute HCAs ({used})")
    for hca, reason in hindered:
        far = by_gpus and _is_far(hca, nearest)
        expected = chosen is None or (hca.group == chosen and not far)
        done.no(hca, reason, expected=expected)


def _by_gpus(ready: Sequence[Hca], dark: Sequence[Hca], nearest: Mapping[str, Affinity]) -> bool:
    """True if nearness to GPUs decides. A port next to one that is down also counts, unless it is
    small compared with those that are up.
    """
    if any(_is_near(hca, nearest) for hca in ready):
        return True
    near = [hca for hca in dark if _is_near(hca, nearest)]
    return bool(near) and not clearly(ready, near)


def _order(groups: Mapping[str, Sequence[Hca]], ready: Collection[str]) -> list[str]:
    """Order the classes by the machine's bandwidth: a compute class whose ports are all down
    remains the compute class. A class without a ready port comes first only if it is clearly
    faster.
    """
    order = by_bandwidth({name: groups[name] for name in groups if name in ready})
    for name in reversed(by_bandwidth({one: groups[one] for one in groups if one not in ready})):
        first = not order or _outweighs(groups[name], groups[order[0]])
        order.insert(0 if first else len(order), name)
    return order


def _outweighs(dark: Sequence[Hca], other: Sequence[Hca]) -> bool:
    if speed_of_class(dark) is None or not clearly(dark, other):
        return False
    # Beside InfiniBand, an active Ethernet port without an address has another purpose.
    active = all(hca.state in (None, ACTIVE) for hca in dark)
    return not (active and other[0].link_layer == INFINIBAND)


def _without_virtual_functions(ready: Sequence[Hca], done: _Sorted) -> list[Hca]:
    with_owners = _with_owners(ready)
    for hca in ready:
        if hca.key in with_owners:
            done.no(hca, with_owners[hca.key])
    return [hca for hca in ready if hca.key not in with_owners]


def _with_owners(hcas: Sequence[Hca]) -> dict[str, str]:
    """Return a reason for each virtual function, by key, whose physical function is also selected:
    NCCL breaks with both in its list.
    """
    cards = {card_of(hca.pci): hca for hca in hcas if hca.pci and not hca.physical_function}
    found = {}
    for hca in hcas:
        owner = cards.get(card_of(hca.physical_function)) if hca.physical_function else None
        if owner is not None:
            found[hca.key] = f"virtual function of {owner.name}: NCCL fails with both in use"
    return found


def _without_far(ready: Sequence[Hca], nearest: Mapping[str, Affinity], done: _Sorted) -> list[Hca]:
    kept = []
    for hca in ready:
        if _is_far(hca, nearest):
            pair = nearest[hca.name]
            done.no(hca, f"far from all GPUs ({pair.distance.value}), others are next to one")
        else:
            kept.append(hca)
    return kept


def _nearest(affinity: Iterable[Affinity]) -> dict[str, Affinity]:
    nearest: dict[str, Affinity] = {}
    for pair in affinity:
        if pair.distance is AffinityClass.UNKNOWN:
            continue
        if pair.hca not in nearest or rank(pair) < rank(nearest[pair.hca]):
            nearest[pair.hca] = pair
    return nearest


def _is_near(hca: Hca, nearest: Mapping[str, Affinity]) -> bool:
    return hca.name in nearest and nearest[hca.name].distance in NEAR


def _is_far(hca: Hca, nearest: Mapping[str, Affinity]) -> bool:
    return hca.name in nearest and nearest[hca.name].distance not in NEAR


def _why(hca: Hca, nearest: Mapping[str, Affinity]) -> str:
    speed = speed_of(hca)
    parts = ["compute"]
    if speed is not None:
        parts.append(f"{speed:g} Gb/s")
    if hca.name in nearest:
        pair = nearest[hca.name]
        parts.append(f"{pair.distance.value} to GPU {pair.gpu_index}")
    if hca.state is None:
        parts.append("state unknown")
    if hca.link_layer is None:
        parts.append("link layer unknown")
    elif hca.link_layer == ETHERNET and hca.gid_slots is None:
        parts.append("GIDs unknown")
    return ", ".join(parts)


def _one_family(done: _Sorted, within: Sequence[Range], *, forced: bool) -> Family:
    """Return IPv4, or IPv6 if more ports have it: NCCL uses one family for all. The other ports
    cannot be used.
    """
    versions = {network.version for network in within}
    if len(versions) == 1:
        return "AF_INET" if 4 in versions else "AF_INET6"
    ports = [hca for hca in done.decided.values() if hca.use and hca.link_layer == ETHERNET]
    known = [hca for hca in ports if hca.gid_slots is not None and not hca.gids_unread]
    fourth = sum(fit_index(hca.gids, hca.gid_slots, "AF_INET", within) is not None for hca in known)
    sixth = sum(fit_index(hca.gids, hca.gid_slots, "AF_INET6", within) is not None for hca in known)
    family: Family = "AF_INET6" if sixth > fourth else "AF_INET"
    if not forced:
        for hca in known:
            if fit_index(hca.gids, hca.gid_slots, family) is None:
                word = "IPv4" if family == "AF_INET" else "IPv6"
                done.no(hca, f"no {word} GID that NCCL would take, as others have", expected=True)
    return family


def _with_index(hca: Hca, family: Family, within: Sequence[Range]) -> Hca:
    if hca.link_layer == INFINIBAND:
        return replace(hca, gid_index=flid_index(hca.gids))
    if hca.link_layer != ETHERNET or hca.gid_slots is None:
        return hca
    index = fit_index(hca.gids, hca.gid_slots, family, within)
    if index is None and hca.use:
        network = within[0] if len(within) == 1 else None
        index = nccl_index(hca.gids, hca.gid_slots, family, network)
    return replace(hca, gid_index=index)


def _with_rails(hcas: Sequence[Hca]) -> list[Hca]:
    used = [hca for hca in hcas if hca.use]
    if any(hca.pci is None for hca in used):
        return list(hcas)
    used.sort(key=lambda hca: (function_order(hca.pci or ""), hca.port))
    rails = {hca.key: place for place, hca in enumerate(used)}
    return [replace(hca, rail=rails.get(hca.key)) for hca in hcas]


def _summary(hcas: Sequence[Hca], done: _Sorted) -> Fabric:
    used = [hca for hca in hcas if hca.use]
    names = dict.fromkeys(hca.group for hca in used or [hca for hca in hcas if hca.expected])
    return Fabric(
        name=" + ".join(names) or None,
        used=len(used),
        expected=sum(hca.expected for hca in hcas),
        alternatives=done.alternatives,
    )
