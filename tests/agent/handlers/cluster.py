"""A stub of a Kubernetes API server, for want of a real one: nodes, pods and disruption budgets in memory, behind HTTP.

It holds clients to the rules of the real one (for evictions, pkg/registry/core/pod/storage/eviction.go).
Time runs as it does outside, but a pod stops as soon as its `takes` are over, and controllers act at once.
"""

import itertools
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.acceptance.running import HOST
from tests.agent.parts import secret_file

TOKEN = "the-token-of-the-agent"
CONTENT = {
    "GET": ("", "application/json"),
    "PATCH": ("application/strategic-merge-patch+json", "application/merge-patch+json"),
    "POST": ("application/json",),
    "DELETE": ("application/json",),
}
ALL = frozenset({"get nodes", "patch nodes", "list pods", "create pods/eviction", "delete pods"})
CORDON = "node.kubernetes.io/unschedulable"
POD = r"/api/v1/namespaces/([^/]+)/pods/([^/]+)"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
Json = dict[str, Any]


@dataclass
class Node:
    name: str
    unschedulable: bool = False
    cordoned_by: str = ""
    """The manager of that field; empty: it is not known, as on an old server."""
    annotations: dict[str, str] = field(default_factory=dict)
    version: int = 1

    def shown(self) -> Json:
        spec = {"podCIDR": "10.0.0.0/24"} | ({"unschedulable": True} if self.unschedulable else {})
        managers = [_managed("kubelet", "f:status", "f:conditions"), _managed("kubelet", "f:spec", "f:podCIDR")]
        if self.unschedulable and self.cordoned_by:
            managers.append(_managed(self.cordoned_by, "f:spec", "f:unschedulable"))
        metadata = {"name": self.name, "resourceVersion": str(self.version), "annotations": self.annotations}
        return {"kind": "Node", "metadata": {**metadata, "managedFields": managers}, "spec": spec, "status": {}}


@dataclass
class Pod:
    name: str
    node: str = "node-1"
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner: str = "ReplicaSet"
    """The kind of its controller; empty: none."""
    phase: str = "Running"
    ready: bool = True
    grace: int = 30
    takes: float = 0.0
    """Seconds until its containers have stopped once they should."""
    tolerates: bool = False
    """The cordon."""
    uid: str = ""
    ends_at: float | None = None
    granted: int | None = None
    """Seconds of grace with which it was deleted."""

    def shown(self) -> Json:
        metadata: Json = {"name": self.name, "namespace": self.namespace, "uid": self.uid, "labels": self.labels}
        if self.annotations:
            metadata["annotations"] = self.annotations
        if self.owner:
            metadata["ownerReferences"] = [{"kind": self.owner, "name": "owner", "uid": "u", "controller": True}]
        if self.ends_at is not None:
            metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": self.granted}
        spec: Json = {"nodeName": self.node, "terminationGracePeriodSeconds": self.grace, "containers": []}
        if self.tolerates:
            spec["tolerations"] = [{"key": CORDON, "operator": "Exists", "effect": "NoSchedule"}]
        return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": self.phase}}


@dataclass
class Budget:
    name: str
    labels: dict[str, str]
    least: int


@dataclass(frozen=True)
class Fault:
    """A response out of turn."""

    method: str
    path: str
    """How it ends."""
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"


class Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, message: str, *, sent_as: int = 0, **details: Any) -> None:
        super().__init__(message)
        self.sent_as = sent_as or status
        head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status}
        self.shown = {**head, "message": message, "details": details}


