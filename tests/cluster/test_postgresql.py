"""PostgreSQL from its wheel, as the demo and the tests run it."""

import subprocess
from pathlib import Path

from forenotice.cluster import postgresql


def test_programs_run_where_they_are_copied(tmp_path: Path) -> None:
    """As for a clone in a directory that is only root's."""
    done = subprocess.run(
        [postgresql.copy_programs(tmp_path) / "initdb", "--version"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("initdb (PostgreSQL) "), done
