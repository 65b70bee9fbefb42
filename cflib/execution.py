"""One notebook, executed by papermill in a process of its own: ``python -m cflib.execution FOLDER``.

The folder holds ``source.ipynb`` and ``request.json``; what comes back is ``result.ipynb`` or ``error.json``, and
meanwhile ``progress.json`` and, while runs are computed, their own line of progress in ``says.txt``. The process lives
no longer than the one that holds the other end of its standard input, and takes its kernel along, so that a killed
runner leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cflib.files import write_atomically
from cflib.provenance import PROJECT, provenance
from cflib.tidying import tidy

START_SECONDS = 120
"""How long a kernel may take to answer for the first time: a busy machine needs more than papermill's minute."""

_HIJACKERS = ("JUPYTER_", "JPY_", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "IPYTHONDIR", "MPLBACKEND")


def fingerprint(source: Path, parameters: Mapping[str, Any]) -> str:
    """Return a digest of what an executed copy depends on: its cells and parameters, reference data, and modules.

    The modules are those of cflib that the cells name, and those that these name in turn.
    """
    cells = [[cell["cell_type"], "".join(cell["source"])] for cell in json.loads(source.read_text("utf-8"))["cells"]]
    digest = hashlib.sha256(json.dumps([cells, dict(parameters)], sort_keys=True).encode())
    modules = _modules("\n".join(text for kind, text in cells if kind == "code"))
    reference = (path for path in (PROJECT / "data" / "reference").rglob("*") if path.is_file())
    for path in sorted((*modules, *reference)):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:20]


def stamp(executed: Path) -> dict[str, Any]:
    """Return what an executed copy says about its making, with its time and parameters; nothing if it says nothing."""
    try:
        metadata = json.loads(executed.read_text("utf-8"))["metadata"]
        made = metadata["papermill"]
        return {**metadata["cflib"], "seconds": float(made["duration"]), "parameters": made.get("parameters", {})}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def environment(work: Path) -> dict[str, str]:
    """Return this process's environment without what could slip another kernel, profile or package underneath.

    Of a checkout, the notebook gets the very cflib that runs it, even if another one is installed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIJACKERS)}
    if (PROJECT / "pyproject.toml").is_file():
        kept["PYTHONPATH"] = str(PROJECT)
    own = {"IPYTHONDIR": "ipython", "JUPYTER_RUNTIME_DIR": "runtime", "CFLIB_PROGRESS": "says.txt"}
    return kept | {variable: str(work / name) for variable, name in own.items()}


def execute(work: Path) -> None:
    """Execute ``source.ipynb`` of a folder as ``request.json`` asks and write ``result.ipynb``, or raise.

    Cells see this interpreter whatever kernel the notebook names; ``output.ipynb`` grows cell by cell.
    """
    import nbformat
    import papermill

    request = json.loads((work / "request.json").read_text("utf-8"))
    state: dict[str, int] = {}

    def report(**facts: int) -> None:
        state.update(facts)
        write_atomically(work / "progress.json", json.dumps(state), durable=False)

    papermill.execute_notebook(
        work / "source.ipynb",
        work / "output.ipynb",
        request["parameters"],
        kernel_name="python3",
        language="python",
        progress_bar=False,
        start_timeout=START_SECONDS,
        iopub_timeout=START_SECONDS,
        record_timing=False,
        kernel_manager_class=_own_kernel(report),
        on_notebook_start=lambda notebook: report(cells=len(notebook.cells)),
        on_cell_start=lambda cell, cell_index: report(cell=cell_index + 1),
    )
    notebook = nbformat.read(work / "output.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    tidy(notebook)
    notebook.metadata.papermill = {
        "duration": round(notebook.metadata.papermill.duration, 1),
        "input_path": request["source"],
        "output_path": request["output"],
        "parameters": request["parameters"],
    }
    notebook.metadata.cflib = {"fingerprint": request["fingerprint"], "provenance": provenance()}
    write_atomically(work / "result.ipynb", nbformat.writes(notebook) + "\n")  # type: ignore[no-untyped-call]


def main(folder: str) -> int:
    """Execute the notebook of a folder and return 0, or leave ``error.json`` there and return 1."""
    work = Path(folder)
    threading.Thread(target=_follow_runner, args=(work,), daemon=True).start()
    try:
        execute(work)
    except Exception as error:
        write_atomically(work / "error.json", json.dumps(_explain(error)))
        return 1
    return 0


def _modules(code: str) -> set[Path]:
    """Return the modules of cflib that a code names, directly or through others; all if it renames the package."""
    package = Path(__file__).parent
    if re.search(r"\bimport cflib as\b", code):
        return set(package.rglob("*.py"))
    found, unread = {package / "__init__.py"}, [code]
    while unread:
        text = unread.pop()
        named = re.findall(r"\bcflib\.(\w+(?:\.\w+)?)", text)
        for where, several in re.findall(r"\bfrom cflib\.?(\w*) import\s*(\([^)]*\)|[^\n]*)", text):
            named += [f"{where}.{name}" for name in re.findall(r"\w+", several)]
        parts = [name.strip(".").split(".") for name in named]
        tails = [tail for part in parts for tail in (f"{part[0]}.py", f"{part[0]}/__init__.py", "/".join(part) + ".py")]
        new = {path for tail in tails if (path := package / tail).is_file()} - found
        found |= new
        unread += [path.read_text("utf-8") for path in new]
    return found


def _own_kernel(report: Callable[..., None]) -> type:
    """Return a kernel manager that looks nowhere for kernels: it starts this interpreter, and reports its group."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    class OwnKernel(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _nowhere_else(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])

        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            await super().start_kernel(**options)
            report(kernel=self.provisioner.pid)  # type: ignore[union-attr]

    return OwnKernel


def _follow_runner(work: Path) -> None:
    """Wait for the end of standard input, which the runner keeps open while it lives; then go, kernel included."""
    while os.read(0, 1):
        pass
    with suppress(OSError, ValueError, KeyError):
        os.killpg(json.loads((work / "progress.json").read_text("utf-8"))["kernel"], signal.SIGKILL)
    shutil.rmtree(work, ignore_errors=True)
    os._exit(1)


def _explain(error: Exception) -> dict[str, Any]:
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError, strip_color

    if isinstance(error, PapermillExecutionError):
        lines = strip_color("\n".join(error.traceback)).splitlines()
        return {"name": error.ename, "message": strip_color(error.evalue), "traceback": lines}
    message = str(error)
    if isinstance(error, DeadKernelError):
        message += ": often memory ran out; try --jobs 1 or a smaller preset"
    return {"name": type(error).__name__, "message": message, "traceback": []}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
