"""Cordon, drain and uncordon, against a stub of an API server that holds clients to the eviction API's rules."""

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.agent.handlers.apiserver import ApiServer, serving
from tests.agent.handlers.cluster import Budget, Cluster, Fault, Pod
from tests.agent.handlers.work import EVENT, done, failed, work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import Outcome, facts, kubernetes
from forenotice.agent.handlers.child import ARGV, ChildHandler
from forenotice.agent.handlers.kubernetes import MARK, Retrier
from forenotice.agent.handlers.tables import Kubernetes
from forenotice.agent.rules.policy import Phase
from forenotice.settings.spans import Span

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

    def do(self, phase: Phase = Phase.PREPARE, seconds: float = 5.0, **more: Any) -> Outcome:
        told = facts.document(work(phase=phase, me="Node-1"))
        retrier = Retrier(time.monotonic() + seconds, RUNTIME, pause=0.02, longest=0.1)
        return kubernetes.run(self.config(**more), told, retrier)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with serving(Cluster()) as server:
        yield Rig(server, tmp_path)


def fill(rig: Rig, *pods: Pod) -> None:
    for pod in pods:
        rig.cluster.add(pod)


def protected(rig: Rig, **more: Any) -> Pod:
    """A pod that no budget lets go: it is the only one, and one is needed."""
    rig.cluster.budgets = [Budget("web", WEB, 1)]
    return rig.cluster.add(Pod("web", labels=WEB, **more))


def later(seconds: float, change: Any) -> threading.Timer:
    timer = threading.Timer(seconds, change)
    timer.start()
    return timer


# Preparing


def test_a_node_is_cordoned_and_its_pods_move_while_those_that_belong_to_it_stay(rig: Rig) -> None:
    fill(
        rig,
        *(Pod(f"web-{n}", takes=0.05 * n) for n in range(5)),
        Pod("bare", owner=""),
        Pod("db", owner="StatefulSet"),
        Pod("proxy", owner="DaemonSet"),
        Pod("etcd", owner="Node", annotations={"kubernetes.io/config.mirror": "1"}),
        Pod("ended", owner="Job", phase="Succeeded"),
        Pod("failed", owner="Job", phase="Failed"),
        Pod("elsewhere", node="node-2"),
    )
    assert rig.do() == done("node-1 is drained: 7 pods moved, 4 stay")
    assert rig.node.unschedulable
    assert rig.node.annotations == {MARK: EVENT.id}
    assert rig.cluster.names() == ["ended", "etcd", "failed", "proxy"]
    assert {pod.name: pod.granted for pod in rig.cluster.gone.values()}["web-3"] == 30


def test_the_node_has_the_name_of_the_vm_in_lower_case(rig: Rig) -> None:
    fill(rig, Pod("web"))
    assert rig.do(node="").ok
    assert rig.cluster.names() == []


def test_pods_are_evicted_at_the_pace_of_their_budget(rig: Rig) -> None:
    """Each that goes is made up for elsewhere, and lets the next one go."""
    rig.cluster.budgets = [Budget("web", WEB, 3)]
    fill(rig, *(Pod(f"web-{n}", labels=WEB, takes=0.05) for n in range(4)))
    fewest = 4

    def watch() -> None:
        nonlocal fewest
        while not drained.wait(0.005):
            with rig.cluster.lock:
                fewest = min(fewest, sum(pod.ready and pod.ends_at is None for pod in rig.cluster.pods.values()))

    drained = threading.Event()
    watching = threading.Thread(target=watch)
    watching.start()
    outcome = rig.do()
    drained.set()
    watching.join()
    assert outcome.ok
    assert rig.cluster.names() == []
    assert fewest == 3
    assert rig.cluster.asked("DELETE", "") == 0


