"""The program `forenotice`, also as `python -m forenotice`."""

import sys


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        from forenotice import __version__

        print("forenotice", __version__)
        return 0
    if sys.argv[1:3] == ["agent", "run"]:
        # The agent stays small: it loads nothing of what the other commands need.
        from forenotice.agent import daemon

        return daemon.main(sys.argv[3:])
    if sys.argv[1:2] == ["emulate"]:
        # And the emulator starts quickly.
        from forenotice.emulator import command as emulator

        return emulator.main(sys.argv[2:])
    if sys.argv[1:3] == ["edge", "run"]:
        from forenotice import cluster
        from forenotice.core import errors

        try:
            cluster.require()
        except errors.RefusedError as error:
            sys.stderr.write(f"forenotice: {error.message}\n")
            return 2
        # And an edge answers guests within a moment, and in 45 MiB: libraries that it uses would load these, if they
        # are installed, for colours and websockets.
        sys.modules.update(dict.fromkeys(("aiohttp", "rich")))  # type: ignore[arg-type]
        from forenotice.edge import daemon as edge

        return edge.main(sys.argv[3:])
    from forenotice.cli import main as commands

    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
