"""The guests' image: read back by busybox's own cpio, and what stands in the way of making it."""

import gzip
import lzma
import subprocess
from pathlib import Path

import pytest

from forenotice.lab import image, packages
from forenotice.lab.image import ImageError, Kernel


def made(root: Path, version: str, **files: str) -> Kernel:
    """A kernel with these lines in the files of its modules."""
    modules = root / "lib/modules" / version
    modules.mkdir(parents=True)
    (root / "boot").mkdir(exist_ok=True)
    (root / "boot" / f"vmlinuz-{version}").write_text("kernel")
    for name in ("dep", "builtin"):
        (modules / f"modules.{name}").write_text(files.get(name, ""))
    return Kernel(file=root / "boot" / f"vmlinuz-{version}", modules=modules)


def test_the_archive_is_what_the_kernel_reads(needed: None, tmp_path: Path) -> None:
    kernel = image.write(tmp_path / "initrd.gz")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    content = gzip.decompress((tmp_path / "initrd.gz").read_bytes())
    busybox = packages.program("busybox")
    subprocess.run([busybox, "cpio", "-idm"], input=content, cwd=unpacked, check=False, capture_output=True)
    listed = subprocess.run([busybox, "cpio", "-itv"], input=content, check=True, capture_output=True).stdout.decode()
    assert next(line for line in listed.splitlines() if line.startswith("c")).endswith("dev/console")
    assert (unpacked / "bin/busybox").read_bytes() == Path(busybox).read_bytes()
    assert (unpacked / "bin/sh").readlink() == Path("busybox")
    assert (unpacked / "init").stat().st_mode & 0o777 == 0o755
    order = (unpacked / "lib/modules/order").read_text().split()
    assert {file.name for file in (unpacked / "lib/modules").glob("*.ko")} == set(order)
    # Of these two, kernels differ in which needs the other.
    assert max(order.index("virtio.ko"), order.index("virtio_ring.ko")) < order.index("virtio_net.ko")
    assert kernel.file.is_file()
    subprocess.run([busybox, "sh", "-n", unpacked / "init"], check=True)
    again = tmp_path / "again.gz"
    image.write(again)
    assert again.read_bytes() == (tmp_path / "initrd.gz").read_bytes()


def test_each_module_comes_after_what_it_needs(tmp_path: Path) -> None:
    kernel = made(
        tmp_path,
        "6.1",
        dep="kernel/a.ko:\nkernel/b.ko.xz: kernel/a.ko\nkernel/net/c-d.ko: kernel/b.ko.xz kernel/a.ko\n",
        builtin="kernel/fs/e.ko\n",
    )
    assert image.modules(kernel, ["c_d", "e", "b"]) == ["kernel/a.ko", "kernel/b.ko.xz", "kernel/net/c-d.ko"]
    with pytest.raises(ImageError, match=r"the kernel 6\.1 has no module f: apt-get install linux-image-cloud-amd64"):
        image.modules(kernel, ["f"])


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["6.1.0-9-amd64", "6.1.0-10-amd64"], "6.1.0-10-amd64"),
        (["6.1.0-9-cloud-amd64", "6.1.0-10-amd64"], "6.1.0-9-cloud-amd64"),
        (["5.10.0-30-amd64", "6.1.0-9-amd64"], "6.1.0-9-amd64"),
    ],
)
def test_the_newest_kernel_is_taken_and_one_for_clouds_first(tmp_path: Path, versions: list[str], chosen: str) -> None:
    for version in versions:
        made(tmp_path, version)
    (tmp_path / "lib/modules/9.9-without-a-kernel").mkdir()
    assert image.find_kernel(tmp_path).version == chosen


def test_a_system_without_a_kernel_is_told_which_to_install(tmp_path: Path) -> None:
    with pytest.raises(packages.MissingError, match="apt-get install --no-install-recommends linux-image-cloud-amd64"):
        image.find_kernel(tmp_path)


def test_all_that_is_lacking_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "busybox").symlink_to("/bin/cat")
    monkeypatch.setattr(packages, "PATH", str(tmp_path))
    assert image.lacking(tmp_path) == ["busybox-static", packages.kernel()]
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "ubuntu"})
    made(tmp_path / "another", "6.1")
    assert image.lacking(tmp_path / "another") == ["busybox-static"]
    with pytest.raises(packages.MissingError, match=r"no-install-recommends \S.* busybox-static linux-image-virtual$"):
        packages.require(more=image.lacking(tmp_path))


def test_modules_are_unpacked_for_busybox(tmp_path: Path) -> None:
    for name, packed in (
        ("a.ko", b"module"),
        ("a.ko.xz", lzma.compress(b"module")),
        ("a.ko.gz", gzip.compress(b"module")),
    ):
        (tmp_path / name).write_bytes(packed)
        assert image._unpacked(tmp_path / name) == b"module"


def test_a_busybox_that_needs_libraries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "busybox").symlink_to("/bin/cat")
    monkeypatch.setattr(packages, "PATH", str(tmp_path))
    with pytest.raises(packages.MissingError, match="busybox-static"):
        image.find_busybox()