def test_a_budget_that_frees_up_later_is_waited_for(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    protected(rig)

    def free() -> None:
        until(lambda: rig.cluster.asked("POST", "/eviction") >= 3)
        rig.cluster.budgets.clear()

    freeing = threading.Thread(target=free)
    freeing.start()
    outcome = rig.do(seconds=10, escalate=Span(seconds=5))
    freeing.join()
    assert outcome.ok
    assert rig.cluster.names() == []
    assert rig.cluster.asked("DELETE", "") == 0
    assert capsys.readouterr().out.splitlines() == ["node-1 is cordoned", "1 pod is to go"]


def test_what_a_budget_protects_is_deleted_when_the_deadline_is_near(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = protected(rig)
    began = time.monotonic()
    assert rig.do(seconds=3, escalate=Span(seconds=2.5)).ok
    assert time.monotonic() - began > 0.5
    assert rig.cluster.gone[pod.uid].granted in (1, 2)  # not its own 30 s
    assert "time is short" in capsys.readouterr().out


def test_a_short_notice_is_enough_to_delete_at_once_what_may_not_be_evicted(rig: Rig) -> None:
    pod = protected(rig, grace=1)
    began = time.monotonic()
    assert rig.do(seconds=20, escalate=Span(seconds=30)).ok
    assert time.monotonic() - began < 2
    assert rig.cluster.gone[pod.uid].granted == 1


@pytest.mark.parametrize("status", [401, 403, 409, 429, 500, 502, 503, 504])
def test_only_a_budget_is_a_reason_to_delete_near_the_deadline(rig: Rig, status: int) -> None:
    """Neither is a server that stumbles, nor one that has too much to do."""
    fill(rig, Pod("web"))
    rig.cluster.faults.append(Fault("POST", "/eviction", status))
    assert rig.do(seconds=3, escalate=Span(seconds=10)).ok
    assert rig.cluster.asked("POST", "/eviction") == 2
    assert rig.cluster.asked("DELETE", "") == 0


def test_without_escalation_the_drain_fails_and_the_node_stays_cordoned(rig: Rig) -> None:
    protected(rig)
    outcome = rig.do(seconds=0.4)
    reason = "default/web (Cannot evict pod as it would violate the pod's disruption budget.)"
    assert outcome == failed(f"1 pod is still on node-1: {reason}")
    assert rig.cluster.names() == ["web"]
    assert rig.node.unschedulable
    assert rig.node.annotations == {MARK: EVENT.id}


def test_two_budgets_for_one_pod_are_told_as_a_refusal_inside_a_success(rig: Rig) -> None:
    protected(rig)
    rig.cluster.budgets.append(Budget("both", WEB, 0))
    outcome = rig.do(seconds=0.3)
    assert not outcome.ok
    assert "more than one PodDisruptionBudget" in outcome.message
    assert rig.do(seconds=3, escalate=Span(seconds=3)).ok


def test_a_pod_that_takes_too_long_to_end_is_a_failure(rig: Rig) -> None:
    fill(rig, Pod("slow", takes=60, grace=60))
    outcome = rig.do(seconds=0.3)
    assert outcome.message == "1 pod is still on node-1: default/slow (is terminating)"
    assert rig.cluster.asked("POST", "/eviction") == 1


def test_a_grace_period_of_ones_own_replaces_that_of_the_pods(rig: Rig) -> None:
    pod = rig.cluster.add(Pod("web", grace=60))
    assert rig.do(grace_period=Span(seconds=7)).ok
    assert rig.cluster.gone[pod.uid].granted == 7


def test_a_pod_that_was_replaced_by_another_of_its_name_is_not_evicted_in_its_stead(rig: Rig) -> None:
    """Between our look and our eviction it goes by itself, and its successor lands elsewhere."""
    rig.cluster.add(Pod("db", owner="StatefulSet"))

    def replace() -> None:
        rig.cluster.delete("default", "db", {"gracePeriodSeconds": 0})

    rig.cluster.meanwhile.extend([lambda: None, lambda: None, replace])
    assert rig.do().ok
    assert rig.cluster.asked("POST", "/eviction") == 1
    assert len(rig.cluster.gone) == 1
    assert rig.cluster.names("node-2") == ["db"]


def test_pods_that_come_in_spite_of_the_cordon_are_left_alone(rig: Rig) -> None:
    del rig.cluster.nodes["node-2"]
    fill(rig, Pod("stubborn", tolerates=True))
    assert rig.do().ok
    assert rig.cluster.names() == ["stubbornx"]
    assert rig.cluster.asked("POST", "/eviction") == 1


def test_faults_of_the_server_are_asked_about_again(rig: Rig) -> None:
    fill(rig, Pod("web"), Pod("api"), Pod("gone"))
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
    assert rig.do().ok
    assert rig.cluster.names() == []
    assert not rig.cluster.faults


def test_retry_after_is_honoured_until_the_time_is_short(rig: Rig) -> None:
    fill(rig, Pod("web"))
    rig.cluster.faults.extend([Fault("POST", "/eviction", 429, {"Retry-After": "3600"})] * 2)
    assert not rig.do(seconds=0.3).ok
    assert rig.cluster.asked("POST", "/eviction") == 1
    assert rig.do(seconds=1.3, escalate=Span(seconds=1)).ok
    assert rig.cluster.asked("POST", "/eviction") == 3


def test_a_server_that_asks_for_more_time_than_there_is_does_not_get_it(rig: Rig) -> None:
    rig.cluster.faults.extend([Fault("GET", "/pods", 429, {"Retry-After": "3600"})] * 2)
    began = time.monotonic()
    outcome = rig.do(seconds=0.2)
    assert outcome == failed("the API server answers 429 Too Many Requests")
    assert time.monotonic() - began < 2


def test_a_server_that_goes_and_comes_back_does_not_end_the_drain(rig: Rig) -> None:
    fill(rig, *(Pod(f"web-{n}", takes=0.2) for n in range(3)))

    def restart() -> None:
        until(lambda: rig.cluster.asked("POST", "/eviction"))
        rig.server.stop()
        until(lambda: time.monotonic() > began + 0.6)
        rig.server.start()

    began = time.monotonic()
    restarting = threading.Thread(target=restart)
    restarting.start()
    outcome = rig.do()
    restarting.join()
    assert outcome.ok
    assert rig.cluster.names() == []


def test_a_server_that_stays_away_is_told(rig: Rig) -> None:
    rig.server.stop()
    outcome = rig.do(seconds=0.2)
    assert outcome == failed("the API server does not answer (NewConnectionError)")


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ("get nodes", 'cannot get resource "nodes"'),
        ("patch nodes", 'cannot patch resource "nodes"'),
        ("list pods", 'cannot list resource "pods"'),
    ],
)
def test_a_right_that_is_missing_is_told_at_once(rig: Rig, right: str, said: str) -> None:
    rig.cluster.allowed.discard(right)
    began = time.monotonic()
    outcome = rig.do()
    assert not outcome.ok
    assert said in outcome.message
    assert time.monotonic() - began < 2


