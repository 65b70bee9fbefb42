"""The command line: ``python -m cflib``.

One function a command, and one that registers it with the parser; a command returns its exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cflib.catalogue import CATALOGUE

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; with no command, print the help."""
    parser = argparse.ArgumentParser(
        prog="python -m cflib", description="A compendium of clustered federated learning."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for register in (register_list, register_data, register_run, register_report):
        register(commands)
    arguments = parser.parse_args(argv)
    if "command" not in arguments:
        parser.print_help()
        return 0
    try:
        return int(arguments.command(arguments))
    except BrokenPipeError:  # the reader, e.g. ``head``, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def register_list(commands: Commands) -> None:
    """Add ``list``."""
    listing = commands.add_parser("list", help="show every method with its six choices, and what else has a name")
    listing.set_defaults(command=list_methods)


def list_methods(arguments: argparse.Namespace) -> int:
    """Print the grid, a block a method, a line a choice, and the other names that a run config can take."""
    from cflib import attacks, methods, partition
    from cflib.models import NETWORKS

    for row in methods.table():
        print(row.pop("method"))
        for choice, function in row.items():
            print(f"    {choice:<9} {function}")
    for kind, names in {"partitions": partition.SPLITS, "networks": NETWORKS, "attacks": attacks.MEANS}.items():
        print(f"{kind}: {', '.join(names)}")
    return 0


def register_data(commands: Commands) -> None:
    """Add ``data`` and ``data fetch NAME...``."""
    data = commands.add_parser("data", help="show which data sets are present, and fetch the others")
    data.set_defaults(command=show_data)
    fetch = data.add_subparsers(metavar="fetch").add_parser("fetch", help="fetch data sets into the cache")
    fetch.add_argument("names", nargs="+", choices=[*CATALOGUE, "all"], metavar="NAME", help="a data set, or all")
    fetch.set_defaults(command=fetch_data)


def show_data(arguments: argparse.Namespace) -> int:
    """Print a table: which data sets are present, from where, how large, and how to get the rest."""
    from cflib import datasets

    rows = [("name", "present", "from", "size", "how to get it")]
    for name, spec in CATALOGUE.items():
        cached = None if spec.embedded else datasets.load_cached(name)
        source = cached.source if cached else "scikit-learn" if spec.embedded else ""
        fetch = "" if source else f"python -m cflib data fetch {name} ({spec.megabytes} MB: {spec.ways})"
        rows.append((name, "yes" if source else "no", source, f"{spec.nbytes / 1e6:.1f} MB", fetch))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"\ncache: {datasets.cache_folder()} (CFLIB_CACHE); own files: a folder named by CFLIB_DATA")
    return 0


def fetch_data(arguments: argparse.Namespace) -> int:
    """Fetch data sets and say where each came from; 1 if any could not be had."""
    from cflib import datasets

    failed = False
    for name in CATALOGUE if "all" in arguments.names else dict.fromkeys(arguments.names):
        start = time.perf_counter()
        try:
            data = datasets.load(name)
        except datasets.DataUnavailable as error:
            print(error, file=sys.stderr)
            failed = True
        else:
            counts = f"{len(data.train_labels)} + {len(data.test_labels)} images"
            print(f"{name}: {counts} from {data.source}, verified, {time.perf_counter() - start:.1f} s", flush=True)
    return int(failed)


def register_run(commands: Commands) -> None:
    """Add ``run [SLUG...]``."""
    run = commands.add_parser("run", help="run notebooks; what is up to date is left alone, what was stopped goes on")
    run.add_argument("slugs", nargs="*", metavar="SLUG", help="01, louvain_cfl or 01_louvain_cfl; all if none is named")
    run.add_argument("--preset", default="quick", metavar="NAME", help="smoke, quick (default), long or paper")
    run.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="notebooks at once; one uses all cores (default 1)"
    )
    run.add_argument("-p", "--parameter", action="append", default=[], metavar="NAME=VALUE", help="set a parameter")
    run.add_argument("--sweep", action="append", default=[], metavar="NAME=V1,V2", help="run with each of the values")
    run.add_argument("--force", action="store_true", help="run also what is up to date")
    run.add_argument("--timeout", type=float, metavar="MINUTES", help="a notebook; 0: none; default: by preset")
    run.add_argument(
        "--output", type=Path, metavar="FOLDER", help="default: executed; sweeps with --sweep, or -p but parts"
    )
    run.add_argument("--list", action="store_true", help="show notebooks, presets and, of those named, parameters")
    run.set_defaults(command=run_notebooks)


def run_notebooks(arguments: argparse.Namespace) -> int:
    """Run notebooks; 1 if any failed, 2 if the command is refused, 130 or 143 if a signal stopped it."""
    from cflib import batch, notebooks
    from cflib.board import Board
    from cflib.jobs import plan

    try:
        place = notebooks.folder()
        if arguments.list:
            return list_notebooks(place, arguments.slugs)
        if arguments.jobs < 1 or (arguments.timeout or 0) < 0:
            raise ValueError("--jobs must be at least 1, --timeout at least 0")
        jobs, skipped = plan(
            place,
            arguments.slugs,
            preset=arguments.preset,
            settings=arguments.parameter,
            sweeps=arguments.sweep,
            output=arguments.output and arguments.output.expanduser().absolute(),
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for line in skipped:
        print(line)
    board = Board(sys.stdout, [job.name for job in jobs])
    return batch.run(jobs, at_once=arguments.jobs, minutes=arguments.timeout, force=arguments.force, board=board)


def list_notebooks(place: Path, slugs: Sequence[str]) -> int:
    """Print the notebooks with their presets and what has been run, and the parameters of those that are named."""
    from cflib import notebooks
    from cflib.board import clock
    from cflib.jobs import plan

    for path in notebooks.find(place, slugs):
        print(path.stem)
        for preset in notebooks.presets(path):
            (job,), _ = plan(place, [path.stem], preset=preset)
            state = "up to date" if job.current else "out of date" if job.output.is_file() else "not run yet"
            print(f"  --preset {preset:<6}  {state}{f', copy made in {clock(job.seconds)}' if job.seconds else ''}")
        for parameter in notebooks.parameters(path).values() if slugs else ():
            print(f"  {parameter}")
    return 0


def register_report(commands: Commands) -> None:
    """Add ``report``."""
    report = commands.add_parser("report", help="build the readable site from what has been run")
    report.add_argument("--output", type=Path, metavar="FOLDER", help="default: site, in the project's folder")
    report.set_defaults(command=build_report)


def build_report(arguments: argparse.Namespace) -> int:
    """Build the site and say where it is, and what could not be shown as it should; 2 if the folder is refused."""
    from cflib import notebooks, report
    from cflib.places import folder

    try:
        place = notebooks.folder()
        built = report.build(
            (arguments.output or place.parent / "site").expanduser().absolute(),
            executed=place / "executed",
            results=folder("results", "CFLIB_RESULTS"),
            records=folder("records", "CFLIB_RECORDS"),
            reference=folder("reference", "CFLIB_REFERENCE"),
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for complaint in built.complaints:
        print(complaint, file=sys.stderr)
    front = os.path.relpath(built.front)
    print(f"{front}: {built.claims} claims on {built.pages} pages; open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
