"""Run the notebooks and store what they print and draw: python notebooks/run.py."""

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
WIDGET = "application/vnd.jupyter.widget-view+json"  # a progress bar


def run_notebook(path: Path) -> Any:
    """Run a notebook in a fresh kernel, from top to bottom, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # the times of its run
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [
                output for output in cell.outputs if WIDGET not in output.get("data", {})
            ]
    notebook.metadata.pop("widgets", None)
    return notebook


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(nbformat.writes(run_notebook(path)) + "\n", "utf-8")
