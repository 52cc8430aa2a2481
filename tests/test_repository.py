"""The repository is fit for strangers: it names no place of its makers, and says how to start."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Written so that this file does not contain what it forbids.
REGISTRIES = re.compile(
    r"(?i:pypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian|ghcr\.io|docker\.io|(index-ur[l]|find-link[s]))"
)
HOMES = re.compile(r"(?<![\w.])/(?:root|(?:home|Users)/\w+)/")


def files(root: Path) -> Iterator[Path]:
    """What is, or could be, committed."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line] + [".git"]
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not any(fnmatch(name, pattern) for pattern in ignored)]
        yield from (Path(folder, name) for name in names if not any(fnmatch(name, pattern) for pattern in ignored))


def private_places(root: Path, checkout: Path = ROOT) -> list[str]:
    places = [REGISTRIES.pattern, HOMES.pattern]
    # A checkout right below `/`, as containers have it, could be any word; one of this name, an example in the docs.
    if len(checkout.parts) > 2 and checkout.name != "forenotice":
        places.append(rf"(?<![\w./-]){re.escape(str(checkout))}(?![\w-])")
    private = re.compile("|".join(places))
    return [
        f"{path.relative_to(root)}:{number}: {found.group()}"
        for path in files(root)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (found := private.search(line))
    ]


FORMER_NAME = re.compile("not" + "before", re.IGNORECASE)
PROTOCOL_WORDS = re.compile("NotBefore|EVENT_NOTBEFORE")
"""What the document calls it, and what the handlers of another agent expect in their environment."""


def former_names(root: Path) -> list[str]:
    places = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in files(root)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FORMER_NAME.search(PROTOCOL_WORDS.sub("", line))
    ]
    return places + [str(path.relative_to(root)) for path in files(root) if FORMER_NAME.search(path.name)]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_no_file_names_a_registry_or_a_place_of_its_makers() -> None:
    assert ROOT / "pyproject.toml" in set(files(ROOT))
    assert private_places(ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        "--extra-index" + "-url=https://example.org/simple",
        "see https://pypi" + ".org/project/forenotice",
        "cd /home" + "/someone/forenotice",
        "DATA=/root" + "/data",
        "cd /somewhere/own",
    ],
)
def test_private_places_are_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "notes.md").write_text(f"first\n{line}\n")
    (tmp_path / "fine.md").write_text(
        "curl http://127.0.0.1:8254/metadata/scheduledevents, ~/.local/share/forenotice, wire/root/\n"
    )
    assert [said.rpartition(": ")[0] for said in private_places(tmp_path, Path("/somewhere/own"))] == [
        "docs/notes.md:2"
    ]


@pytest.mark.parametrize("checkout", ["/src", "/opt/forenotice"])
def test_a_checkout_that_could_be_anywhere_is_no_private_place(tmp_path: Path, checkout: str) -> None:
    (tmp_path / "notes.md").write_text(f"cd {checkout}\n")
    assert private_places(tmp_path, Path(checkout)) == []


def test_the_former_name_is_only_where_an_old_database_is_found() -> None:
    (place,) = former_names(ROOT)
    assert place.startswith("src/forenotice/settings/__init__.py:")
    assert "FORMER_DATABASE = " in place


def test_former_names_are_found(tmp_path: Path) -> None:
    name = "Not" + "before"
    (tmp_path / f"{name}.md").write_text(f"NotBefore and EVENT_NOTBEFORE\nX-{name}-VM\n")
    assert [place.partition(" ")[0] for place in former_names(tmp_path)] == [f"{name}.md:2:", f"{name}.md"]


