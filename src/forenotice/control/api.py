"""/v1: the table of routes, and what each of them asks the service for."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from starlette.responses import Response, StreamingResponse

from forenotice.control import export, openapi, parameters, responses, stream
from forenotice.control.router import Route
from forenotice.core import errors
from forenotice.core.fleet import group_key
from forenotice.core.operations import Status
from forenotice.core.roles import Access, Need
from forenotice.core.selectors import Selector
from forenotice.delivery import subscriptions
from forenotice.service import fleet, fleetfile, history, maintenance, queries, results, rollouts, tokens
from forenotice.service.calls import Call
from forenotice.service.service import Service
from forenotice.service.tokens import Caller
from forenotice.views import base
from forenotice.views import fleet as fleet_views
from forenotice.views import history as history_views
from forenotice.views import maintenance as maintenance_views
from forenotice.views import rollouts as rollout_views
from forenotice.views import subscriptions as subscription_views
from forenotice.views import tokens as token_views
from forenotice.views.base import Name, Page

if TYPE_CHECKING:
    from forenotice.control.app import Api

PREFIX = "/v1"
DESCRIPTION = f"{PREFIX}/openapi.json"
KEY = re.compile(openapi.KEY_PATTERN)
FORMATS = {"application/json": "json", "application/toml": "toml"}
DOCUMENT: Mapping[str, Any] = {
    "application/json": {"schema": {"type": "object"}, "example": msgspec.to_builtins(fleet_views.FLEET)},
    "application/toml": {"schema": {"type": "string"}, "example": fleet_views.FLEET_AS_TOML},
}
EXPORTED: Mapping[str, Any] = {kind: {"schema": {"type": "string"}} for kind in ("application/jsonl", "text/csv")}
STREAMED: Mapping[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
LAST_EVENT_ID: Mapping[str, Any] = {
    "name": "last-event-id",
    "description": "The position of the last entry that was read.",
    "schema": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """What is settled before a handler sees a request."""

    api: "Api"
    caller: Caller
    body: bytes
    headers: Mapping[str, str]
    digest: str
    """The same for the same request, so that a key can be held to one."""
    origin: str
    """The address that it came from."""
    is_connected: Callable[[], bool]
    """Whether the client is still connected."""

    @property
    def service(self) -> Service:
        return self.api.service

    @property
    def access(self) -> Access:
        return self.caller.access

    @property
    def seen(self) -> Selector | None:
        """Whose things the caller may see; None: everybody's."""
        return self.caller.access.scopes

    @property
    def call(self) -> Call:
        key = self.headers.get("idempotency-key")
        if key is not None and not KEY.fullmatch(key):
            raise errors.RefusedError("Idempotency-Key must be 1 to 200 printable ASCII characters without spaces")
        return Call(
            actor=self.caller.actor,
            token_id=self.caller.id,
            key=key,
            digest=self.digest,
            origin=self.origin,
            reason=_reason(self.headers.get("forenotice-reason", "")),
            access=self.access,
            is_connected=self.is_connected,
        )

    def is_allowed(self) -> bool:
        """Whether the token is still valid, for responses that take their time."""
        bearer = self.headers["authorization"].partition(" ")[2].strip()
        try:
            return tokens.authenticate(self.service, bearer, self.origin).access.scopes == self.seen
        except errors.ForenoticeError:
            return False

    def document(self) -> fleet_views.Fleet:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in FORMATS:
            raise errors.RefusedError(f"{kind or 'no type'!r} is not the type of a fleet: send {' or '.join(FORMATS)}")
        return fleetfile.parse(self.body, FORMATS[kind])


def digest(method: str, target: bytes, body: bytes) -> str:
    return hashlib.sha256(b"\0".join((method.encode(), target, body))).hexdigest()


