"""Cordon, drain and uncordon, against a stub of an API server that holds clients to the eviction API's rules."""

import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.agent.handlers.cluster import ApiServer, Budget, Cluster, Fault, Pod, serving
from tests.agent.handlers.work import EVENT, Tried, beside, done, failed, work
from tests.agent.parts import RUNTIME, secret_file

from forenotice.agent.handlers import Outcome, facts, kubernetes
from forenotice.agent.handlers.child import ARGV, ChildHandler
from forenotice.agent.handlers.kubernetes import MARK, Retrier
from forenotice.agent.handlers.tables import Kubernetes
from forenotice.agent.rules.policy import Phase
from forenotice.programs import process
from forenotice.settings.values import Span

WEB = {"app": "web"}


class Rig:
    """A node's handler, called as the child process calls it, but in less time."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.cluster = server.cluster
        self.kubeconfig = server.kubeconfig(folder)

    @property
    def node(self) -> Any:
        return self.cluster.nodes["node-1"]

    def config(self, **more: Any) -> Kubernetes:
        usual: dict[str, Any] = {"node": "node-1", "kubeconfig": self.kubeconfig, "escalate": Span(0)}
        return Kubernetes(name="drain", **(usual | more))

    def run(self, phase: Phase = Phase.PREPARE, seconds: float = 5.0, **more: Any) -> Outcome:
        given = facts.document(work(phase=phase, me="Node-1"))
        retrier = Retrier(time.monotonic() + seconds, RUNTIME, pause=0.02, longest=0.1)
        return Outcome.of(partial(kubernetes.run, self.config(**more), given, retrier))

    def rehearse(self, **more: Any) -> Outcome:
        return Outcome.of(partial(kubernetes.rehearse, self.config(**more)))

    def fill(self, *pods: Pod) -> None:
        for pod in pods:
            self.cluster.add(pod)

    def protected(self, **more: Any) -> Pod:
        """A pod that no budget lets go: it is the only one, and one is needed."""
        self.cluster.budgets = [Budget("web", WEB, 1)]
        return self.cluster.add(Pod("web", labels=WEB, **more))

    @property
    def evictions(self) -> int:
        return self.cluster.asked("POST", "/eviction")

    @property
    def deletions(self) -> int:
        return self.cluster.asked("DELETE", "")

    def cordon(self, unschedulable: bool | None) -> None:
        """Somebody else does."""
        self.cluster.patch_node("node-1", {"metadata": {}, "spec": {"unschedulable": unschedulable}}, "kubectl")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with serving(Cluster()) as server:
        yield Rig(server, tmp_path)


# Preparing


def test_a_node_is_cordoned_and_its_pods_move_while_those_that_belong_to_it_stay(rig: Rig) -> None:
    pods = (
        *(Pod(f"web-{n}", takes=0.05 * n) for n in range(5)),
        Pod("bare", owner=""),
        Pod("db", owner="StatefulSet"),
        Pod("proxy", owner="DaemonSet"),
        Pod("etcd", owner="Node", annotations={"kubernetes.io/config.mirror": "1"}),
        Pod("ended", owner="Job", phase="Succeeded"),
        Pod("failed", owner="Job", phase="Failed"),
        Pod("elsewhere", node="node-2"),
    )
    rig.fill(*pods)
    assert rig.rehearse() == done("would cordon node-1 and move 7 pods; 4 would stay")
    assert rig.rehearse(node="").ok
    assert (len(rig.cluster.names()), rig.node.unschedulable) == (11, False)
    assert rig.run(node="") == done("node-1 is drained: 7 pods moved, 4 stay"), "by the VM's name in lower case"
    assert rig.node.unschedulable
    assert rig.node.annotations == {MARK: EVENT.id}
    assert rig.cluster.names() == ["ended", "etcd", "failed", "proxy"]
    assert {pod.name: pod.granted for pod in rig.cluster.gone.values()}["web-3"] == 30


def test_pods_are_evicted_at_the_pace_of_their_budget(rig: Rig) -> None:
    """Each that goes is made up for elsewhere, and lets the next one go."""
    rig.cluster.budgets = [Budget("web", WEB, 3)]
    rig.fill(*(Pod(f"web-{n}", labels=WEB, takes=0.05) for n in range(4)))
    fewest = 4
    drained = threading.Event()

    def watch() -> None:
        nonlocal fewest
        while not drained.wait(0.005):
            with rig.cluster.lock:
                fewest = min(fewest, sum(pod.ready and pod.ends_at is None for pod in rig.cluster.pods.values()))

    with beside(watch):
        outcome = rig.run()
        drained.set()
    assert outcome.ok
    assert (rig.cluster.names(), fewest, rig.deletions) == ([], 3, 0)


def test_a_budget_that_frees_up_later_is_waited_for(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.protected()

    def free() -> None:
        until(lambda: rig.evictions >= 3)
        rig.cluster.budgets.clear()

    with beside(free):
        assert rig.run(seconds=10, escalate=Span(seconds=5)).ok
    assert (rig.cluster.names(), rig.deletions) == ([], 0)
    assert capsys.readouterr().out.splitlines() == ["node-1 is cordoned", "1 pod is to go"]


def test_pods_that_a_budget_protects_are_deleted_when_the_deadline_is_near(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = rig.protected()
    began = time.monotonic()
    assert rig.run(seconds=3, escalate=Span(seconds=2.5)).ok
    assert time.monotonic() - began > 0.5
    assert rig.cluster.gone[pod.uid].granted in (1, 2)  # not its own 30 s
    assert "time is short" in capsys.readouterr().out
    pod = rig.protected(grace=1)
    began = time.monotonic()
    assert rig.run(seconds=20, escalate=Span(seconds=30)).ok
    assert time.monotonic() - began < 15
    assert rig.cluster.gone[pod.uid].granted == 1


@pytest.mark.parametrize("status", [403, 409, 429, 503])
def test_only_a_budget_is_a_reason_to_delete_near_the_deadline(rig: Rig, status: int) -> None:
    """Neither is a server that stumbles, nor one that has too much to do."""
    rig.fill(Pod("web"))
    rig.cluster.faults.append(Fault("POST", "/eviction", status))
    assert rig.run(seconds=3, escalate=Span(seconds=10)).ok
    assert (rig.evictions, rig.deletions) == (2, 0)


def test_without_escalation_the_drain_fails_and_the_node_stays_cordoned(rig: Rig) -> None:
    rig.protected()
    reason = "default/web (Cannot evict pod as it would violate the pod's disruption budget.)"
    assert rig.run(seconds=0.4) == failed(f"1 pod is still on node-1: {reason}")
    assert rig.cluster.names() == ["web"]
    assert (rig.node.unschedulable, rig.node.annotations) == (True, {MARK: EVENT.id})
    # Two budgets for one pod are a refusal inside a success.
    rig.cluster.budgets.append(Budget("both", WEB, 0))
    assert "more than one PodDisruptionBudget" in rig.run(seconds=0.3).message
    assert rig.run(seconds=3, escalate=Span(seconds=3)).ok


def test_a_pod_that_takes_too_long_to_end_is_a_failure(rig: Rig) -> None:
    rig.fill(Pod("slow", takes=60, grace=60))
    assert rig.run(seconds=0.3) == failed("1 pod is still on node-1: default/slow (is terminating)")
    assert rig.evictions == 1


def test_a_grace_period_in_the_configuration_replaces_that_of_the_pods(rig: Rig) -> None:
    pod = rig.cluster.add(Pod("web", grace=60))
    assert rig.run(grace_period=Span(seconds=7)).ok
    assert rig.cluster.gone[pod.uid].granted == 7


def test_a_pod_that_was_replaced_by_another_of_its_name_is_not_evicted_in_its_stead(rig: Rig) -> None:
    """Between our look and our eviction it goes by itself, and its successor lands elsewhere."""
    rig.cluster.add(Pod("db", owner="StatefulSet"))

    def replace() -> None:
        rig.cluster.delete("default", "db", {"gracePeriodSeconds": 0})

    rig.cluster.meanwhile.extend([lambda: None, lambda: None, replace])
    assert rig.run().ok
    assert (rig.evictions, len(rig.cluster.gone), rig.cluster.names("node-2")) == (1, 1, ["db"])


def test_pods_that_come_in_spite_of_the_cordon_are_left_alone(rig: Rig) -> None:
    del rig.cluster.nodes["node-2"]
    rig.fill(Pod("stubborn", tolerates=True))
    assert rig.run().ok
    assert (rig.cluster.names(), rig.evictions) == (["stubbornx"], 1)


# An API server that fails


def test_temporary_faults_of_the_server_are_retried(rig: Rig) -> None:
    rig.fill(Pod("web"), Pod("api"), Pod("gone"))
    rig.cluster.faults.extend(
        [
            Fault("GET", "/nodes/node-1", 503),
            Fault("PATCH", "/nodes/node-1", 409),
            Fault("GET", "/pods", 429, {"Retry-After": "0"}),
            Fault("GET", "/pods", 410),
            Fault("GET", "/pods", 200, body=b"<html>"),
            Fault("POST", "/eviction", 409),
            Fault("POST", "/eviction", 500),
            Fault("POST", "/eviction", 404),
        ]
    )
    assert rig.run().ok
    assert rig.cluster.names() == []
    assert not rig.cluster.faults


def test_retry_after_is_honoured_until_the_time_is_short(rig: Rig) -> None:
    rig.fill(Pod("web"))
    rig.cluster.faults.extend([Fault("POST", "/eviction", 429, {"Retry-After": "3600"})] * 2)
    assert not rig.run(seconds=0.3).ok
    assert rig.evictions == 1
    assert rig.run(seconds=1.3, escalate=Span(seconds=1)).ok
    assert rig.evictions == 3
    rig.cluster.faults.extend([Fault("GET", "/pods", 429, {"Retry-After": "3600"})] * 2)
    began = time.monotonic()
    assert rig.run(seconds=0.2) == failed("the API server answers 429 Too Many Requests")
    assert time.monotonic() - began < 60


def test_a_server_that_goes_and_comes_back_ends_neither_drain_nor_recovery(rig: Rig) -> None:
    rig.fill(*(Pod(f"web-{n}", takes=0.2) for n in range(3)))
    away = "the API server does not answer (NewConnectionError)"

    def restart() -> None:
        until(lambda: rig.evictions)
        rig.server.stop()
        until(lambda: time.monotonic() > began + 0.6)
        rig.server.start()

    began = time.monotonic()
    with beside(restart):
        assert rig.run().ok
    assert rig.cluster.names() == []
    rig.server.stop()
    assert rig.run(seconds=0.2) == rig.rehearse() == failed(away)
    timer = threading.Timer(0.3, rig.server.start)
    timer.start()
    assert rig.run(Phase.RECOVER) == done("node-1 is uncordoned")
    timer.join()


@pytest.mark.parametrize("right", ["get nodes", "patch nodes", "list pods"])
def test_a_right_that_is_missing_is_shown_at_once(rig: Rig, right: str) -> None:
    rig.cluster.allowed.discard(right)
    began = time.monotonic()
    outcome = rig.run(seconds=60)
    verb, resource = right.split()
    assert not outcome.ok
    assert f'cannot {verb} resource "{resource}"' in outcome.message
    assert time.monotonic() - began < 30


def test_a_rehearsal_names_all_rights_that_are_missing(rig: Rig) -> None:
    rig.cluster.allowed -= {"patch nodes", "create pods/eviction", "delete pods"}
    assert "it may not: patch nodes, create pods/eviction; " in rig.rehearse().message
    escalating = rig.rehearse(escalate=Span(seconds=30))
    assert "it may not: patch nodes, create pods/eviction, delete pods; " in escalating.message
    assert not escalating.ok


def test_credentials_that_are_not_usable_are_not_quoted(rig: Rig, tmp_path: Path) -> None:
    wrong = secret_file(tmp_path / "wrong", "token: very-secret: {")
    for kubeconfig in (str(wrong), str(tmp_path / "none"), ""):
        outcome = rig.rehearse(kubeconfig=kubeconfig)
        assert not outcome.ok
        assert "gives no way to the API server" in outcome.message
        assert "very-secret" not in outcome.message
    unknown = rig.server.kubeconfig(tmp_path, token="another-secret")
    assert rig.rehearse(kubeconfig=unknown) == failed("Unauthorized")


# Recovering


@pytest.mark.parametrize("phase", [Phase.RECOVER, Phase.UNDO])
def test_a_node_that_we_cordoned_is_uncordoned_though_the_journal_is_lost(rig: Rig, phase: Phase) -> None:
    assert rig.run().ok
    assert rig.run(Phase.ON_STARTED) == done("")
    assert rig.node.unschedulable
    assert rig.run(phase) == done("node-1 is uncordoned")
    assert (rig.node.unschedulable, rig.node.annotations) == (False, {})
    assert rig.run(phase) == done("node-1 was not cordoned by us, and is left as it is")


def test_a_node_that_somebody_else_cordoned_is_drained_and_stays_cordoned(rig: Rig) -> None:
    rig.node.unschedulable = True
    rig.fill(Pod("web"))
    assert rig.run().ok
    assert (rig.cluster.names(), rig.node.annotations) == ([], {})
    assert rig.run(Phase.RECOVER).ok
    assert rig.node.unschedulable
    assert rig.cluster.asked("PATCH", "") == 0


def test_a_node_that_somebody_cordons_while_we_are_about_to_is_theirs(rig: Rig) -> None:
    def cordon() -> None:
        rig.node.unschedulable = True
        rig.node.version += 1

    rig.cluster.meanwhile.append(cordon)
    assert rig.run().ok
    assert rig.node.annotations == {}
    assert rig.run(Phase.RECOVER).ok
    assert rig.node.unschedulable


def test_a_cordon_that_somebody_lifted_leaves_only_our_mark_to_remove(rig: Rig) -> None:
    rig.node.annotations = {MARK: "an-event", "other": "stays"}
    assert rig.run(Phase.RECOVER).ok
    assert (rig.node.annotations, rig.node.unschedulable) == ({"other": "stays"}, False)


def test_a_cordon_that_somebody_lifted_and_set_anew_is_theirs(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert rig.run().ok
    for unschedulable in (None, True):
        rig.cordon(unschedulable)
    assert rig.run().ok, "preparing again does not make it ours"
    assert "node-1 is cordoned already, by somebody else" in capsys.readouterr().out
    assert rig.run(Phase.RECOVER) == done("node-1 was cordoned again by somebody else, and stays cordoned")
    assert (rig.node.unschedulable, rig.node.annotations) == (True, {})


def test_a_node_that_is_not_there_cannot_be_drained_and_needs_no_uncordoning(rig: Rig) -> None:
    missing = failed('nodes "node-9" not found')
    assert rig.run(node="node-9") == rig.rehearse(node="node-9") == missing
    assert rig.run(Phase.RECOVER, node="node-9").ok


# The real process


def test_a_drain_that_is_stopped_ends_at_once_and_a_second_attempt_completes_it(rig: Rig) -> None:
    rig.protected()
    stop = threading.Event()
    handler = Tried(ChildHandler(rig.config(), RUNTIME))
    outcomes: list[Outcome] = []
    with beside(lambda: outcomes.append(handler.run(me="node-1", stop=stop))):
        until(lambda: rig.evictions)
        stop.set()
        asked = time.monotonic()
    assert time.monotonic() - asked < process.GRACE
    assert not outcomes[0].ok
    assert "as the agent asked: node-1 is cordoned" in outcomes[0].message
    assert rig.node.unschedulable
    rig.cluster.budgets.clear()
    assert rig.run().ok
    assert rig.node.annotations == {MARK: EVENT.id}


def test_a_drain_that_is_killed_is_completed_by_a_second_attempt_and_undone(rig: Rig) -> None:
    pod = rig.cluster.add(Pod("web", takes=60, grace=60))
    order = ChildHandler(rig.config(), RUNTIME)._order(work=facts.document(work()), rehearse=False)
    with subprocess.Popen(ARGV, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        child.stdin.write(order)
        child.stdin.close()
        until(lambda: pod.ends_at)
        child.kill()
    pod.ends_at = time.monotonic()
    assert rig.run() == done("node-1 is drained: 0 pods moved, 0 stay")
    assert Tried(ChildHandler(rig.config(), RUNTIME)).run(phase=Phase.UNDO) == done("node-1 is uncordoned")
