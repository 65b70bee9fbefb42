"""A Flower federation of real processes on this machine: certificates, keys, a SuperLink, SuperNodes, and runs on it.

For one machine: trying a deployment out, and testing it. ``deploy/README.md`` tells how to do the same across several.
Nothing is installed or reported anywhere: Flower's telemetry, update check and dependency installation are off.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cflib.flower.certificates import make_certificates, make_key

PROJECT = Path(__file__).resolve().parents[2]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
"""The environment of every Flower process: it tells nobody, installs nothing, and trains as in one process.

Ray's workers are as important as all else: on a busy machine they would otherwise hardly run.
"""
COLOURFUL = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS")  # a notebook sets them; they spoil JSON


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def toml(value: Any) -> str:
    """Write a value of a Flower configuration, e.g. ``"flic(round=3)"`` in quotes."""
    return json.dumps(value)  # strings, numbers and truth values are written alike in JSON and TOML


class Lab:
    """A SuperLink and SuperNodes under one folder; a context manager that ends every process it started.

    With ``simulation`` the SuperLink runs clients itself, in Ray workers; otherwise over TLS, on registered SuperNodes.
    """

    def __init__(self, folder: Path, *, simulation: bool = False, patience: float = 3600.0) -> None:
        self.folder, self.simulation, self.port = folder.absolute(), simulation, free_port()
        self.patience = patience
        """Seconds that a command, and so a whole run, may take."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.app = self.folder / "app"
        self.home = self.folder / "home"
        shutil.rmtree(self.app, ignore_errors=True)
        shutil.copytree(PROJECT / "cflib", self.app / "cflib", ignore=shutil.ignore_patterns("__pycache__", "site"))
        shutil.copy(PROJECT / "pyproject.toml", self.app)
        self.home.mkdir(parents=True, exist_ok=True)
        if not simulation and not (self.folder / "keys" / "ca.crt").exists():
            make_certificates(self.folder / "keys", ["localhost", "127.0.0.1"])
        trust = "insecure = true" if simulation else f"root-certificates = {toml(str(self.folder / 'keys' / 'ca.crt'))}"
        (self.home / "config.toml").write_text(f'[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n{trust}\n')

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.processes):
            self.stop(name)

    def start_superlink(self, *, seconds: float = 60.0) -> None:
        """Start the SuperLink and wait until it answers; its database outlives it."""
        keys = self.folder / "keys"
        trust = (
            ["--insecure", "--simulation"]
            if self.simulation
            else [
                *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")),
                *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
            ]
        )
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._start("superlink", ["flower-superlink", *address, *trust, "--database", str(self.folder / "state.db")])
        deadline = time.monotonic() + seconds
        while not self._answers():
            if self.processes["superlink"].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the SuperLink does not answer on port {self.port}:\n{self.log('superlink')}")
            time.sleep(0.2)

    def start_supernode(self, name: str, *, config: Mapping[str, Any] | None = None, register: bool = True) -> None:
        """Start a SuperNode with a key of its own, which is made and registered under its name if it is new."""
        keys = self.folder / "keys"
        if not (keys / name).exists():
            make_key(keys, name)
            if register:
                self.flwr("supernode", "register", str(keys / f"{name}.pub"), "lab", "--name", name)
        settings = " ".join(f"{key}={toml(value)}" for key, value in (config or {}).items())
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        trust = ["--root-certificates", str(keys / "ca.crt"), "--auth-supernode-private-key", str(keys / name)]
        self._start(name, [*command, *trust, "--node-config", settings])

    def run(self, config: Mapping[str, Any], *, nodes: int | None = None) -> str:
        """Run the app and return its log; ``nodes`` is for a simulation. Raises ``RuntimeError`` if it failed."""
        return self.wait(self.submit(config, nodes=nodes))

    def submit(self, config: Mapping[str, Any], *, nodes: int | None = None) -> str:
        """Hand the app to the SuperLink, with this run config, and return the number of the run."""
        settings = self.folder / "run.toml"  # on a command line, Flower would trip over quotes within a value
        settings.write_text("".join(f"{key} = {toml(value)}\n" for key, value in config.items()))
        size = ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"] if nodes else []
        said = self.flwr("run", str(self.app), "lab", "--run-config", str(settings), *size, "--format", "json")
        return str(json.loads(said)["run-id"])

    def wait(self, number: str) -> str:
        """Return the log of a run when it has ended; raise ``RuntimeError`` if it failed."""
        log = re.sub("\x1b\\[[0-9;]*m", "", self.flwr("log", number, "lab", "--stream"))
        if (status := self.status(number)) != "finished:completed":
            raise RuntimeError(f"run {number} is {status}:\n{log[-4000:]}\n{self.log('superlink')}")
        return log

    def status(self, number: str) -> str:
        """Return the state of a run, e.g. ``running`` or ``finished:completed``."""
        return str(json.loads(self.flwr("list", "lab", "--run-id", number, "--format", "json"))["runs"][0]["status"])

    def flwr(self, *arguments: str) -> str:
        """Call Flower's command line and return what it printed; raise ``RuntimeError`` if it failed."""
        done = subprocess.run(
            ["flwr", *arguments], env=self.environment, capture_output=True, text=True, timeout=self.patience
        )
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def log(self, name: str, last: int = 4000) -> str:
        """Return the end of a process's log."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-last:] if path.exists() else ""

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM, *, seconds: float = 10.0) -> None:
        """End a process and those that it started: kindly, or with ``SIGKILL`` as a crash would."""
        process = self.processes.pop(name)
        for each in (how, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(each)
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every process: Flower's commands on the path, its files in the lab's own folder."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        plain = {name: value for name, value in os.environ.items() if name not in COLOURFUL}
        return {**plain, **QUIET, "PATH": path, "FLWR_HOME": str(self.home)}

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def _answers(self) -> bool:
        scheme, context = "http", None
        if not self.simulation:
            scheme, context = "https", ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.crt"))
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{self.port}/health", timeout=2, context=context):
                return True
        except OSError:
            return False


_LIBC = ctypes.CDLL(None)  # loaded before any process is started


def _end_with_parent() -> None:
    """Ask Linux to end this process when the one that started it is gone, even if that was killed."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
