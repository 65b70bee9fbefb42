"""Certificates that a TLS handshake accepts, keys that only their owner can read, and the script that makes them."""

from __future__ import annotations

import runpy
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from cflib.flower.certificates import make_certificates, make_key
from cflib.flower.deployment import QUIET

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"


def shake_hands(server_folder: Path, authority: Path, host: str) -> str:
    """Complete a TLS handshake in memory and return the version agreed on."""
    hears, says = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server_folder / "server.crt", server_folder / "server.key")
    server = serving.wrap_bio(hears, says, server_side=True)
    client = ssl.create_default_context(cafile=str(authority)).wrap_bio(says, hears, server_hostname=host)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.version()


def test_the_servers_certificate_is_valid_for_its_names_and_addresses(tmp_path):
    make_certificates(tmp_path, ["fl.example.org", "192.0.2.10", "::1"])
    for host in ("fl.example.org", "192.0.2.10", "::1"):
        assert shake_hands(tmp_path, tmp_path / "ca.crt", host) == "TLSv1.3"


def test_another_host_and_another_authority_are_refused(tmp_path):
    make_certificates(tmp_path / "a", ["localhost"])
    make_certificates(tmp_path / "b", ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(tmp_path / "a", tmp_path / "a" / "ca.crt", "other.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path / "a", tmp_path / "b" / "ca.crt", "localhost")


def test_private_keys_are_readable_by_their_owner_alone(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    make_key(tmp_path, "oslo")
    for name in ("ca.key", "server.key", "oslo"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "oslo.pub").read_text().startswith("ecdsa-sha2-nistp384 ")


def test_the_script_makes_what_is_missing_and_replaces_nothing(tmp_path):
    command = [sys.executable, str(DEPLOY / "lab.py"), "--folder", str(tmp_path), "keys", "--host", "localhost"]
    subprocess.run([*command, "--nodes", "oslo"], check=True, capture_output=True)
    before = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    subprocess.run([*command, "--nodes", "oslo", "rome"], check=True, capture_output=True)
    after = {path.name: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    assert set(after) - set(before) == {"rome", "rome.pub"}
    assert {name: after[name] for name in before} == before
    refused = subprocess.run([*command, "--host", "fl.example.org", "--nodes", "oslo"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "not for ['fl.example.org']: name another --folder" in refused.stdout


def test_the_script_takes_settings_before_between_and_after_options(tmp_path):
    parse = runpy.run_path(str(DEPLOY / "lab.py"))["parse"]
    node = parse(["supernode", "rome", "--superlink", "fl.example.org:8000", "data=a b", "--port", "9095", "fast=true"])
    assert (node.name, node.superlink, node.port) == ("rome", "fl.example.org:8000", "9095")
    assert node.settings == {"data": "a b", "fast": True}
    demo = parse(["demo", "method=flic(round=3)", "--nodes", "3", "rounds=2", "share=0.5"])
    assert demo.settings == {"method": "flic(round=3)", "rounds": 2, "share": 0.5}
    for wrong in (["demo", "--round", "2"], ["keys", "--host", "a", "--nodes", "b", "c=d", "--x"], ["demo", "rounds"]):
        with pytest.raises(SystemExit):
            parse(wrong)


def test_the_environment_to_source_is_the_one_that_tests_run_in():
    text = (DEPLOY / "environment.sh").read_text()
    exported = dict(line.removeprefix("export ").split("=") for line in text.splitlines() if line.startswith("export"))
    assert exported == QUIET
    assert (exported["FLWR_TELEMETRY_ENABLED"], exported["RAY_USAGE_STATS_ENABLED"]) == ("0", "0")