def _reason(given: str) -> str:
    # Percent-encoded, because a header takes no more than ASCII from one end to the other.
    try:
        return base.require_reason(unquote(given.encode("ascii").decode(), errors="strict"))
    except UnicodeError:
        raise errors.RefusedError("Forenotice-Reason must be percent-encoded UTF-8") from None


def show_description(request: ApiRequest) -> Response:
    return responses.JsonResponse(request.api.description)


def list_hosts(request: ApiRequest, query: parameters.HostQuery) -> Page[fleet_views.Host]:
    return queries.hosts(request.service, **query.paging, name=query.name, cordoned=query.cordoned)


def add_host(request: ApiRequest, body: fleet_views.NewHost) -> fleet_views.Host:
    return fleet.add_host(request.service, request.call, body)


def show_host(request: ApiRequest, name: Name) -> fleet_views.Host:
    return queries.host(request.service, name)


def change_host(request: ApiRequest, name: Name, body: fleet_views.HostChange) -> fleet_views.Host:
    return fleet.set_host(request.service, request.call, name, body)


def remove_host(request: ApiRequest, name: Name) -> base.Removed:
    return fleet.remove_host(request.service, request.call, name)


def list_vms(request: ApiRequest, query: parameters.VmQuery) -> Page[fleet_views.Vm]:
    return queries.vms(
        request.service,
        **query.paging,
        name=query.name,
        host=query.host,
        group=query.group,
        spot=query.spot,
        seen=request.seen,
    )


def add_vm(request: ApiRequest, body: fleet_views.NewVm) -> fleet_views.AddedVm:
    return fleet.add_vm(request.service, request.call, body.spec())


def show_vm(request: ApiRequest, name: Name) -> fleet_views.Vm:
    return queries.vm(request.service, name, request.seen)


def change_vm(request: ApiRequest, name: Name, body: fleet_views.VmChange) -> fleet_views.Vm:
    return fleet.set_vm(request.service, request.call, name, body)


def remove_vm(request: ApiRequest, name: Name) -> base.Removed:
    return fleet.remove_vm(request.service, request.call, name)


def change_vm_policy(request: ApiRequest, name: Name, body: fleet_views.PolicyChange) -> fleet_views.Policy:
    return fleet.set_vm_policy(request.service, request.call, name, body)


def list_groups(request: ApiRequest, query: parameters.GroupQuery) -> Page[fleet_views.Group]:
    return queries.groups(request.service, **query.paging, name=query.name, seen=request.seen)


def add_group(request: ApiRequest, body: fleet_views.NewGroup) -> fleet_views.AddedGroup:
    return fleet.add_group(request.service, request.call, body)


def show_group(request: ApiRequest, name: Name) -> fleet_views.Group:
    return queries.group(request.service, name, request.seen)


def change_group(request: ApiRequest, name: Name, body: fleet_views.GroupChange) -> fleet_views.Group:
    return fleet.set_group(request.service, request.call, name, body.policy)


def remove_group(request: ApiRequest, name: Name) -> base.Removed:
    return fleet.remove_group(request.service, request.call, name)


def change_group_policy(request: ApiRequest, name: Name, body: fleet_views.PolicyChange) -> fleet_views.Policy:
    return fleet.set_policy(request.service, request.call, group_key(name), body)


def export_fleet(request: ApiRequest) -> fleet_views.Fleet:
    return fleetfile.export(request.service)


def apply_fleet(request: ApiRequest, query: parameters.Apply) -> fleet_views.Applied:
    """Make the fleet as the document says, in one transaction. VMs that exist stay on their hosts unless `move`."""
    document = request.document()
    return fleet.apply(
        request.service, request.call, document, prune=query.prune, move=query.move, dry_run=query.dry_run
    )


def diff_fleet(request: ApiRequest) -> fleet_views.Compared:
    """How the fleet differs from the document; nothing is done."""
    return fleet.diff(request.service, request.document())