def test_a_node_that_is_not_there_is_told(rig: Rig) -> None:
    assert rig.do(node="node-9") == failed('nodes "node-9" not found')


# Recovering


@pytest.mark.parametrize("phase", [Phase.RECOVER, Phase.UNDO])
def test_a_node_that_we_cordoned_is_uncordoned_though_all_else_was_forgotten(rig: Rig, phase: Phase) -> None:
    assert rig.do().ok
    assert rig.node.unschedulable
    assert rig.do(phase) == done("node-1 is uncordoned")
    assert not rig.node.unschedulable
    assert rig.node.annotations == {}
    assert rig.do(phase) == done("node-1 was not cordoned by us, and is left as it is")


def test_a_node_that_somebody_else_cordoned_is_drained_and_stays_cordoned(rig: Rig) -> None:
    rig.node.unschedulable = True
    fill(rig, Pod("web"))
    assert rig.do().ok
    assert rig.cluster.names() == []
    assert rig.node.annotations == {}
    assert rig.do(Phase.RECOVER).ok
    assert rig.node.unschedulable
    assert rig.cluster.asked("PATCH", "") == 0


def test_a_node_that_somebody_cordons_while_we_are_about_to_is_theirs(rig: Rig) -> None:
    def cordon() -> None:
        rig.node.unschedulable = True
        rig.node.version += 1

    rig.cluster.meanwhile.append(cordon)
    assert rig.do().ok
    assert rig.node.annotations == {}
    assert rig.do(Phase.RECOVER).ok
    assert rig.node.unschedulable


def test_a_cordon_that_somebody_lifted_leaves_only_our_mark_to_remove(rig: Rig) -> None:
    rig.node.annotations = {MARK: "an-event", "other": "stays"}
    assert rig.do(Phase.RECOVER).ok
    assert rig.node.annotations == {"other": "stays"}
    assert not rig.node.unschedulable


def test_a_cordon_that_somebody_lifted_and_set_anew_is_theirs(rig: Rig) -> None:
    assert rig.do().ok
    for unschedulable in (None, True):
        rig.cluster.patch_node("node-1", {"metadata": {}, "spec": {"unschedulable": unschedulable}}, "kubectl")
    assert rig.do(Phase.RECOVER) == done("node-1 was cordoned again by somebody else, and stays cordoned")
    assert rig.node.unschedulable
    assert rig.node.annotations == {}