class Cluster:
    """One lock, taken for every request."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes = {name: Node(name) for name in ("node-1", "node-2")}
        self.pods: dict[str, Pod] = {}
        self.gone: dict[str, Pod] = {}
        self.budgets: list[Budget] = []
        self.allowed = set(ALL)
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, str]] = []
        self.meanwhile: deque[Callable[[], None]] = deque()
        """What others do after each of the next responses."""
        self._numbers = itertools.count(1)

    def add(self, pod: Pod) -> Pod:
        with self.lock:
            pod.uid = f"uid-{next(self._numbers)}"
            self.pods[pod.uid] = pod
            return pod

    def names(self, node: str = "node-1") -> list[str]:
        with self.lock:
            self.tick()
            return sorted(pod.name for pod in self.pods.values() if pod.node == node)

    def asked(self, method: str, ending: str) -> int:
        with self.lock:
            return sum(was == method and path.endswith(ending) for was, path in self.requests)

    def tick(self) -> None:
        now = time.monotonic()
        for pod in [pod for pod in self.pods.values() if pod.ends_at is not None and pod.ends_at <= now]:
            self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        self.gone[pod.uid] = self.pods.pop(pod.uid)
        if not pod.owner:
            return
        fitting = [node.name for node in self.nodes.values() if not node.unschedulable or pod.tolerates]
        home = pod.node if pod.owner in ("DaemonSet", "Node") else [*fitting[::-1], ""][0]
        name = pod.name if pod.owner in ("StatefulSet", "Node") else f"{pod.name}x"
        state: Json = {"phase": "Running" if home else "Pending", "ready": bool(home), "ends_at": None, "granted": None}
        self.add(replace(pod, name=name, node=home, takes=0.0, **state))

    def patch_node(self, name: str, patch: Json, manager: str) -> Json:
        node = self._node(name)
        _only(patch, "metadata", "spec")
        _only(patch["metadata"], "resourceVersion", "annotations")
        _only(patch.get("spec", {}), "unschedulable")
        if patch["metadata"].get("resourceVersion", str(node.version)) != str(node.version):
            raise Refusal(409, f'Operation cannot be fulfilled on nodes "{name}": the object has been modified')
        for key, value in patch["metadata"].get("annotations", {}).items():
            if not isinstance(value, str | None):
                raise Refusal(422, "an annotation is a text")
            node.annotations[key] = value or ""
            if value is None:
                del node.annotations[key]
        if "unschedulable" in patch.get("spec", {}):
            # The manager that changes a field owns it from then on.
            if node.unschedulable != bool(patch["spec"]["unschedulable"]):
                node.cordoned_by = manager
            node.unschedulable = bool(patch["spec"]["unschedulable"])
        node.version += 1
        return node.shown()

    def _node(self, name: str) -> Node:
        if name not in self.nodes:
            raise Refusal(404, f'nodes "{name}" not found')
        return self.nodes[name]

    def list_pods(self, query: dict[str, str]) -> Json:
        """Two on a page, whatever the client would take."""
        selected = re.fullmatch(r"spec\.nodeName=([a-z0-9.-]+)", query.get("fieldSelector", "spec.nodeName=none"))
        if not selected:
            raise Refusal(400, "field label not supported")
        after, limit = int(query.get("continue", "0")), min(int(query["limit"]), 2)
        found = [pod for pod in self.pods.values() if pod.node == selected[1] and _number(pod) > after]
        more = {"continue": str(_number(found[limit - 1]))} if len(found) > limit else {}
        return {"metadata": {"resourceVersion": "1", **more}, "items": [pod.shown() for pod in found[:limit]]}

    def evict(self, namespace: str, name: str, eviction: Json) -> Json:
        _only(eviction, "apiVersion", "kind", "metadata", "deleteOptions")
        metadata = {"namespace": namespace, **eviction["metadata"]}
        given = (eviction.get("apiVersion"), eviction.get("kind"), metadata["namespace"], metadata.get("name"))
        if given != ("policy/v1", "Eviction", namespace, name):
            raise Refusal(400, "no Eviction of policy/v1 for this pod")
        pod = self._pod(namespace, name, eviction.get("deleteOptions") or {})
        if pod.phase == "Running" and pod.ends_at is None:
            self._check_budget(pod)
        self._end(pod, eviction.get("deleteOptions") or {})
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _check_budget(self, pod: Pod) -> None:
        budgets = [budget for budget in self.budgets if budget.labels.items() <= pod.labels.items()]
        if len(budgets) > 1:
            raise Refusal(500, "This pod has more than one PodDisruptionBudget, which is not supported.", sent_as=201)
        for budget in budgets:
            selected = [pod for pod in self.pods.values() if budget.labels.items() <= pod.labels.items()]
            healthy = sum(pod.ready and pod.ends_at is None for pod in selected)
            if not pod.ready and healthy >= budget.least > 0:
                continue
            if healthy - budget.least < 1:
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                cause = f"The disruption budget {budget.name} needs {budget.least} healthy pods and has {healthy}"
                raise Refusal(429, message, causes=[{"reason": "DisruptionBudget", "message": cause}])

    def delete(self, namespace: str, name: str, options: Json) -> Json:
        pod = self._pod(namespace, name, options)
        self._end(pod, options)
        return pod.shown()

    def _end(self, pod: Pod, options: Json) -> None:
        grace = options.get("gracePeriodSeconds", pod.grace)
        if pod.granted is None or grace < pod.granted:
            pod.granted = grace
            pod.ends_at = time.monotonic() + min(pod.takes, grace)
        if grace == 0:
            self._remove(pod)

    def _pod(self, namespace: str, name: str, options: Json) -> Pod:
        pods = [pod for pod in self.pods.values() if (pod.namespace, pod.name) == (namespace, name)]
        if not pods:
            raise Refusal(404, f'pods "{name}" not found')
        _only(options, "gracePeriodSeconds", "preconditions")
        grace = options.get("gracePeriodSeconds", 0)
        if not isinstance(grace, int) or grace < 0:
            raise Refusal(422, "gracePeriodSeconds: must be greater than or equal to 0")
        _only(options.get("preconditions", {}), "uid")
        if options.get("preconditions", {}).get("uid", pods[0].uid) != pods[0].uid:
            raise Refusal(409, "Precondition failed: UID in precondition does not match UID in object meta")
        return pods[0]

    def review(self, review: Json) -> Json:
        asked = review["spec"]["resourceAttributes"]
        what = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        return {**review, "metadata": {}, "status": {"allowed": f"{asked['verb']} {what}" in self.allowed}}

    def _demand(self, what: str) -> None:
        if what not in self.allowed:
            verb, resource = what.split()
            raise Refusal(403, f'{resource} is forbidden: User "agent" cannot {verb} resource "{resource}"')

    def respond(self, method: str, path: str, query: dict[str, str], body: Any, content: str) -> tuple[int, Json]:
        if content not in CONTENT[method]:
            raise Refusal(415, f"the body of the request was in an unknown format: {content}")
        node = re.fullmatch(r"/api/v1/nodes/([^/]+)", path)
        pod, eviction = re.fullmatch(POD, path), re.fullmatch(f"{POD}/eviction", path)
        if method == "GET" and node:
            self._demand("get nodes")
            return 200, self._node(node[1]).shown()
        if method == "PATCH" and node:
            self._demand("patch nodes")
            return 200, self.patch_node(node[1], body, query.get("fieldManager", "unknown"))
        if method == "GET" and path == "/api/v1/pods":
            self._demand("list pods")
            return 200, self.list_pods(query)
        if method == "POST" and eviction:
            self._demand("create pods/eviction")
            return 201, self.evict(eviction[1], eviction[2], body)
        if method == "DELETE" and pod:
            self._demand("delete pods")
            return 200, self.delete(pod[1], pod[2], body or {})
        if method == "POST" and path == REVIEWS:
            return 201, self.review(body)
        raise Refusal(404, "the server could not find the requested resource")


def _number(pod: Pod) -> int:
    return int(pod.uid.removeprefix("uid-"))


def _managed(manager: str, part: str, key: str) -> Json:
    return {"manager": manager, "operation": "Update", "fieldsV1": {part: {".": {}, key: {}}}}


def _only(given: Json, *known: str) -> None:
    for key in given:
        if key not in known:
            raise Refusal(400, f'unknown field "{key}"')


class ApiServer:
    """Comes and goes, always at the same address; the cluster stays."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._port = 0
        self._server: _Listener | None = None

    def start(self) -> None:
        self._server = _Listener(self._port, self.cluster)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            for request in list(self._server.open):
                self._server.shutdown_request(request)
            self._server.server_close()
            self._server = None

    def kubeconfig(self, folder: Path, token: str = TOKEN) -> str:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "stub", "cluster": {"server": f"http://{HOST}:{self._port}"}}],
            "users": [{"name": "agent", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "stub", "user": "agent"}}],
        }
        return str(secret_file(folder / "kubeconfig", json.dumps(content)))