def list_operations(request: ApiRequest, query: parameters.OperationQuery) -> Page[maintenance_views.Operation]:
    return queries.operations(
        request.service,
        **query.paging,
        live=query.live,
        status=query.status,
        host=query.host,
        kind=query.kind,
        rollout=query.rollout and query.rollout.lower(),
        seen=request.seen,
    )


def schedule_operations(request: ApiRequest, body: maintenance_views.NewOperation) -> maintenance_views.Operations:
    """One operation for each VM (restart, redeploy, eviction, deletion) or host (the others): all of them or none."""
    notice = None if body.notice_minutes is None else timedelta(minutes=body.notice_minutes)
    return maintenance.schedule(
        request.service, request.call, kind=body.kind, names=body.names, notice=notice, reason=body.reason
    )


def show_operation(request: ApiRequest, operation_id: base.Id) -> maintenance_views.Operation:
    return queries.operation(request.service, operation_id, request.seen)


def explain_operation(request: ApiRequest, operation_id: base.Id) -> maintenance_views.OperationExplanation:
    """Why it waits: for whom, for what, since when, until when."""
    return queries.explain_operation(request.service, operation_id, request.seen)


def cancel_operation(request: ApiRequest, operation_id: base.Id) -> maintenance_views.Operation:
    return maintenance.cancel_operation(request.service, request.call, operation_id)


def report_result(
    request: ApiRequest, operation_id: base.Id, body: maintenance_views.DriverResult
) -> maintenance_views.Operation:
    """Report the result of an attempt, for every VM in it. The first report counts; a repetition changes nothing.

    The `result_token` of the driver's call is enough for this."""
    if request.caller.call not in (None, (operation_id, body.attempt)):
        raise errors.ForbiddenError("this token belongs to another call: give that of the call you report on")
    return results.record(
        request.service, request.call, operation_id, attempt=body.attempt, done=body.done, failures=body.failures
    )


def list_events(request: ApiRequest, query: parameters.EventQuery) -> Page[maintenance_views.Event]:
    return queries.events(
        request.service,
        **query.paging,
        live=query.live,
        status=query.status and Status(query.status),
        event_type=query.type,
        group=query.group,
        vm=query.vm,
        seen=request.seen,
    )


def show_event(request: ApiRequest, event_id: base.Id) -> maintenance_views.Event:
    return queries.event(request.service, event_id, request.seen)


def explain_event(request: ApiRequest, event_id: base.Id) -> maintenance_views.EventExplanation:
    """Why it waits: for whom, for what, until when."""
    return queries.explain_event(request.service, event_id, request.seen)


def approve_event(request: ApiRequest, event_id: base.Id) -> maintenance_views.Event:
    """Approve in place of the event's guests."""
    return maintenance.approve(request.service, request.call, event_id)


def cancel_event(request: ApiRequest, event_id: base.Id) -> maintenance_views.Operation:
    """Cancel the whole operation, while it is Scheduled."""
    return maintenance.cancel_event(request.service, request.call, event_id)


def list_rollouts(request: ApiRequest, query: parameters.RolloutQuery) -> Page[rollout_views.ListedRollout]:
    """The newest first."""
    return rollouts.page(request.service, **query.paging, live=query.live, status=query.status, access=request.access)


def start_rollout(request: ApiRequest, body: rollout_views.NewRollout) -> rollout_views.Rollout:
    """Maintenance of many hosts, wave by wave; refused when some budget or window makes it impossible."""
    call = request.call.because(body.reason)
    return rollouts.start(request.service, call, body.spec(call.reason))


def plan_rollout(request: ApiRequest, body: rollout_views.NewRollout) -> rollout_views.RolloutPlan:
    """How it would go if it were started now; nothing is done."""
    return rollouts.plan(request.service, body.spec(body.reason))


def show_rollout(request: ApiRequest, rollout_id: base.Id) -> rollout_views.Rollout:
    return rollouts.show(request.service, rollout_id, request.access)