def test_preparing_again_does_not_make_somebody_elses_cordon_ours(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.node.annotations[MARK] = "an-event"
    rig.cluster.patch_node("node-1", {"metadata": {}, "spec": {"unschedulable": True}}, "kubectl")
    assert rig.do().ok
    assert "node-1 is cordoned already, by somebody else" in capsys.readouterr().out
    assert rig.do(Phase.RECOVER).ok
    assert rig.node.unschedulable


def test_a_node_that_is_gone_needs_no_uncordoning(rig: Rig) -> None:
    assert rig.do(Phase.RECOVER, node="node-9").ok


def test_recovering_waits_for_a_server_that_comes_later(rig: Rig) -> None:
    assert rig.do().ok
    rig.server.stop()
    timer = later(0.3, rig.server.start)
    assert rig.do(Phase.RECOVER).ok
    timer.join()
    assert not rig.node.unschedulable


def test_nothing_is_done_when_an_event_starts(rig: Rig) -> None:
    assert rig.do(Phase.ON_STARTED).ok
    assert rig.cluster.requests == []


# Looking


def test_a_rehearsal_tells_what_would_be_done_and_changes_nothing(rig: Rig) -> None:
    fill(rig, Pod("web"), Pod("api"), Pod("proxy", owner="DaemonSet"))
    said = "would cordon node-1 and move 2 pods; 1 would stay"
    assert kubernetes.rehearse(rig.config()) == done(said)
    assert kubernetes.rehearse(rig.config(node="")).ok
    assert len(rig.cluster.names()) == 3
    assert not rig.node.unschedulable


def test_a_rehearsal_names_all_rights_that_are_missing(rig: Rig) -> None:
    rig.cluster.allowed -= {"patch nodes", "create pods/eviction", "delete pods"}
    assert "it may not: patch nodes, create pods/eviction; " in kubernetes.rehearse(rig.config()).message
    escalating = kubernetes.rehearse(rig.config(escalate=Span(seconds=30)))
    assert "it may not: patch nodes, create pods/eviction, delete pods; " in escalating.message
    assert not escalating.ok


def test_a_rehearsal_misses_a_node_and_a_server(rig: Rig) -> None:
    assert kubernetes.rehearse(rig.config(node="node-9")) == failed('nodes "node-9" not found')
    rig.server.stop()
    assert kubernetes.rehearse(rig.config()).message == "the API server does not answer (NewConnectionError)"


def test_credentials_that_are_not_usable_are_told_without_quoting_them(rig: Rig, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text("token: very-secret: {")
    for kubeconfig in (str(wrong), str(tmp_path / "none"), ""):
        outcome = kubernetes.rehearse(rig.config(kubeconfig=kubeconfig))
        assert not outcome.ok
        assert "gives no way to the API server" in outcome.message
        assert "very-secret" not in outcome.message
    unknown = rig.server.kubeconfig(tmp_path, token="another-secret")
    assert kubernetes.rehearse(rig.config(kubeconfig=unknown)) == failed("Unauthorized")


# The real process


def test_a_drain_that_is_stopped_ends_at_once_and_a_second_attempt_completes_it(rig: Rig) -> None:
    protected(rig)
    stop = threading.Event()
    handler = ChildHandler(rig.config(), RUNTIME)
    ends: list[Outcome] = []
    running = threading.Thread(target=lambda: ends.append(handler.run(work(me="node-1", stop=stop))))
    running.start()
    until(lambda: rig.cluster.asked("POST", "/eviction"))
    stop.set()
    told = time.monotonic()
    running.join()
    assert time.monotonic() - told < 2
    assert not ends[0].ok
    assert "as the agent asked: node-1 is cordoned" in ends[0].message
    assert rig.node.unschedulable
    rig.cluster.budgets.clear()
    assert rig.do().ok
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
    assert rig.do() == done("node-1 is drained: 0 pods moved, 0 stay")
    assert rig.do(Phase.UNDO) == done("node-1 is uncordoned")


def test_a_process_of_its_own_recovers(rig: Rig) -> None:
    rig.node.unschedulable = True
    rig.node.annotations[MARK] = "lost"
    outcome = ChildHandler(rig.config(), RUNTIME).run(work(phase=Phase.RECOVER))
    assert outcome == done("node-1 is uncordoned")
