"""`forenotice clock accept`: after a clock that was wrong has been set right."""

import typer

from forenotice.cli import offline, options
from forenotice.cli.database import WHERE
from forenotice.cli.session import REASON, Session, Yes

app = typer.Typer(help="Accept a clock that has been corrected.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def clock() -> None:
    pass


def accept(session: Session, yes: Yes = False) -> None:
    """Continue from the clock's time, though the journal is ahead of it. Stop the service first."""
    session.confirm("Is the clock right, and is every server on this database stopped?", yes=yes)
    accepted = offline.accept_clock(session.flags, session.reason)
    if session.out.json:
        session.out.data(accepted)
        return
    session.out.line(
        f"Time continues from {accepted['now']}; the journal was at {accepted['journal']}. "
        "Announced events keep the notice that they had left."
    )


options.register(app, "accept", accept, rows=WHERE, shared=(options.JSON, REASON), context=Session)