def list_rollout_hosts(
    request: ApiRequest, rollout_id: base.Id, query: parameters.RolloutHostQuery
) -> Page[rollout_views.RolloutHost]:
    return rollouts.hosts(request.service, rollout_id, after=query.after, limit=query.limit, status=query.status)


def explain_rollout(request: ApiRequest, rollout_id: base.Id) -> maintenance_views.RolloutExplanation:
    """Why it is where it is: its pause, its gate, its windows, whom its operations wait for."""
    return rollouts.explain(request.service, rollout_id)


def pause_rollout(
    request: ApiRequest, rollout_id: base.Id, body: rollout_views.Because | None
) -> rollout_views.Rollout:
    """Nothing of it starts until it is resumed; what has started goes on to its end."""
    return rollouts.pause(request.service, _because(request.call, body), rollout_id)


def resume_rollout(
    request: ApiRequest, rollout_id: base.Id, body: rollout_views.Resumption | None
) -> rollout_views.Rollout:
    retry = body is not None and body.retry
    return rollouts.resume(request.service, _because(request.call, body), rollout_id, retry=retry)


def cancel_rollout(
    request: ApiRequest, rollout_id: base.Id, body: rollout_views.Because | None
) -> rollout_views.Rollout:
    """What is only Scheduled is cancelled; what has started goes on to its end."""
    return rollouts.cancel(request.service, _because(request.call, body), rollout_id)


def _because(call: Call, body: rollout_views.Because | None) -> Call:
    return call if body is None else call.because(body.reason)


def list_history(request: ApiRequest, query: parameters.HistoryQuery) -> Page[history_views.Entry]:
    """Everything that happened, from the journal. What is new meanwhile changes no page that follows."""
    return history.page(
        request.service,
        after=query.after,
        limit=query.limit,
        newest_first=query.newest_first,
        seen=request.seen,
        **query.filters(request.access),
    )


def export_history(request: ApiRequest, query: parameters.ExportQuery) -> StreamingResponse:
    """All that fits, oldest first, as a stream that ends with what had happened when it was asked for."""
    pages = history.everything(request.service, seen=request.seen, **query.filters(request.access))
    return export.streamed(query.format, pages, request.is_allowed)


def prune_history(request: ApiRequest, body: history_views.Prune) -> history_views.Pruned:
    """Remove what is older, but nothing live and nothing that is still to be delivered to a subscription.

    It takes at most 20 seconds; unless `complete`, ask again under another key.
    """
    return history.prune(request.service, request.call, before=base.in_utc(body.before), dry_run=body.dry_run)


def stream_history(request: ApiRequest, query: parameters.StreamQuery) -> stream.EventStream:
    """What happens, as it happens: each entry of the history behind a position, or from now on."""
    tail = request.api.tail
    position = tail.begin(query.after, request.headers.get("last-event-id"))
    return stream.EventStream(tail, position, query, request.caller, request.is_allowed)


def list_subscriptions(
    request: ApiRequest, query: parameters.SubscriptionQuery
) -> Page[subscription_views.Subscription]:
    return subscriptions.list_all(request.service, **query.paging, name=query.name, access=request.access)


def add_subscription(
    request: ApiRequest, body: subscription_views.NewSubscription
) -> subscription_views.CreatedSubscription:
    """Push what happens to a receiver, as signed CloudEvents. The secret is shown this once."""
    return subscriptions.create(request.service, request.call, body)


def show_subscription(request: ApiRequest, name: parameters.IdOrName) -> subscription_views.Subscription:
    return subscriptions.show(request.service, name, request.access)


def change_subscription(
    request: ApiRequest, name: parameters.IdOrName, body: subscription_views.SubscriptionChange
) -> subscription_views.Subscription:
    return subscriptions.change(request.service, request.call, name, body)


def remove_subscription(request: ApiRequest, name: parameters.IdOrName) -> base.Removed:
    """With its pending deliveries."""
    return subscriptions.remove(request.service, request.call, name)


