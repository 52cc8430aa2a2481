"""What the service and each edge may do in NATS: their accounts, and the subjects of their users.

Edges have an account of their own. NATS does not check where a reply is to go: in one account with the streams, an edge
could have the reply to a request of its own stored as the state of another host.
"""

from forenotice.cluster import jwt, subjects

ASK_SECONDS = 60
"""The service may reply to a question for this long."""

HOST = "{{name()}}"
"""In a template: the name of the user, which is the host's token."""
STATE = f"$JS.API.DIRECT.GET.{subjects.DOCS}.nb.docs"
EDGE = jwt.Permissions(
    pub=jwt.Allowed(
        (f"nb.up.{HOST}.approve", f"nb.up.{HOST}.heard", f"nb.beat.{HOST}", f"nb.ask.{HOST}", f"{STATE}.{HOST}")
    ),
    sub=jwt.Allowed((f"nb.live.{HOST}", f"{subjects.EDGE_INBOX}{HOST}.>")),
    allowed_connection_types=("STANDARD",),
    subs=10,
    data=jwt.UNLIMITED,
    payload=jwt.UNLIMITED,
)
CENTRE = jwt.Permissions(
    pub=jwt.Allowed(
        (
            "nb.docs.*",
            "$JS.API.INFO",
            *(f"$JS.API.STREAM.{verb}.{name}" for name in (subjects.DOCS, subjects.UP) for verb in ("CREATE", "INFO")),
            f"$JS.API.STREAM.MSG.GET.{subjects.DOCS}",
            *(
                f"$JS.API.CONSUMER.{verb}.{subjects.UP}.{subjects.CONSUMER}"
                for verb in ("DURABLE.CREATE", "INFO", "MSG.NEXT")
            ),
            f"$JS.ACK.{subjects.UP}.{subjects.CONSUMER}.>",
        )
    ),
    sub=jwt.Allowed((subjects.ALL_BEATS, subjects.ALL_QUESTIONS, f"{subjects.CENTRE_INBOX}.>")),
    resp=jwt.Responses(max=1, ttl=ASK_SECONDS * 10**9),
    allowed_connection_types=("STANDARD",),
    subs=jwt.UNLIMITED,
    data=jwt.UNLIMITED,
    payload=jwt.UNLIMITED,
)
SYSTEM = jwt.Permissions(subs=jwt.UNLIMITED, data=jwt.UNLIMITED, payload=jwt.UNLIMITED)

SHARED = (
    *(
        jwt.Shared(name=subject, subject=subject, type="service")
        for subject in ("nb.up.*.approve", "nb.up.*.heard", subjects.ALL_BEATS, subjects.ALL_QUESTIONS, f"{STATE}.*")
    ),
    jwt.Shared(name="nb.live.*", subject="nb.live.*", type="stream"),
)
"""What the service's account has for edges."""


def service_account() -> jwt.Account:
    """With the streams."""
    limits = jwt.Limits(
        mem_storage=jwt.UNLIMITED, disk_storage=jwt.UNLIMITED, streams=jwt.UNLIMITED, consumer=jwt.UNLIMITED
    )
    return jwt.Account(limits=limits, exports=SHARED)


def edges_account(service: str, signer: str) -> jwt.Account:
    """Whose users are signed by one key, which can give them an edge's permissions and no others."""
    signing_key = jwt.SigningKey(key=signer, role="edge", template=EDGE)
    imports = tuple(
        jwt.Shared(name=each.name, subject=each.subject, type=each.type, account=service) for each in SHARED
    )
    return jwt.Account(limits=jwt.Limits(), signing_keys=(signing_key,), imports=imports)
