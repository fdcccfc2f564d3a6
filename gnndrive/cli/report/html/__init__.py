"""The page of `gnndrive report`: one HTML file of RUN.json files, without script or network.

- `reading.py`: reads and checks the files.
- `values.py`: how numbers, texts, tables and figures are written, all of them escaped.
- `pipeline.py`, `plots.py`, `bars.py`: the sections, each made from one section of the file.
- `style.py`: colours and sizes. `page.py`: what ran, when and where, and all together.
"""

from gnndrive.cli.report.html.page import page
from gnndrive.cli.report.html.reading import read_run

__all__ = ["page", "read_run"]
