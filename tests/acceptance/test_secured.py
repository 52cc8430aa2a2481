"""A real service with TLS, a tenant's token, and what it says when it should have TLS and has none."""

import http.client
import json
from pathlib import Path

import pytest
from tests.acceptance.running import DEADLINE, HOST, environment, run, serving
from tests.control import certificates

from forenotice.cli.main import main


def test_a_tenant_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = certificates.make(tmp_path, HOST)

    def said(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    flags = ("--demo", "--control-certificate", str(made.file), "--control-key", str(made.key))
    with serving(tmp_path, *flags) as server:
        assert f"operators at https://{server.operators}." in server.output
        monkeypatch.setenv("FORENOTICE_CONTROL", f"https://{server.operators}")
        monkeypatch.setenv("FORENOTICE_CONTROL_CA", str(made.ca))
        monkeypatch.setenv("FORENOTICE_TOKEN", server.token)
        tenant = said("token", "create", "shop", "--role", "tenant", "--scopes", "web", "--expires", "90d").strip()
        monkeypatch.setenv("FORENOTICE_TOKEN", tenant)
        said("vm", "restart", "web-0", "--reason", "Grüße: neuer Kern")
        assert main(("host", "list")) == 1
        assert "this needs the role viewer of all scopes, platform or admin" in capsys.readouterr().err
        [entry] = [each for each in json.loads(said("history", "--json")) if each["action"] == "event.scheduled"]
        assert (entry["by"], entry["reason"]) == ("tenant:shop", "Grüße: neuer Kern")
        assert entry["origin"].startswith("127.")


def test_without_tls_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    where = ("--control", "0.0.0.0:0", "--metadata", f"{HOST}:0", "--data", str(tmp_path))
    refused = run("forenotice", "serve", *where, env=environment(tmp_path))
    assert refused.returncode == 1
    assert "--control-certificate and --control-key, or --control-without-tls" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_web_page_reads_it_by_a_name_of_its_own(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo", "--control-name", "Control.example") as server:

        def asked(host: str | None, path: str = "/metrics") -> tuple[int, str]:
            connection = http.client.HTTPConnection(server.operators, timeout=DEADLINE)
            connection.putrequest("GET", path, skip_host=True)
            if host is not None:
                connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            said = answer.status, answer.read().decode()
            connection.close()
            return said

        for path in ("/metrics", "/readyz", "/sign-in", "/v1/vms", "/nowhere"):
            status, said = asked("evil.example", path)
            assert status == 400
            assert "'evil.example' in the Host header is not a name of this service" in said
            assert "--control-name" in said
        for known in (None, server.operators, "localhost", "[::1]:80", "control.example", "CONTROL.example:443"):
            assert asked(known)[0] == 200
        listed = run("forenotice", "vm", "list", "--data", str(server.data), env=environment(tmp_path))
        assert listed.returncode == 0, listed.stderr
