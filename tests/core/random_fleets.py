"""Random fleets for rollouts: groups that number the same hosts each in their own way, budgets, windows, lone VMs."""

from typing import Any

from hypothesis import strategies as st
from tests.core.builders import ALWAYS, Site

from forenotice.core.fleet import Policy
from forenotice.core.windows import Window, parse_all

HOSTS = "abcdef"
WINDOWS: list[tuple[Window, ...]] = [
    (),
    parse_all(["daily 00:00-24:00 UTC"]),
    parse_all(["daily 13:00-16:30 UTC"]),
    parse_all(["daily 02:00-03:00 Europe/Berlin", "daily 14:00-20:00 America/New_York"]),
    parse_all(["mon-fri 22:00-04:00 Europe/Berlin"]),
    parse_all(["sun,mon 20:05-20:25 Asia/Tokyo", "daily 01:00-04:00 Australia/Lord_Howe"]),
]
MAX_UNAVAILABLE = [None, None, "1", "2", "4", "50%", "100%"]
MIN_AVAILABLE = [None, None, 0, 1]


def a_window(draw: st.DrawFn) -> tuple[Window, ...]:
    return draw(st.sampled_from(WINDOWS)) if draw(st.integers(0, 3)) == 0 else ()


@st.composite
def policies(draw: st.DrawFn, *, group: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"windows": a_window(draw)}
    if group:
        found["max_unavailable"] = draw(st.sampled_from(MAX_UNAVAILABLE))
        found["min_available"] = draw(st.sampled_from(MIN_AVAILABLE))
    return found


@st.composite
def sites(draw: st.DrawFn, *, spare: int = 0, policy: Policy = ALWAYS) -> Site:
    site = Site()
    hosts = HOSTS[: draw(st.integers(2, len(HOSTS)))]
    site.add_hosts(hosts)
    for number in range(spare):
        site.add_host(f"spare-{number}")
    for name in ("red", "blue", "green")[: draw(st.integers(0, 3))]:
        site.add_group(name, policy=policy, **draw(policies()))
        domains = draw(st.lists(st.integers(0, 2), min_size=len(hosts), max_size=len(hosts)))
        sizes = draw(st.lists(st.sampled_from([0, 1, 1, 2]), min_size=len(hosts), max_size=len(hosts)))
        for host, domain, size in zip(hosts, domains, sizes, strict=True):
            for number in range(size):
                site.add_vm(f"{name}-{host}{number}", host, group=name, update_domain=domain, fault_domain=domain % 2)
    for number, host in enumerate(draw(st.lists(st.sampled_from(hosts), max_size=3))):
        site.add_vm(f"lone-{number}", host, policy=policy)
        site.set_policy(f"vm:lone-{number}", **draw(policies(group=False)))
    return site
