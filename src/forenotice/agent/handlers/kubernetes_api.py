"""The few requests to a Kubernetes API server that a drain needs: each is made once, and bounded in time."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from kubernetes import client
from kubernetes import config as credentials
from kubernetes.client.rest import urllib3

from forenotice import __version__, secretfiles
from forenotice.agent.handlers.tables import Kubernetes
from forenotice.core import errors
from forenotice.programs import process

MANAGER = "forenotice-agent"
"""Under which the API server keeps what we changed."""
AT_A_TIME = 8
"""Requests in flight."""
PAGE = 250
CONNECTING = 5.0
ANSWERING = 15.0
"""Seconds for each."""
LONGEST_MESSAGE = 200
TOO_MANY_REQUESTS = 429

MIRROR = "kubernetes.io/config.mirror"


CORDON = "node.kubernetes.io/unschedulable"
"""The taint of a cordoned node."""


BUDGET = "DisruptionBudget"
"""The cause of an eviction's refusal."""


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"): ...


class Owner(_Object, frozen=True, kw_only=True):
    kind: str
    controller: bool = False


class Metadata(_Object, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None
    deletion_timestamp: str | None = None

    def annotation(self, key: str) -> str | None:
        return (self.annotations or {}).get(key)


class NodeSpec(_Object, frozen=True, kw_only=True):
    unschedulable: bool = False


class Fields(_Object, frozen=True, kw_only=True):
    spec: dict[str, msgspec.Raw] = msgspec.field(name="f:spec", default={})


class Managed(_Object, frozen=True, kw_only=True):
    """Which fields somebody was the last to change."""

    manager: str = ""
    fields: Fields | None = msgspec.field(name="fieldsV1", default=None)


class NodeMetadata(Metadata, frozen=True, kw_only=True):
    managed_fields: tuple[Managed, ...] | None = None


class Node(_Object, frozen=True, kw_only=True):
    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()

    @property
    def cordoned_by(self) -> frozenset[str]:
        """Whose cordon it is, if it is cordoned and the API server knows."""
        managed = self.metadata.managed_fields or ()
        return frozenset(part.manager for part in managed if part.fields and "f:unschedulable" in part.fields.spec)


class Toleration(_Object, frozen=True, kw_only=True):
    key: str = ""
    """Empty: every taint."""
    effect: str = ""
    """Empty: every effect."""


class PodSpec(_Object, frozen=True, kw_only=True):
    termination_grace_period_seconds: int = 30
    tolerations: tuple[Toleration, ...] | None = None


class PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = ""


class Pod(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def title(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def stays(self) -> bool:
        """A drain has no business with it: it belongs to the node, or has ended."""
        of_daemon_set = any(
            owner.controller and owner.kind == "DaemonSet" for owner in self.metadata.owner_references or ()
        )
        mirrored = self.metadata.annotation(MIRROR) is not None
        return of_daemon_set or mirrored or self.status.phase in ("Succeeded", "Failed")

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def tolerates_cordon(self) -> bool:
        return any(
            taint.key in ("", CORDON) and taint.effect in ("", "NoSchedule") for taint in self.spec.tolerations or ()
        )


class ListMetadata(_Object, frozen=True, kw_only=True):
    more: str = msgspec.field(name="continue", default="")
    """Where the next page begins; empty: this was the last."""


class Pods(_Object, frozen=True, kw_only=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[Pod, ...] | None = None


class Cause(_Object, frozen=True, kw_only=True):
    reason: str = ""


class Details(_Object, frozen=True, kw_only=True):
    causes: tuple[Cause, ...] | None = None


class Status(_Object, frozen=True, kw_only=True):
    """How a request went, in the server's words."""

    status: str = ""
    message: str = ""
    code: int = 0
    details: Details | None = None

    @property
    def names_budget(self) -> bool:
        """As the cause of a refusal."""
        causes = self.details.causes if self.details else None
        return any(cause.reason == BUDGET for cause in causes or ())


class Access(_Object, frozen=True, kw_only=True):
    allowed: bool = False


class Review(_Object, frozen=True, kw_only=True):
    status: Access = Access()


T = TypeVar("T")


class CredentialsError(errors.RefusedError):
    """There is no way to the API server."""

    code = "credentials"


class ApiError(errors.ForenoticeError):
    """The API server refused, or did not answer."""

    code = "api"

    def __init__(self, message: str, *, status: int = 0, retry_after: float = 0.0, by_budget: bool = False) -> None:
        super().__init__(message)
        self.status = status
        """0: there was no answer."""
        self.retry_after = retry_after
        self.by_budget = by_budget
        """It is a disruption budget that does not let a pod go."""

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 409, 410, TOO_MANY_REQUESTS) or self.status >= 500


class Api:
    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration
        self._client = client.ApiClient(configuration)

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def node(self, name: str) -> Node:
        return self._ask(Node, "GET", f"/api/v1/nodes/{quote(name, safe='')}")

    def patch_node(self, name: str, patch: Mapping[str, Any]) -> None:
        """With a resourceVersion in its metadata, only if nobody changed the node since."""
        self._ask(Node, "PATCH", f"/api/v1/nodes/{quote(name, safe='')}?fieldManager={MANAGER}", patch)

    def pods(self, node: str) -> Iterator[Pod]:
        query = {"fieldSelector": f"spec.nodeName={node}", "limit": PAGE}
        more = ""
        while True:
            where = {**query, "continue": more} if more else query
            page = self._ask(Pods, "GET", f"/api/v1/pods?{urlencode(where)}")
            yield from page.items or ()
            more = page.metadata.more
            if not more:
                return

    def evict(self, pod: Pod, grace: int | None) -> None:
        """As its disruption budget allows."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
            "deleteOptions": _this_one(pod, grace),
        }
        status = self._ask(Status, "POST", f"{_path(pod)}/eviction", eviction)
        # A pod with two budgets is refused in the body of a 201.
        if status.status == "Failure":
            raise ApiError(status.message[:LONGEST_MESSAGE], status=status.code, by_budget=True)

    def delete(self, pod: Pod, grace: int) -> None:
        """Whatever its disruption budget says."""
        self._ask(msgspec.Raw, "DELETE", _path(pod), _this_one(pod, grace))

    def may(self, verb: str, resource: str, subresource: str) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": verb, "resource": resource, "subresource": subresource}},
        }
        return self._ask(
            Review, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review
        ).status.allowed

    def _ask(self, kind: type[T], method: str, target: str, body: Mapping[str, Any] | None = None) -> T:
        # Below the library's models and methods: to load them takes seconds that an eviction is short of.
        try:
            answer = self._client.rest_client.request(
                method,
                self._configuration.host + target,
                headers=self._headers(method),
                body=body,
                _request_timeout=(CONNECTING, ANSWERING),
            )
            content = answer.data or answer.read()
        except client.ApiException as error:
            raise _refused(error.status, error.reason, error.headers, error.body) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiError(f"the API server does not answer ({type(error).__name__})") from None
        if not 200 <= answer.status < 300:
            raise _refused(answer.status, answer.reason, answer.headers, content)
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise ApiError(f"the API server gives an answer that is not understood: {error}") from None

    def _headers(self, method: str) -> dict[str, str]:
        patch = "strategic-merge-patch+" if method == "PATCH" else ""
        return {
            "Accept": "application/json",
            "Content-Type": f"application/{patch}json",
            "User-Agent": f"{MANAGER}/{__version__}",
            # Read anew: tokens expire.
            **{setting["key"]: setting["value"] for setting in self._configuration.auth_settings().values()},
        }


def connect(config: Kubernetes) -> Api:
    configuration = client.Configuration()
    # Otherwise urllib3 would try again by itself, and wait for as long as any Retry-After says.
    configuration.retries = False
    configuration.connection_pool_maxsize = AT_A_TIME
    try:
        if config.kubeconfig:
            # It may name programs to run.
            secretfiles.read(Path(config.kubeconfig), "the kubeconfig")
            credentials.load_kube_config(
                config_file=config.kubeconfig,
                context=config.context or None,
                client_configuration=configuration,
                persist_config=False,
            )
        else:
            credentials.load_incluster_config(client_configuration=configuration)
    except Exception as error:
        where = config.kubeconfig or "the service account"
        raise CredentialsError(f"{where} gives no way to the API server: {_why(error)}") from None
    return Api(configuration)


def _why(error: Exception) -> str:
    match error:
        case credentials.ConfigException() | errors.RefusedError():
            return str(error)
        case OSError():
            return process.of_error(error)
    # A file that is no kubeconfig makes the library stumble in many ways, and some of them quote it.
    return f"it is not understood ({type(error).__name__})"


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{quote(pod.metadata.namespace, safe='')}/pods/{quote(pod.metadata.name, safe='')}"


def _this_one(pod: Pod, grace: int | None) -> Mapping[str, Any]:
    """Not another one that has its name by now."""
    options = {"preconditions": {"uid": pod.metadata.uid}}
    return options if grace is None else {**options, "gracePeriodSeconds": grace}


def _refused(status: int, reason: str, headers: Mapping[str, str] | None, content: str | bytes | None) -> ApiError:
    try:
        said = msgspec.json.decode(content or b"", type=Status)
    except msgspec.MsgspecError:
        said = Status()
    message = said.message or (f"the API server answers {status} {reason}" if status else f"no answer: {reason}")
    after = (headers or {}).get("Retry-After", "")
    return ApiError(
        message[:LONGEST_MESSAGE],
        status=status,
        retry_after=float(after) if after.isdecimal() else 0.0,
        by_budget=status == TOO_MANY_REQUESTS and said.names_budget,
    )
