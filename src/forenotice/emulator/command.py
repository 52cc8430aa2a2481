"""The command line of `forenotice emulate`, without the libraries that the other commands use: it starts at once."""

import json
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec

from forenotice import settings
from forenotice.core import errors
from forenotice.emulator import foreground
from forenotice.settings import EmulatorSettings, SettingError, table

DONE, FAILED, USAGE = 0, 1, 2

ABOUT = "Answer guests as the platform would, by a scenario or as you drive it, until Ctrl-C."
SCENARIO = "One of those that --list shows, or a TOML file; without one, nothing happens until you say so."
LIST = "Show the scenarios there are, each with a picture."
SHOW = "Print the TOML of a scenario, to copy and change."
JSON = "Print JSON for machines: a line for each thing that happens, the first with the addresses."


def main(arguments: Sequence[str]) -> int:
    parser = table.parser("forenotice emulate", ABOUT, table.EMULATE)
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help=SCENARIO)
    parser.add_argument("--list", action="store_true", help=LIST)
    parser.add_argument("--show", metavar="NAME", help=SHOW)
    parser.add_argument("--json", action="store_true", help=JSON)
    flags = vars(parser.parse_args(arguments))
    own = {name: flags.pop(name) for name in ("scenario", "list", "show", "json")}
    return emulate(flags, scenario=own["scenario"], listed=own["list"], shown=own["show"], as_json=own["json"])


def emulate(
    flags: Mapping[str, object], *, scenario: str | None, listed: bool, shown: str | None, as_json: bool
) -> int:
    try:
        foreground.check_place(flags)
        found = settings.load_emulator(flags, os.environ)
    except SettingError as error:
        return _complain(error.message, USAGE)
    try:
        if listed:
            return _print(_listed(as_json=as_json))
        if shown is not None:
            return _print(_shown(shown, as_json=as_json))
        return _run(found, scenario, as_json=as_json)
    except KeyboardInterrupt:
        # Before it had begun.
        return DONE
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "forenotice":
            raise
        return _complain(
            f"the emulator needs packages, but {error.name} is not installed: pip install 'forenotice[emulator]'",
            FAILED,
        )
    except errors.NotFoundError as error:
        return _complain(error.message, USAGE)
    except errors.ForenoticeError as error:
        return _complain(error.message, FAILED)


def _run(found: EmulatorSettings, name: str | None, *, as_json: bool) -> int:
    from forenotice.emulator import run

    try:
        scenario = None if name is None else run.load_scenario(name, found)
    except errors.ForenoticeError as error:
        return _complain(error.message, USAGE)
    run.run(found, scenario, as_json=as_json)
    return DONE


def _listed(*, as_json: bool) -> str:
    from forenotice.emulator.scenarios import catalogue, preview

    scenarios = [catalogue.load(name) for name in catalogue.names()]
    if as_json:
        rows = [catalogue.summary(scenario) for scenario in scenarios]
        return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode() + "\n"
    blocks: list[tuple[str, ...]] = [preview.LEGEND]
    for each in scenarios:
        lines = preview.timeline(each)
        blocks.append((f"{each.name} ({each.timing})", preview.INDENT + each.description, *lines))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _shown(name: str, *, as_json: bool) -> str:
    from forenotice.emulator.scenarios import catalogue

    toml = catalogue.load(name).text.content
    return json.dumps({"name": name, "toml": toml}, ensure_ascii=False) + "\n" if as_json else toml


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not flush into it once more.
        sys.stdout = None
        return FAILED
    return DONE


def _complain(message: str, code: int) -> int:
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in message)
    sys.stderr.write(f"forenotice: {printable}\n")
    return code
