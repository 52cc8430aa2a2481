"""The page for operators names what the service really has."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from forenotice.control.metrics import GUEST_GAUGES, Metrics

PAGE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()


def test_it_has_the_metrics() -> None:
    metrics = Metrics(events=dict, guests=lambda: dict.fromkeys(("polls", "refused", *GUEST_GAUGES), 0))
    families = text_string_to_metric_families(metrics.render().decode())
    known = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert set(re.findall(r"`(forenotice_\w+)`", PAGE)) == {name for name in known if not name.endswith("_created")}
