"""What a domain's XML says, and the mark that the driver leaves in it."""

from datetime import UTC, datetime

import pytest

from forenotice.drivers.libvirt import domains
from forenotice.drivers.libvirt.domains import Disk, Interface, Mark, NewDisk, VmElement

XML = """
<domain type='qemu' id='3' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>web-0</name>
  <uuid>6695EB01-f6a4-8304-79aa-97f2502e193f</uuid>
  <metadata>
    <other:thing xmlns:other="urn:other"/>
    <fn:vm xmlns:fn="urn:forenotice:vm:1" group="web" kind="availability-set" update-domain="0"
           fault-domain="1" spot="no" size="2">
      <fn:address>10.0.0.4</fn:address><fn:address> fd00::4 </fn:address>
      <fn:disk target="vdb" ephemeral="yes" size="1048576"/><fn:disk target="vda" ephemeral="no"/>
    </fn:vm>
    %s
  </metadata>
  <memory unit='MiB'>256</memory>
  <devices>
    <disk type='file' device='disk'><driver type='raw'/><source file='/srv/a.raw'/><target dev='vda'/></disk>
    <disk type='file'><driver name='qemu' type='qcow2'/><source file='/srv/b.qcow2'/><target dev='vdb'/></disk>
    <disk type='block' device='disk'><source dev='/dev/vg/c'/><target dev='vdc'/></disk>
    <disk type='file' device='cdrom'><target dev='sda'/><readonly/></disk>
    <interface type='bridge'><mac address='52:54:00:00:00:0A'/><source bridge='br0'/><target dev='vnet0'/></interface>
    <interface type='network'><mac address='52:54:00:00:00:0b'/><source network='default'/></interface>
    <interface type='user'/>
  </devices>
</domain>
"""
MARK = Mark(
    operation="o-1",
    step="start",
    at=datetime(2026, 1, 5, 12, 0, 0, 500000, tzinfo=UTC),
    polled=True,
    disks=(NewDisk(path="/srv/<b>.qcow2", size=7, format="qcow2", backing="/srv/base", backing_format="raw"),),
)


def test_it_has_disks_interfaces_and_what_an_operator_has_written() -> None:
    found = domains.parse(XML % "")
    assert (found.name, found.uuid, found.memory) == ("web-0", "6695eb01-f6a4-8304-79aa-97f2502e193f", 256 << 20)
    assert found.vm == VmElement(
        group="web",
        kind="availability-set",
        update_domain="0",
        fault_domain="1",
        spot="no",
        size="2",
        addresses=("10.0.0.4", "fd00::4"),
    )
    vda, vdb, vdc, sda = found.disks
    assert vda == Disk(target="vda", type="file", path="/srv/a.raw", format="raw", is_medium=False)
    assert (vdb.path, vdb.format, vdb.ephemeral, vdb.size) == ("/srv/b.qcow2", "qcow2", True, 1 << 20)
    assert (vdc.type, vdc.path, vdc.ephemeral) == ("block", "/dev/vg/c", False)
    assert sda.is_medium
    assert (found.ephemeral, found.persistent) == ((vdb,), (vda, vdc))
    assert found.interfaces == (
        Interface(type="bridge", mac="52:54:00:00:00:0a", source="br0", device="vnet0"),
        Interface(type="network", mac="52:54:00:00:00:0b", source="default", device=""),
        Interface(type="user", mac="", source="", device=""),
    )
    assert found.mark is None


def test_the_mark_is_read_as_it_was_written() -> None:
    # As libvirt keeps it: with its namespace on every element.
    kept = (
        MARK.xml().replace("<operation", f'<fn:operation xmlns:fn="{domains.OPERATION}"').replace("<disk", "<fn:disk")
    )
    kept = kept.replace("</operation", "</fn:operation")
    assert domains.parse(XML % kept).mark == MARK


@pytest.mark.parametrize("at", ["", "yesterday", "2026-01-05T12:00:00"])
def test_a_mark_that_is_not_ours_is_ignored(at: str) -> None:
    kept = f'<fn:operation xmlns:fn="{domains.OPERATION}" id="o-1" at="{at}"/>'
    assert domains.parse(XML % kept).mark is None


def test_a_domain_that_says_little_is_enough() -> None:
    found = domains.parse("<domain><name>x</name></domain>")
    assert (found.name, found.uuid, found.memory, found.disks, found.interfaces, found.vm) == ("x", "", 0, (), (), None)


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        ("<domain", "not XML"),
        ("<network/>", "not a domain"),
        ('<!DOCTYPE d [<!ENTITY a "b">]><domain><name>&a;</name></domain>', "document type"),
        ("<domain><memory unit='ells'>3</memory></domain>", "memory is not an amount"),
        (XML.replace('size="1048576"', 'size="1 GiB"') % "", "not a number of bytes"),
        (XML.replace('size="1048576"', f'size="{"1" * 5000}"') % "", f"size='{'1' * 80}' of a disk is not a number"),
    ],
)
def test_what_cannot_be_used_is_refused(xml: str, said: str) -> None:
    with pytest.raises(domains.DefinitionError, match=said):
        domains.parse(xml)


def test_an_amount_that_is_missing_is_refused() -> None:
    with pytest.raises(domains.DefinitionError, match="missing"):
        domains.size(None)