@contextmanager
def serving(cluster: Cluster) -> Iterator[ApiServer]:
    server = ApiServer(cluster)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, cluster: Cluster) -> None:
        self.cluster = cluster
        self.open: set[Any] = set()
        super().__init__((HOST, port), _Exchange)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client whose connection was closed."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def _respond(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        where = urlsplit(self.path)
        query = {name: value for name, (value,) in parse_qs(where.query).items()}
        cluster = self.server.cluster
        with cluster.lock:
            cluster.requests.append((self.command, where.path))
            cluster.tick()
            if cluster.faults:
                fault = cluster.faults[0]
                if (self.command, where.path[-len(fault.path) :]) == (fault.method, fault.path):
                    cluster.faults.popleft()
                    self._send(fault.status, fault.body, fault.headers)
                    return
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    raise Refusal(401, "Unauthorized")
                body, kind = json.loads(content) if content else None, self.headers.get("Content-Type", "")
                status, shown = cluster.respond(self.command, where.path, query, body, kind)
            except Refusal as refusal:
                status, shown = refusal.sent_as, refusal.shown
            if cluster.meanwhile:
                cluster.meanwhile.popleft()()
        self._send(status, json.dumps(shown).encode(), {})

    do_GET = do_POST = do_PATCH = do_DELETE = _respond  # noqa: N815

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...