def resume_subscription(request: ApiRequest, name: parameters.IdOrName) -> subscription_views.Subscription:
    """One that is parked goes on where it was; one that pauses after failures tries at once."""
    return subscriptions.resume(request.service, request.call, name)


def replay_subscription(
    request: ApiRequest, name: parameters.IdOrName, body: subscription_views.Replay
) -> subscription_views.Subscription:
    """Deliver again all that is behind a journal position, under the same ids."""
    return subscriptions.replay(request.service, request.call, name, body.after)


def try_subscription(request: ApiRequest, name: parameters.IdOrName) -> subscription_views.TestResult:
    """Send the receiver one message now, and show its response."""
    return subscriptions.test(request.service, request.call, name)


def list_deliveries(
    request: ApiRequest, name: parameters.IdOrName, query: parameters.DeliveryQuery
) -> Page[subscription_views.Delivery]:
    """Its pending deliveries, with what went wrong."""
    return subscriptions.deliveries(request.service, name, after=query.after, limit=query.limit)


def list_tokens(request: ApiRequest, query: parameters.Oldest) -> Page[token_views.Token]:
    return tokens.page(request.service, **query.paging)


def create_token(request: ApiRequest, body: token_views.NewToken) -> token_views.CreatedToken:
    """The token itself is shown this once."""
    return tokens.create(
        request.service,
        request.call,
        name=body.name,
        role=body.role,
        scopes=body.scopes,
        expires_in=tokens.lifetime(body.expires_in),
        networks=body.networks,
    )


def rotate_token(request: ApiRequest, token_id: base.Id, body: token_views.TokenRotation) -> token_views.CreatedToken:
    """Gives the token a new secret, which is shown this once."""
    return tokens.rotate(
        request.service,
        request.call,
        token_id,
        overlap=tokens.OVERLAP if body.overlap is msgspec.UNSET else tokens.span(body.overlap),
        expires_in=tokens.lifetime(body.expires_in),
    )


def revoke_token(request: ApiRequest, token_id: base.Id) -> token_views.Token:
    return tokens.revoke(request.service, request.call, token_id)


