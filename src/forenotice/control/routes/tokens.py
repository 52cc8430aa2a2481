"""/v1/tokens"""

from forenotice.control import documented, models
from forenotice.control.asking import CallOf, ServiceOf
from forenotice.control.responses import Answer
from forenotice.control.routing import ByAge, Id, needs, router, says
from forenotice.core.roles import Need
from forenotice.service import tokens

routes = router("tokens")


@routes.get("/tokens", responses=says(documented.Page[documented.Token]))
@needs(Need.ADMINISTER)
def list_tokens(service: ServiceOf, page: ByAge) -> Answer:
    return Answer(tokens.page(service, **page))


@routes.post("/tokens", status_code=201, responses=says(documented.NewToken, 201))
@needs(Need.ADMINISTER)
def create_token(service: ServiceOf, call: CallOf, asked: models.NewToken) -> Answer:
    """The token itself is shown this once."""
    return Answer(tokens.create(service, call, **asked.given()), 201)


@routes.post("/tokens/{token_id}/rotate", responses=says(documented.NewToken))
@needs(Need.ADMINISTER)
def rotate_token(service: ServiceOf, call: CallOf, token_id: Id, asked: models.TokenRotation) -> Answer:
    """Gives the token a new secret, which is shown this once."""
    return Answer(tokens.rotate(service, call, token_id, **asked.given()))


@routes.delete("/tokens/{token_id}", responses=says(documented.Token))
@needs(Need.ADMINISTER)
def revoke_token(service: ServiceOf, call: CallOf, token_id: Id) -> Answer:
    return Answer(tokens.revoke(service, call, token_id))
