"""A federation over TLS with registered nodes: all on this machine, or one part of it on each of several.

``python deploy/lab.py demo --nodes 4 method=louvain_cfl_1nn rounds=3`` does everything here, on the loopback address.
The other commands are its steps, for real machines: deploy/README.md tells which to call where.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from cflib.flower.certificates import make_certificates, make_key, server_hosts
from cflib.flower.deployment import QUIET, Lab, toml


def main() -> int:
    """Run one command and return its exit code."""
    arguments = parse(sys.argv[1:])
    return int(arguments.command(arguments))


def parse(texts: list[str]) -> argparse.Namespace:
    """Read the command line; settings may stand before, between and after options."""
    parser = argparse.ArgumentParser(prog="deploy/lab.py", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("lab"), help="where keys, logs and records go (lab)")
    commands = parser.add_subparsers(title="commands", required=True)

    demo = commands.add_parser("demo", help="all of it on this machine: keys, SuperLink, SuperNodes, a run")
    demo.add_argument("--nodes", type=int, default=4, help="number of SuperNodes (4)")
    demo.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="run config, e.g. method=fedavg rounds=3")
    demo.set_defaults(command=run_demo)

    keys = commands.add_parser("keys", help="make an authority, the server's certificate and a key for each node")
    keys.add_argument("--host", action="append", required=True, help="name or address of the server; repeatable")
    keys.add_argument("--nodes", nargs="+", required=True, metavar="NAME", help="names of the nodes, e.g. oslo rome")
    keys.set_defaults(command=make_keys)

    superlink = commands.add_parser("superlink", help="start the SuperLink here and keep it running")
    superlink.add_argument("--host", default="0.0.0.0", help="address to listen on (0.0.0.0: all)")
    superlink.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
    superlink.set_defaults(command=start_superlink)

    supernode = commands.add_parser("supernode", help="start a SuperNode here and keep it running")
    supernode.add_argument("name", help="the node's name: keys/NAME is its private key")
    supernode.add_argument("--superlink", required=True, metavar="HOST:PORT", help="where the SuperLink listens")
    supernode.add_argument("--port", default="9094", help="port for its own use on this machine (9094)")
    supernode.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="node config, e.g. data=/srv/cfl")
    supernode.set_defaults(command=start_supernode)

    arguments, rest = parser.parse_known_args(texts)
    if rest and ("settings" not in arguments or any(text.startswith("-") for text in rest)):
        parser.error(f"not understood: {' '.join(rest)}")
    if "settings" in arguments:
        arguments.settings = read_settings([*arguments.settings, *rest])
    arguments.folder = arguments.folder.expanduser().absolute()
    return arguments


def run_demo(arguments: argparse.Namespace) -> int:
    """Do everything on this machine and print the log of the run."""
    sites = [f"site{i}" for i in range(arguments.nodes)]
    records = arguments.folder / "records"
    with Lab(arguments.folder) as lab:
        print(f"SuperLink with TLS on port {lab.port} …", flush=True)
        lab.start_superlink()
        print(f"{len(sites)} registered SuperNodes …", flush=True)
        for i, site in enumerate(sites):
            lab.start_supernode(site, config={"partition-id": i})
        config = {"names": ",".join(sites), "records": str(records), **arguments.settings}
        print(lab.run(config))
    print(f"records and models are in {records}")
    return 0


def make_keys(arguments: argparse.Namespace) -> int:
    """Make certificates and node keys; refuse to replace an authority that nodes may already trust."""
    keys = arguments.folder / "keys"
    if not (keys / "ca.crt").exists():
        make_certificates(keys, arguments.host)
    elif missing := sorted(set(arguments.host) - set(server_hosts(keys))):
        print(f"{keys} has a certificate for {server_hosts(keys)}, not for {missing}: name another --folder")
        return 1
    for name in arguments.nodes:
        if not (keys / name).exists():
            make_key(keys, name)
    print(f"{keys}: ca.crt for every machine; server.crt and server.key stay here; NAME goes to the node of that name")
    return 0


def start_superlink(arguments: argparse.Namespace) -> int:
    """Become the SuperLink."""
    keys = arguments.folder / "keys"
    trust = ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
    trust += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]
    where = ["--host", arguments.host, "--port", arguments.port, "--database", arguments.folder / "state.db"]
    return become("flower-superlink", *trust, *where)


def start_supernode(arguments: argparse.Namespace) -> int:
    """Become a SuperNode."""
    keys = arguments.folder / "keys"
    trust = ["--root-certificates", keys / "ca.crt", "--auth-supernode-private-key", keys / arguments.name]
    where = ["--superlink", arguments.superlink, "--port", arguments.port]
    config = " ".join(f"{key}={toml(value)}" for key, value in arguments.settings.items())
    return become("flower-supernode", *trust, *where, *(["--node-config", config] if config else []))


def become(command: str, *arguments: object) -> int:
    """Replace this process by a command of the same environment, with Flower's telemetry and installer off."""
    program = Path(sys.executable).parent / command
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execve(program, [command, *map(str, arguments)], {**os.environ, **QUIET, "PATH": path})
    return 1


def read_settings(texts: list[str]) -> dict[str, Any]:
    """Read ``KEY=VALUE``; a value is a number or true or false if it can be, else words."""
    found: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not value:
            raise SystemExit(f"{text!r}: write KEY=VALUE, e.g. rounds=3")
        try:
            plain = json.loads(value)
        except ValueError:
            plain = value
        found[key] = plain if isinstance(plain, (bool, int, float)) else value
    return found


if __name__ == "__main__":
    sys.exit(main())
