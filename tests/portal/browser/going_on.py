"""What goes on at a server that really runs, and what its guests do about it."""

from tests.acceptance.running import Server

ADDRESSES = {"web-0": "127.1.0.10", "db": "127.1.0.30"}


def approve(server: Server, vm: str) -> str:
    """As the guest itself, whatever it is told of itself; gives the event's id."""
    source = ADDRESSES[vm]
    found = [
        event["EventId"]
        for event in server.document(source)["Events"]
        if vm in event["Resources"] and event["EventStatus"] == "Scheduled"
    ]
    assert found, f"{vm} is told of nothing"
    said = server.approve(found[0], source=source)
    assert said.status == 200, said
    return str(found[0])


def live_events(server: Server) -> list[str]:
    """Their ids."""
    return [event["id"] for event in server.get("/v1/events")["items"] if event["ended_at"] is None]
