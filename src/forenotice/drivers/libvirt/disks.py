"""Ephemeral disks, through libvirt's storage: described before anything is ended, made new, deleted.

libvirt reaches a file through a storage pool of its directory. Where the host has none, one is made for the moment;
it has no definition, and its end touches no file. One that is not active is started for the moment. So this works for
every URI.
"""

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar
from xml.etree import ElementTree

import libvirt

from forenotice.core import errors
from forenotice.drivers.libvirt import domains
from forenotice.drivers.libvirt.connections import ANSWER_SECONDS, Connection, number
from forenotice.drivers.libvirt.domains import Disk, NewDisk

FORMATS = ("raw", "qcow2")
POOL = "forenotice-"

_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
"""By URI."""

T = TypeVar("T")


class DiskError(errors.ConflictError):
    """A disk cannot be handled."""


def require_usable(vm: str, disks: Iterable[Disk]) -> None:
    """DiskError: one of these ephemeral disks cannot be made new or deleted."""
    for disk in disks:
        if disk.type != "file" or not os.path.isabs(disk.path) or disk.format not in FORMATS:
            kind = f"{disk.type} {disk.format}".strip()
            raise DiskError(
                f"the ephemeral disk {disk.target} of {vm} is {kind}: only files, raw or qcow2, are supported"
            )


def describe(connection: Connection, disk: Disk) -> NewDisk | None:
    """What it is to be when it is made new; None: it is not on this host."""

    def look(link: Any) -> NewDisk | None:
        with _pool(link, disk.path) as pool:
            volume = _volume(pool, disk.path)
            if volume is None:
                return None
            root = domains.tree(volume.XMLDesc())
        if disk.format == "raw":
            # libvirt guesses the format from the content, which is its guest's; the domain says what it is.
            found = root.find("physical")
            size = domains.size(root.find("capacity") if found is None else found, "bytes")
            return NewDisk(path=disk.path, size=size, format="raw")
        base = root.find("backingStore/format")
        return NewDisk(
            path=disk.path,
            size=domains.size(root.find("capacity"), "bytes"),
            format=disk.format,
            backing=root.findtext("backingStore/path", ""),
            backing_format="" if base is None else base.get("type", ""),
        )

    return _ask(connection, look)


def exists(connection: Connection, path: str) -> bool:
    def look(link: Any) -> bool:
        with _pool(link, path) as pool:
            return _volume(pool, path) is not None

    return _ask(connection, look)


def make_new(connection: Connection, disks: Iterable[NewDisk], seconds: float) -> None:
    """Empty, or as the image they are based on, whatever was there before."""

    def make(link: Any) -> None:
        for disk in disks:
            with _pool(link, disk.path) as pool:
                permissions = None
                if (old := _volume(pool, disk.path)) is not None:
                    permissions = domains.tree(old.XMLDesc()).find("target/permissions")
                    old.delete()
                pool.createXML(_described(disk, permissions))

    _ask(connection, make, seconds)


def delete(connection: Connection, disks: Iterable[Disk], seconds: float) -> None:
    """Those that are still there."""

    def remove(link: Any) -> None:
        for disk in disks:
            with _pool(link, disk.path) as pool:
                if (old := _volume(pool, disk.path)) is not None:
                    old.delete()

    _ask(connection, remove, seconds)


@contextlib.contextmanager
def storage(connection: Connection, seconds: float) -> Iterator[None]:
    """One at a time for each host: whoever makes a pool must not take it away from another, and a call that its caller
    has given up must not go on unseen, and delete what the next one has made. DiskError: another has not ended."""
    lock = _locks[connection.uri]
    if not lock.acquire(timeout=seconds):
        raise DiskError(f"an earlier call to the storage of {connection.uri} has not ended")
    try:
        yield
    finally:
        lock.release()


def _ask(connection: Connection, function: Callable[[Any], T], seconds: float = ANSWER_SECONDS) -> T:
    def work(link: Any) -> T:
        # It never begins when its caller no longer waits.
        with storage(connection, seconds / 2):
            return function(link)

    return connection.ask(work, seconds)


def _described(disk: NewDisk, permissions: ElementTree.Element | None) -> str:
    root = ElementTree.Element("volume")
    ElementTree.SubElement(root, "name").text = os.path.basename(disk.path)
    ElementTree.SubElement(root, "capacity", unit="bytes").text = str(disk.size)
    ElementTree.SubElement(root, "allocation").text = "0"
    target = ElementTree.SubElement(root, "target")
    ElementTree.SubElement(target, "format", type=disk.format)
    if permissions is not None:
        target.append(permissions)
    if disk.backing:
        base = ElementTree.SubElement(root, "backingStore")
        ElementTree.SubElement(base, "path").text = disk.backing
        ElementTree.SubElement(base, "format", type=disk.backing_format or "raw")
    return ElementTree.tostring(root, encoding="unicode")


@contextlib.contextmanager
def _pool(link: Any, path: str) -> Iterator[Any]:
    """Of the directory that the file is in; refreshed, since files come and go without libvirt's knowledge."""
    directory = os.path.dirname(path)
    pool = next((pool for pool in link.listAllStoragePools() if _serves(pool, directory)), None)
    ours = pool is None or not pool.isActive() or pool.name().startswith(POOL)
    if pool is None:
        pool = link.storagePoolCreateXML(_directory_pool(directory))
    elif pool.isActive():
        pool.refresh()
    else:
        pool.create()
    try:
        yield pool
    finally:
        if ours:
            pool.destroy()


def _serves(pool: Any, directory: str) -> bool:
    """If it is not active, only a directory: nothing is to be mounted. libvirt allows no second pool for one."""
    root = domains.tree(pool.XMLDesc())
    return root.findtext("target/path") == directory and (pool.isActive() or root.get("type") == "dir")


def _directory_pool(directory: str) -> str:
    root = ElementTree.Element("pool", type="dir")
    ElementTree.SubElement(root, "name").text = POOL + directory.strip("/").replace("/", "-")
    target = ElementTree.SubElement(root, "target")
    ElementTree.SubElement(target, "path").text = directory
    return ElementTree.tostring(root, encoding="unicode")


def _volume(pool: Any, path: str) -> Any:
    try:
        return pool.storageVolLookupByName(os.path.basename(path))
    except libvirt.libvirtError as error:
        if number(error) == libvirt.VIR_ERR_NO_STORAGE_VOL:
            return None
        raise
