"""What the XML of a libvirt domain says: its disks and interfaces, what an operator has written into it, and the
driver's own mark.

Two metadata elements are ours. Their namespaces differ because libvirt keeps one element for each and replaces it as a
whole, and two write them: the operator and the driver.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from xml.etree import ElementTree

from forenotice.core import errors

VM = "urn:forenotice:vm:1"
"""The operator's: which VM of the fleet this is."""
OPERATION = "urn:forenotice:operation:1"
"""The driver's: the operation it carries out, or has carried out last."""
PREFIX = "fn"
UNITS = {"b": 1, "bytes": 1, "kb": 10**3, "k": 2**10, "kib": 2**10, "mb": 10**6, "m": 2**20, "mib": 2**20}
UNITS |= {"gb": 10**9, "g": 2**30, "gib": 2**30, "tb": 10**12, "t": 2**40, "tib": 2**40}


class DefinitionError(errors.RefusedError):
    """A domain's XML cannot be used."""

    code = "definition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    target: str
    """`vda`"""
    type: str
    """`file`, `block`, `volume`, `network`, ..."""
    path: str
    """Empty: it is neither a file nor a block device."""
    format: str
    is_medium: bool
    """A CD or floppy, or read-only: nothing that a VM keeps its data on."""
    ephemeral: bool = False
    size: int | None = None
    """Bytes, where the operator says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    type: str
    """`bridge`, `network`, `ethernet`, ..."""
    mac: str
    source: str
    """The bridge or network, as far as there is one."""
    device: str
    """On the host, `vnet0`; empty while the domain does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VmElement:
    """The operator's element, as it is written there; empty where it says nothing."""

    group: str = ""
    kind: str = ""
    update_domain: str = ""
    fault_domain: str = ""
    spot: str = ""
    size: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDisk:
    """An ephemeral disk that is made new before a domain starts."""

    path: str
    size: int
    format: str
    backing: str = ""
    """The image that it is based on, and that image's format."""
    backing_format: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The driver's element: what it is doing to this domain, for whoever looks after a crash."""

    operation: str
    step: str
    at: datetime
    polled: bool = False
    """Whether the VM polled shortly before: then it is alive again when it polls."""
    transient: bool = False
    """It was made persistent for the operation."""
    autostart: bool = False
    disks: tuple[NewDisk, ...] = ()

    def xml(self) -> str:
        """Without its namespace, which libvirt adds."""
        facts = {"id": self.operation, "step": self.step, "at": self.at.isoformat()}
        facts |= {name: "yes" for name in ("polled", "transient", "autostart") if getattr(self, name)}
        element = ElementTree.Element("operation", facts)
        for disk in self.disks:
            told = {"path": disk.path, "size": str(disk.size), "format": disk.format}
            if disk.backing:
                told |= {"backing": disk.backing, "backing-format": disk.backing_format}
            ElementTree.SubElement(element, "disk", told)
        return ElementTree.tostring(element, encoding="unicode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    uuid: str
    name: str
    memory: int
    """Bytes, at most."""
    hugepages: bool
    disks: tuple[Disk, ...]
    interfaces: tuple[Interface, ...]
    vm: VmElement | None
    mark: Mark | None

    @property
    def ephemeral(self) -> tuple[Disk, ...]:
        return tuple(disk for disk in self.disks if disk.ephemeral)

    @property
    def persistent(self) -> tuple[Disk, ...]:
        return tuple(disk for disk in self.disks if not disk.ephemeral and not disk.is_medium)


def parse(xml: str) -> Definition:
    root = tree(xml)
    if root.tag != "domain":
        raise DefinitionError(f"this is not a domain but {root.tag}")
    written = root.find(f"metadata/{{{VM}}}vm")
    marked = root.find(f"metadata/{{{OPERATION}}}operation")
    memory = root.find("memory")
    return Definition(
        uuid=root.findtext("uuid", "").lower(),
        name=root.findtext("name", ""),
        memory=0 if memory is None else size(memory),
        hugepages=root.find("memoryBacking/hugepages") is not None,
        disks=tuple(_disks(root, written)),
        interfaces=tuple(_interfaces(root)),
        vm=None if written is None else _vm(written),
        mark=None if marked is None else _mark(marked),
    )


def tree(xml: str) -> ElementTree.Element:
    """libvirt writes no document types, and without them there are no entities."""
    if "<!DOCTYPE" in xml:
        raise DefinitionError("this XML has a document type, which libvirt does not write")
    try:
        return ElementTree.fromstring(xml)  # noqa: S314 - see above
    except ElementTree.ParseError as error:
        raise DefinitionError(f"this is not XML: {error}") from None


def size(element: ElementTree.Element | None, default: str = "KiB") -> int:
    """An amount with a unit, in bytes."""
    if element is None:
        raise DefinitionError("an amount of bytes is missing")
    try:
        return int(element.text or "") * UNITS[element.get("unit", default).lower()]
    except (ValueError, KeyError):
        raise DefinitionError(f"{element.tag} is not an amount of bytes") from None


def _disks(root: ElementTree.Element, written: ElementTree.Element | None) -> Iterator[Disk]:
    said = {} if written is None else {each.get("target"): each for each in written.iterfind(f"{{{VM}}}disk")}
    for element in root.iterfind("devices/disk"):
        source, driver, target = element.find("source"), element.find("driver"), element.find("target")
        device = element.get("device", "disk")
        disk = Disk(
            target="" if target is None else target.get("dev", ""),
            type=element.get("type", ""),
            path="" if source is None else source.get("file") or source.get("dev") or "",
            format="" if driver is None else driver.get("type", ""),
            is_medium=device not in ("disk", "lun") or element.find("readonly") is not None,
        )
        if (words := said.get(disk.target)) is not None:
            disk = replace(disk, ephemeral=words.get("ephemeral") == "yes", size=_bytes(words.get("size")))
        yield disk


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise DefinitionError(f"size={text[:80]!r} of a disk is not a number of bytes")
    return int(text)


def _interfaces(root: ElementTree.Element) -> Iterator[Interface]:
    for element in root.iterfind("devices/interface"):
        source, target, mac = element.find("source"), element.find("target"), element.find("mac")
        yield Interface(
            type=element.get("type", ""),
            mac="" if mac is None else mac.get("address", "").lower(),
            source="" if source is None else source.get("bridge") or source.get("network") or source.get("dev") or "",
            device="" if target is None else target.get("dev", ""),
        )


def _vm(element: ElementTree.Element) -> VmElement:
    addresses = (each.text or "" for each in element.iterfind(f"{{{VM}}}address"))
    return VmElement(
        group=element.get("group", ""),
        kind=element.get("kind", ""),
        update_domain=element.get("update-domain", ""),
        fault_domain=element.get("fault-domain", ""),
        spot=element.get("spot", ""),
        size=element.get("size", ""),
        addresses=tuple(each.strip() for each in addresses),
    )


def _mark(element: ElementTree.Element) -> Mark | None:
    """None: somebody else has written it."""
    try:
        at = datetime.fromisoformat(element.get("at", ""))
        disks = tuple(
            NewDisk(
                path=each.get("path", ""),
                size=int(each.get("size", "")),
                format=each.get("format", ""),
                backing=each.get("backing", ""),
                backing_format=each.get("backing-format", ""),
            )
            for each in element.iterfind(f"{{{OPERATION}}}disk")
        )
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    return Mark(
        operation=element.get("id", ""),
        step=element.get("step", ""),
        at=at,
        polled=element.get("polled") == "yes",
        transient=element.get("transient") == "yes",
        autostart=element.get("autostart") == "yes",
        disks=disks,
    )
