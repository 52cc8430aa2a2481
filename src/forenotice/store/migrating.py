"""Brings a schema to the newest revision. The one module that imports Alembic, which takes its time."""

import os

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from forenotice.store.revisions import Revisions


def migrate(connection: Connection, revisions: Revisions) -> None:
    """Within the transaction of the connection: all of it or nothing."""
    config = Config()
    config.set_main_option("script_location", str(revisions.environment))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", os.pathsep.join(str(path) for path in revisions.locations))
    config.attributes["connection"] = connection
    command.upgrade(config, revisions.newest)
