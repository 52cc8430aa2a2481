"""/v1/tokens"""

from notbefore.control import documented, models
from notbefore.control.answers import Answer
from notbefore.control.asking import CallOf, ServiceOf
from notbefore.control.routing import Id, router, says
from notbefore.service import tokens

routes = router("tokens")


@routes.get("/tokens", responses=says(documented.Page[documented.Token]))
def list_tokens(service: ServiceOf) -> Answer:
    return Answer(tokens.list_all(service))


@routes.post("/tokens", status_code=201, responses=says(documented.NewToken, 201))
def create_token(service: ServiceOf, call: CallOf, asked: models.NewToken) -> Answer:
    """The token itself is shown this once."""
    return Answer(tokens.create(service, call, name=asked.name, role=asked.role), 201)


@routes.delete("/tokens/{token_id}", responses=says(documented.Token))
def revoke_token(service: ServiceOf, call: CallOf, token_id: Id) -> Answer:
    return Answer(tokens.revoke(service, call, token_id))