def test_the_readme_starts_with_the_two_commands_and_names_only_targets_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"(?:^|`)make ([a-z]+)", readme, re.MULTILINE)
    block = re.search(r"^```\w*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert [line.split()[:2] for line in block[1].splitlines()][:2] == [["make", "serve"], ["make", "test"]]
    assert set(commands) <= targets()


def test_every_target_makes_its_own_environment() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert targets() == {"help", "serve", "cluster", "lab", "test", "check", "bench", "soak", "wheel", "clean"}
    for target in targets() - {"help", "clean"}:
        assert re.search(rf"^{target}: \$\(ENVIRONMENT\)", makefile, re.MULTILINE), target


def lost_links(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}: {link}"
        for path in files(root)
        if path.suffix == ".md"
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
        if "://" not in link
        for target in [(path.parent / link).resolve()]
        if not (target.exists() and target.is_relative_to(root))
    ]


def test_links_between_the_documents_lead_somewhere() -> None:
    assert lost_links(ROOT) == []


def test_lost_links_are_found(tmp_path: Path) -> None:
    root = tmp_path / "clone"
    root.mkdir()
    (tmp_path / "outside.md").touch()
    links = "[a](gone.md) [b](../outside.md) [c](#here) [d](https://example.org/x) [e](page.md#there)"
    (root / "page.md").write_text(links)
    assert lost_links(root) == ["page.md: gone.md", "page.md: ../outside.md"]


def test_constraints_pin_everything_by_name_and_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    pinned = {canonical(line.partition("==")[0]) for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    assert {canonical(re.split(r"[^\w.-]", name)[0]) for name in wanted} <= pinned


def test_every_file_that_is_installed_has_a_hash_and_no_address() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    hashed, compiled = (
        (ROOT / name).read_text().replace(" \\\n", "").splitlines() for name in ("hashes.txt", "hashes-libvirt.txt")
    )
    for lines, for_libvirt in ((hashed, False), (compiled, True)):
        expected = [each for each in constraints if each.startswith("libvirt") is for_libvirt]
        assert [line.partition(" ")[0] for line in lines] == expected, "run scripts/hashes"
    hashed += compiled
    assert [line for line in hashed if not re.fullmatch(r"\S+==\S+(    --hash=sha256:[0-9a-f]{64})+", line)] == []
    installed = re.findall(r"(\S+ -r) hashes", (ROOT / "scripts" / "environment").read_text())
    assert installed == ["--require-hashes -r"] * 2


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("script", [".ci/run", "scripts/environment", "scripts/system-packages"])
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/usr/bin/env bash\n")


def test_packages_that_cannot_be_installed_are_named(tmp_path: Path) -> None:
    """As somebody who is not root, with none of the system's programs but those in /usr/sbin, nor Python's headers."""
    script = tmp_path / "clone" / "scripts" / "system-packages"
    python = tmp_path / "clone" / ".venv" / "bin" / "python"
    for file in (script, python):
        file.parent.mkdir(parents=True)
    script.symlink_to(ROOT / "scripts" / "system-packages")
    python.write_text(f"""#!/bin/sh\nexec {sys.executable} -c "import sysconfig; sysconfig.get_path = str; $2"\n""")
    python.chmod(0o755)
    for program in ("bash", "grep", "head"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    (tmp_path / "busybox").symlink_to("/bin/cat")
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)

    def run(task: str, **env: str) -> tuple[int, str]:
        command = [str(tmp_path / "bash"), str(script), task]
        done = subprocess.run(
            command, env={"PATH": str(tmp_path), **env}, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stderr

    # Without them there is no lab; tests that need them are left out, but not in CI.
    code, said = run("lab")
    assert code == 1
    named = said.partition("apt-get install --no-install-recommends ")[2].split()
    headers = "python{}.{}-dev".format(*sys.version_info)
    assert {"libvirt-clients", "qemu-utils", "busybox-static", "pkg-config", headers} <= set(named)
    code, said = run("libvirt")
    assert (code, headers in said, "qemu-utils" in said) == (1, True, False)
    assert [run("test")[0], run("test", CI="true")[0]] == [0, 1]


def test_coverage_counts_every_line() -> None:
    coverage = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
    assert not {"exclude_lines", "exclude_also", "partial_branches", "partial_also", "omit"} & {
        *coverage["run"],
        *coverage["report"],
    }
