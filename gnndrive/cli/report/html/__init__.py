"""The page of `gnndrive report`: one HTML file of RUN.json files, without script or network.

- `reading.py`: reads and checks the files.
- `values.py`: how numbers and texts are written, all of them escaped.
- `drawing.py`: an SVG whose texts have known boxes; `bars.py`, `axes.py`, `figure.py`: what the
  figures share.
- `pipeline.py`, `timeline.py`, `memory.py`, `curve.py`, `strategies.py`, `headroom.py`,
  `choice.py`: a section each, made from one section of the file.
- `headline.py`: what ran, when and where. `style.py`: colours and sizes. `page.py`: all together.
"""

from gnndrive.cli.report.html.page import page
from gnndrive.cli.report.html.reading import read_run

__all__ = ["page", "read_run"]
