"""The scenarios that come with forenotice: a TOML file each, in this folder, read only when asked for."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import msgspec

from forenotice.core import errors
from forenotice.emulator.scenarios import preview, reader
from forenotice.emulator.scenarios.format import Scenario
from forenotice.toml import nearest
from forenotice.views.emulator import ScenarioSummary

SUFFIX = ".toml"
_FOLDER = resources.files(__name__)


def names() -> list[str]:
    return sorted(file.name.removesuffix(SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(SUFFIX))


def load(name: str) -> Scenario:
    known = names()
    if name not in known:
        raise errors.NotFoundError(nearest(name, known, "scenario"))
    file = f"{name}{SUFFIX}"
    return reader.read((_FOLDER / file).read_text(encoding="utf-8"), file, name=name)


def load_any(name_or_path: str, resources: Sequence[str] = (), seed: int | None = None) -> Scenario:
    """One of ours, or a file; with other VMs and another seed, if given. What cannot be played is refused."""
    scenario = _from_file(Path(name_or_path)) if _is_path(name_or_path) else load(name_or_path)
    return adapted(scenario, resources, seed)


def adapted(scenario: Scenario, resources: Sequence[str], seed: int | None) -> Scenario:
    if resources:
        scenario = scenario.on(tuple(resources))
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    return preview.check(scenario)


def summary(scenario: Scenario) -> ScenarioSummary:
    return ScenarioSummary(
        name=scenario.name,
        title=scenario.title,
        description=scenario.description,
        timing=scenario.timing,
        resources=list(scenario.resources),
        picture=preview.timeline(scenario),
    )


def _is_path(name: str) -> bool:
    return name.endswith(SUFFIX) or Path(name).name != name


def _from_file(path: Path) -> Scenario:
    try:
        with path.open("rb") as file:
            content = file.read(reader.LARGEST + 1)
    except OSError as error:
        raise errors.RefusedError(f"{path} cannot be read: {error.strerror}") from None
    return reader.read(reader.decode(content, str(path)), str(path), name=path.stem)
