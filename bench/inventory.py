"""What it costs to watch a host with many domains: libvirt's test driver has them, in the service's own process."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import fleets, report, servers
from bench.effort import Effort
from forenotice.core.membership import VmSpec
from forenotice.core.reconciliation import FleetSpec, HostSpec

PERCENT = 1.0
FOUND_SECONDS = 120
SETTLED_SECONDS = 3
LOOKS = 2
"""Each full look is a minute after the one before."""
DOMAIN = """
<domain type='test'>
  <name>web-{number}</name>
  <uuid>00000000-0000-4000-8000-{number:012x}</uuid>
  <metadata>
    <fn:vm xmlns:fn="urn:forenotice:vm:1" group="group-{group}"><fn:address>10.{high}.{low}.1</fn:address></fn:vm>
  </metadata>
  <memory unit='GiB'>4</memory>
  <os><type>hvm</type></os>
  <devices>
    <disk type='file' device='disk'><source file='/srv/web-{number}.qcow2'/><target dev='vda' bus='virtio'/></disk>
    <interface type='bridge'><source bridge='br0'/></interface>
  </devices>
</domain>
"""


def measure(effort: Effort) -> list[report.Row]:
    seconds = effort.idle_seconds * LOOKS
    alone, _ = _watching(0, seconds)
    watching, found = _watching(effort.domains, seconds)
    return [
        report.within(
            f"Watching a host with {effort.domains:,} domains, CPU of one core",
            watching - alone,
            PERCENT,
            "{:.2f} %",
            reference=f"{alone:.2f} %, the same service without a watched host",
        ),
        report.Row(
            what=f"{effort.domains:,} new domains of a host, until all are VMs of the fleet", measured=f"{found:.1f} s"
        ),
    ]


def _watching(domains: int, seconds: int) -> tuple[float, float]:
    """Percent of a core once all are known, and how long that took."""
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        data = Path(directory)
        node = data / "node.xml"
        described = (
            DOMAIN.format(number=number, group=number // 5, high=number >> 8, low=number & 255)
            for number in range(domains)
        )
        node.write_text(f"<node>{''.join(described)}</node>")
        watched = HostSpec(address=f"test://{node}", inventory="libvirt") if domains else HostSpec()
        vm = VmSpec(name="vm-0", host="other", addresses=("127.0.0.1",))
        fleets.make(data, FleetSpec(hosts={"other": HostSpec(), "host": watched}, vms={"vm-0": vm}))
        begin = time.perf_counter()
        with servers.forenotice(data) as server:
            while _vms(data) < domains + 1:
                if time.perf_counter() - begin > FOUND_SECONDS:
                    raise RuntimeError(f"only {_vms(data)} of {domains} domains were found in {FOUND_SECONDS} s")
                time.sleep(0.1)
            found = time.perf_counter() - begin - server.first_answer_seconds
            time.sleep(SETTLED_SECONDS)
            before, since = server.cpu_seconds(), time.perf_counter()
            time.sleep(seconds)
            return 100 * (server.cpu_seconds() - before) / (time.perf_counter() - since), found


def _vms(data: Path) -> int:
    with closing(sqlite3.connect(fleets.database(data))) as connection:
        count: int = connection.execute("SELECT count(*) FROM vms").fetchone()[0]
        return count
