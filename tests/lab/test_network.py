"""A real guest behind the rules that are made of what its libvirt says."""

import json
from pathlib import Path

from tests.acceptance.running import Server, run, until
from tests.namespaces import require_libvirt

from forenotice.lab import guests, hosts, image
from forenotice.lab.guests import Guest


def test_a_guest_reaches_the_endpoint_through_the_rules(host: hosts.Host, place: Path) -> None:
    require_libvirt()
    import libvirt

    guest = Guest(name="vm-0", directory=place)
    guest.make_disks()
    kernel = image.write(place / "initrd")
    link = libvirt.open(host.uri)
    server = Server(place, "--metadata", f"onehop:{hosts.METADATA}:80%{hosts.BRIDGE}@{host.netns}")
    server.start()
    try:
        vm = {"host": "host-a", "addresses": [guest.address], "vm_id": guest.uuid}
        server.post("/v1/fleet", {"hosts": {"host-a": {"address": host.uri}}, "vms": {"vm-0": vm}})
        link.createXML(guest.domain(kernel, place / "initrd", "qemu"))
        env = {**server.env, "FORENOTICE_DATA": str(server.data)}
        done = run(*host.command("forenotice", "network", "rules", "--host", "host-a", "--apply", "--json"), env=env)
        assert done.returncode == 0, done.stderr
        (port,) = json.loads(done.stdout)["ports"]
        assert port == {
            "port": port["port"],
            "vm": "vm-0",
            "mac": f"52:54:00:77:01:{guests.FIRST:02x}",
            "addresses": [guest.address],
        }
        loaded = run(*host.command("nft", "list", "chain", "bridge", "forenotice", f"port_{port['port']}"), env=env)
        assert f"ip saddr {guest.address} accept" in loaded.stdout
        until(lambda: guest.latest and guest.latest.date, what="the guest, which has not booted yet, gets responses")
    finally:
        server.kill()
        link.close()
