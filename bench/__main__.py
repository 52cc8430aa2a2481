"""Runs what is named on the command line, or everything, and shows the table."""

import argparse
import sys
from collections.abc import Callable

from bench import (
    agent,
    approvals,
    cluster,
    commandline,
    emulator,
    fleet,
    flood,
    history,
    inventory,
    machine,
    polls,
    portal,
    report,
    rollouts,
    scheduling,
    sharing,
    waiting,
)
from bench.effort import FULL, QUICK, Effort


def _pauses(effort: Effort) -> list[report.Row]:
    # Not all have libvirt's library, and only this needs it here.
    from bench import pauses

    return pauses.measure(effort)


PARTS: dict[str, Callable[[Effort], list[report.Row]]] = {
    "polls": polls.measure,
    "fleet": fleet.measure,
    "approvals": approvals.measure,
    "flood": flood.measure,
    "waiting": waiting.measure,
    "scheduling": scheduling.measure,
    "sharing": sharing.measure,
    "agent": agent.measure,
    "emulator": emulator.measure,
    "commandline": commandline.measure,
    "history": history.measure,
    "inventory": inventory.measure,
    "pauses": _pauses,
    "rollouts": rollouts.measure,
    "portal": portal.measure,
    "cluster": cluster.measure,
}
DESCRIPTORS = 12_000
BUSY = 0.5
"""A load average beyond which somebody else is at work here."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; without one, all")
    parser.add_argument("--quick", action="store_true", help="fewer, shorter and smaller runs, only to see it work")
    asked = parser.parse_args()
    unknown = sorted(set(asked.parts) - set(PARTS))
    if unknown:
        parser.error(f"there is no part {unknown[0]}: name any of {', '.join(PARTS)}")
    machine.allow_descriptors(DESCRIPTORS)
    if machine.load_average() > BUSY:
        print(f"bench: the machine is busy (load {machine.load_average():.1f}): numbers will be rough", file=sys.stderr)
    machine.pin(machine.LOAD_CORE)
    rows: list[report.Row] = []
    for name in asked.parts or PARTS:
        print(f"bench: {name}", file=sys.stderr)
        rows += PARTS[name](QUICK if asked.quick else FULL)
    print(report.table(rows))
    if not asked.quick and not asked.parts:
        report.RESULTS.write_text(report.page(rows))
        print(f"bench: written to {report.RESULTS.name}", file=sys.stderr)
    return 0


sys.exit(main())
