"""What `forenotice cluster demo` prints: what there is, and what to try."""

import shlex
from pathlib import Path

from forenotice.cluster.members import FILE, Cluster
from forenotice.settings import CLUSTER_SERVICES

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"


def text(cluster: Cluster, link: str, variables: str = "") -> str:
    """`link`: the words with the one to the portal. `variables`: what commands cannot know by themselves."""
    own = f"{variables}forenotice"
    first, last = (cluster.member(f"edge-{host}").addresses["guests"] + TARGET for host in ("host-a", "host-c"))
    services = " ".join(str(cluster.member(role).pid) for role in CLUSTER_SERVICES)
    leader, keys = cluster.member(cluster.leader), Path(cluster.directory) / "keys"
    nats = " ".join(f"--nats {url}" for url in cluster.addresses("clients", "nats-"))
    credentials = f"--nats-credentials {_quoted(keys / 'centre.creds')}"
    system = f"--system-credentials {_quoted(keys / 'system.creds')}"
    return f"""
A cluster runs: three NATS servers, PostgreSQL, two services, and the edges of host-a, host-b and host-c.
{Path(cluster.directory) / FILE} has their processes and addresses.

{link}

In another terminal (. .venv/bin/activate first), ask the edge of host-a as web-0, a VM there, and announce an update:

  curl -H Metadata:true '{first}'
  {own} host update host-a
  curl -H Metadata:true '{first}'
  {own} event list

web and pool have to approve; WEB and POOL stand for the IDs of their events. Approve as web-0. Kill the NATS server
that leads the stream of approvals. Approve as pool_4, at the edge of host-c, which refuses until another leads:

  curl -H Metadata:true -d '{{"StartRequests":[{{"EventId":"WEB"}}]}}' '{first}'
  kill -9 {leader.pid}  # {leader.role}
  curl --retry 9 -H Metadata:true -d '{{"StartRequests":[{{"EventId":"POOL"}}]}}' '{last}'
  {own} history --action event.approved

Nothing was lost: what the killed server had just handed to a service comes again within 10 seconds. The update starts.
Stop both services, ask again (as pool_1, by its address), and let them go on:

  kill -STOP {services}
  curl --interface 127.1.0.21 -H Metadata:true '{first}'
  kill -CONT {services}
  {own} edge list
  {own} cluster check {nats} {credentials} {system}

Ctrl-C ends all of it. The next demo starts afresh.
"""


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
