"""The guests' image: the system's kernel, and an initramfs of its modules, busybox and a handler script.

Nothing is downloaded. The initramfs is a cpio archive in the "newc" format, compressed by gzip.
"""

import gzip
import lzma
import re
import stat
import struct
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from forenotice.core import errors
from forenotice.lab import packages

MODULES = ("virtio_pci", "virtio_net", "virtio_blk", "button", "evdev", "ext4")
"""What a guest needs, besides what these need in turn: its devices, its power button, its file systems."""
APPLETS = frozenset(
    [
        "acpid",
        "cat",
        "cut",
        "date",
        "hostname",
        "insmod",
        "ip",
        "mke2fs",
        "mount",
        "poweroff",
        "sh",
        "sleep",
        "sync",
        "timeout",
        "umount",
        "wget",
    ]
)
"""What the script needs of busybox."""
DIRECTORIES = ("bin", "data", "dev", "etc", "etc/acpi", "etc/acpi/PWRF", "lib", "lib/modules", "proc", "scratch", "sys")
POWER_BUTTON = b"""\
#!/bin/sh
if [ -f /tmp/agent.pid ]; then
    kill "$(cat /tmp/agent.pid)"
    for try in 1 2 3 4 5 6 7 8 9 10; do umount /data && break; sleep 1; done
fi
sync
umount /data /scratch
poweroff -f
"""
NUMBERS = re.compile(r"\d+|\D+")
PT_LOAD, PT_INTERP = 1, 3


class ImageError(errors.RefusedError):
    """The guests' image cannot be made."""

    code = "lab_image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    file: Path
    modules: Path
    """The directory of its version."""

    @property
    def version(self) -> str:
        return self.modules.name


def lacking(root: Path = Path("/")) -> list[str]:
    """The packages without which no image can be made; a program that is not there at all is not named."""
    busybox = packages.find("busybox")
    is_dynamic = busybox is not None and _is_dynamic(Path(busybox).read_bytes())
    return [*(["busybox-static"] if is_dynamic else []), *([] if _kernels(root) else [packages.kernel()])]


def find_kernel(root: Path = Path("/")) -> Kernel:
    """The newest, but one for clouds if there is one: it is smaller and boots sooner."""
    found = _kernels(root)
    if not found:
        raise packages.missing([packages.kernel()])
    chosen = max(found, key=lambda kernel: ("cloud" in kernel.version, _by_number(kernel.version)))
    try:
        with chosen.file.open("rb"):
            return chosen
    except PermissionError:
        raise ImageError(f"the kernel {chosen.file} cannot be read: chmod +r it, or run this as root") from None


def _kernels(root: Path) -> list[Kernel]:
    return [
        Kernel(file=file, modules=modules)
        for modules in (root / "lib/modules").glob("*")
        for file in (root / "boot" / f"vmlinuz-{modules.name}", modules / "vmlinuz")
        if (modules / "modules.dep").is_file() and file.is_file()
    ]


def _by_number(version: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in NUMBERS.findall(version)]


def write(path: Path, kernel: Kernel | None = None, busybox: Path | None = None) -> Kernel:
    """Write the initramfs; gives the kernel that it is for."""
    kernel = kernel or find_kernel()
    path.write_bytes(gzip.compress(archive(_entries(kernel, busybox or find_busybox())), 1, mtime=0))
    return kernel


def find_busybox() -> Path:
    """A guest has no libraries, so it must need none."""
    found = Path(packages.program("busybox"))
    if _is_dynamic(found.read_bytes()):
        raise packages.missing(["busybox-static"])
    listed = subprocess.run([found, "--list"], check=True, capture_output=True, text=True)  # noqa: S603
    if missing := sorted(APPLETS - set(listed.stdout.split())):
        raise ImageError(f"{found} has no {', '.join(missing)}: install Debian's busybox-static")
    return found


def _is_dynamic(program: bytes) -> bool:
    """Whether it names an interpreter, which loads its libraries."""
    return any(type_ == PT_INTERP for type_, _ in _segments(program))


def loaded(program: bytes) -> bytes:
    """Without what nobody loads who runs it, such as what debuggers need."""
    return program[: max(end for type_, end in _segments(program) if type_ == PT_LOAD)]


def _segments(program: bytes) -> Iterator[tuple[int, int]]:
    """The type and the end of each segment of an ELF file of 64 bits."""
    (start,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    for each in range(start, start + size * count, size):
        type_, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", program, each)
        yield type_, offset + length


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def _entries(kernel: Kernel, busybox: Path) -> Iterator[Entry]:
    for name in (*DIRECTORIES, "tmp"):
        yield Entry(name, stat.S_IFDIR | 0o755)
    yield Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    yield Entry("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes())
    yield Entry("bin/sh", stat.S_IFLNK | 0o777, b"busybox")
    yield Entry("init", stat.S_IFREG | 0o755, Path(__file__).with_name("init.sh").read_bytes())
    yield Entry("etc/acpi/PWRF/00000080", stat.S_IFREG | 0o755, POWER_BUTTON)
    order = [kernel.modules / place for place in modules(kernel)]
    for file in order:
        yield Entry(f"lib/modules/{_plain(file)}", stat.S_IFREG | 0o644, _unpacked(file))
    yield Entry("lib/modules/order", stat.S_IFREG | 0o644, "".join(f"{_plain(file)}\n" for file in order).encode())


def modules(kernel: Kernel, wanted: Iterable[str] = MODULES) -> list[str]:
    """The files of these modules and of those they need, each after what it needs; without what the kernel has."""
    needs = dict[str, tuple[str, list[str]]]()
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        file, _, rest = line.partition(":")
        # The file names what must be loaded last first.
        needs[_name(file)] = (file, rest.split()[::-1])
    built_in = {_name(line) for line in (kernel.modules / "modules.builtin").read_text().splitlines()}
    order = dict[str, None]()
    for name in wanted:
        if name in needs:
            file, before = needs[name]
            order.update(dict.fromkeys([*before, file]))
        elif name not in built_in:
            raise ImageError(
                f"the kernel {kernel.version} has no module {name}: apt-get install {packages.kernel()}",
                missing=name,
            )
    return list(order)


def _plain(file: Path) -> str:
    return f"{_name(str(file))}.ko"


def _name(file: str) -> str:
    return file.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def _unpacked(file: Path) -> bytes:
    match file.suffix:
        case ".xz":
            return lzma.decompress(file.read_bytes())
        case ".gz":
            return gzip.decompress(file.read_bytes())
        case ".zst":
            if packages.find("zstd") is None:
                raise packages.missing(["zstd"])
            command = [packages.find("zstd") or "", "-dcq", str(file)]
            return subprocess.run(command, check=True, capture_output=True).stdout  # noqa: S603
    return file.read_bytes()


# The archive


def archive(entries: Iterable[Entry]) -> bytes:
    """In the "newc" format, as the kernel's documentation describes it."""
    return b"".join(_pack(number, entry) for number, entry in enumerate((*entries, Entry("TRAILER!!!", 0)), 1))


def _pack(number: int, entry: Entry) -> bytes:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    # inode, mode, uid, gid, links, time, size, device of the file (2), device it is (2), length of the name, checksum
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.content), 0, 0, *entry.device, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return _padded(header) + _padded(entry.content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