ROUTES = (
    Route("GET", DESCRIPTION, Need.SEE, show_description, described=False),
    Route("GET", "/v1/hosts", Need.OVERSEE, list_hosts),
    Route("POST", "/v1/hosts", Need.MANAGE, add_host, status=201),
    Route("GET", "/v1/hosts/{name}", Need.OVERSEE, show_host),
    Route("PATCH", "/v1/hosts/{name}", Need.MANAGE, change_host),
    Route("DELETE", "/v1/hosts/{name}", Need.MANAGE, remove_host),
    Route("GET", "/v1/vms", Need.SEE, list_vms),
    Route("POST", "/v1/vms", Need.MANAGE, add_vm, status=201),
    Route("GET", "/v1/vms/{name}", Need.SEE, show_vm),
    Route("PATCH", "/v1/vms/{name}", Need.MANAGE, change_vm),
    Route("DELETE", "/v1/vms/{name}", Need.MANAGE, remove_vm),
    Route("PATCH", "/v1/vms/{name}/policy", Need.MANAGE, change_vm_policy),
    Route("GET", "/v1/groups", Need.SEE, list_groups),
    Route("POST", "/v1/groups", Need.MANAGE, add_group, status=201),
    Route("GET", "/v1/groups/{name}", Need.SEE, show_group),
    Route("PATCH", "/v1/groups/{name}", Need.MANAGE, change_group),
    Route("DELETE", "/v1/groups/{name}", Need.MANAGE, remove_group),
    Route("PATCH", "/v1/groups/{name}/policy", Need.MANAGE, change_group_policy),
    Route("GET", "/v1/fleet", Need.OVERSEE, export_fleet),
    Route("POST", "/v1/fleet", Need.MANAGE, apply_fleet, accepts=DOCUMENT),
    Route("POST", "/v1/fleet/diff", Need.OVERSEE, diff_fleet, accepts=DOCUMENT, changes=False, expensive=True),
    Route("GET", "/v1/operations", Need.SEE, list_operations),
    Route("POST", "/v1/operations", Need.OPERATE, schedule_operations, status=201),
    Route("GET", "/v1/operations/{operation_id}", Need.SEE, show_operation),
    Route("GET", "/v1/operations/{operation_id}/explanation", Need.SEE, explain_operation),
    Route("POST", "/v1/operations/{operation_id}/cancel", Need.OPERATE, cancel_operation),
    Route("POST", "/v1/operations/{operation_id}/result", Need.MANAGE, report_result),
    Route("GET", "/v1/events", Need.SEE, list_events),
    Route("GET", "/v1/events/{event_id}", Need.SEE, show_event),
    Route("GET", "/v1/events/{event_id}/explanation", Need.SEE, explain_event),
    Route("POST", "/v1/events/{event_id}/approve", Need.OPERATE, approve_event),
    Route("POST", "/v1/events/{event_id}/cancel", Need.OPERATE, cancel_event),
    Route("GET", "/v1/rollouts", Need.OVERSEE, list_rollouts),
    Route("POST", "/v1/rollouts", Need.MANAGE, start_rollout, status=201),
    Route("POST", "/v1/rollouts/plan", Need.OVERSEE, plan_rollout, changes=False, expensive=True),
    Route("GET", "/v1/rollouts/{rollout_id}", Need.OVERSEE, show_rollout),
    Route("GET", "/v1/rollouts/{rollout_id}/hosts", Need.OVERSEE, list_rollout_hosts),
    Route("GET", "/v1/rollouts/{rollout_id}/explanation", Need.OVERSEE, explain_rollout),
    Route("POST", "/v1/rollouts/{rollout_id}/pause", Need.MANAGE, pause_rollout),
    Route("POST", "/v1/rollouts/{rollout_id}/resume", Need.MANAGE, resume_rollout),
    Route("POST", "/v1/rollouts/{rollout_id}/cancel", Need.MANAGE, cancel_rollout),
    Route("GET", "/v1/history", Need.SEE, list_history),
    Route("GET", "/v1/history/export", Need.SEE, export_history, sends=EXPORTED),
    Route("POST", "/v1/history/prune", Need.MANAGE, prune_history),
    Route("GET", "/v1/stream", Need.SEE, stream_history, sends=STREAMED, headers=[LAST_EVENT_ID]),
    Route("GET", "/v1/subscriptions", Need.OVERSEE, list_subscriptions),
    Route("POST", "/v1/subscriptions", Need.MANAGE, add_subscription, status=201),
    Route("GET", "/v1/subscriptions/{name}", Need.OVERSEE, show_subscription),
    Route("PATCH", "/v1/subscriptions/{name}", Need.MANAGE, change_subscription),
    Route("DELETE", "/v1/subscriptions/{name}", Need.MANAGE, remove_subscription),
    Route("POST", "/v1/subscriptions/{name}/resume", Need.MANAGE, resume_subscription),
    Route("POST", "/v1/subscriptions/{name}/replay", Need.MANAGE, replay_subscription),
    Route("POST", "/v1/subscriptions/{name}/test", Need.MANAGE, try_subscription),
    Route("GET", "/v1/subscriptions/{name}/deliveries", Need.OVERSEE, list_deliveries),
    Route("GET", "/v1/tokens", Need.ADMINISTER, list_tokens),
    Route("POST", "/v1/tokens", Need.ADMINISTER, create_token, status=201),
    Route("POST", "/v1/tokens/{token_id}/rotate", Need.ADMINISTER, rotate_token),
    Route("DELETE", "/v1/tokens/{token_id}", Need.ADMINISTER, revoke_token),
)
