"""Look at the page of `gnndrive report` in Chromium: whether anything overlaps or is out of sight.

It shows the samples of tests/cli/report/html at four widths, folded and not. .ci/run calls it where
there is a Chromium (Debian's package chromium, 0.4 GB, so that it is not installed for it).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.cli.report.html.conftest import page_in
from tests.cli.report.html.samples import RUNS

LOOK = """<!DOCTYPE html><body style="margin:0"><pre id="said"></pre>
<script>
// The boxes of every text, line by line: two that overlap, or one that reaches out of the page.
// What a box of its own scrolls is measured up to that box.
function look(page, width) {
  const found = [], boxes = [];
  if (page.documentElement.scrollWidth > width)
    found.push('the page is ' + page.documentElement.scrollWidth + ' px wide');
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), range = page.createRange();
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
    if (!text || !parent.checkVisibility()) continue;
    const box = parent.closest('.scroll,pre');
    const room = box ? box.getBoundingClientRect() : {left: 0, right: width};
    range.selectNodeContents(walk.currentNode);
    for (const r of range.getClientRects()) {
      const left = Math.max(r.left, room.left), right = Math.min(r.right, room.right);
      if (right - left < 1 || r.height < 1) continue;
      if (left < -0.5 || right > width + 0.5) found.push('out of the page: ' + text);
      // Between lines of a paragraph, boxes of code may touch: what is written is less high.
      const air = 0.18 * r.height;
      boxes.push({left, right, top: r.top + air, bottom: r.bottom - air, text});
    }
  }
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
    const beside = a.left >= b.right - 1 || b.left >= a.right - 1;
    if (!beside && a.top < b.bottom - 1 && b.top < a.bottom - 1)
      found.push('overlap: ' + a.text + ' | ' + b.text);
  }));
  return {found, lines: boxes.length};
}
(async () => {
  const said = {};
  for (const [name, content] of Object.entries(PAGES)) for (const width of [320, 400, 768, 1600]) {
    const frame = document.createElement('iframe');
    frame.style = `border:0; width:${width}px; height:3000px`;
    frame.srcdoc = content;
    document.body.append(frame);
    await new Promise(loaded => frame.onload = loaded);
    const page = frame.contentDocument;
    for (const open of [false, true]) {
      for (const each of page.querySelectorAll('details')) each.open = open;
      said[`${name}, ${width} px, ${open ? 'open' : 'closed'}`] = look(page, width);
    }
    frame.remove();
  }
  document.getElementById('said').textContent = JSON.stringify(said);
})();
</script>"""


def look(pages: dict[str, str], folder: Path) -> dict[str, Any]:
    """What is wrong with each page at each width, folded and not, and its lines of text."""
    file = folder / "look.html"
    file.write_text(LOOK.replace("PAGES", json.dumps(pages).replace("<", "\\u003c")))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000"]
    told = subprocess.run(
        ["chromium", *flags, "--dump-dom", f"file://{file}"],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    said = re.search(r'<pre id="said">(.+?)</pre>', told, re.S)
    if said is None:
        sys.exit("the script did not run")
    seen: dict[str, Any] = json.loads(unescape(said[1]))
    return seen


if __name__ == "__main__":
    runs = {kind: run() for kind, run in RUNS.items()}
    with tempfile.TemporaryDirectory() as name:
        pages = {kind: page_in(Path(name), run) for kind, run in runs.items()}
        seen = look(pages | {"all": page_in(Path(name), *runs.values())}, Path(name))
    for state, each in seen.items():
        print(f"{state}: {each['lines']} lines of text")
    if wrong := [f"{state}: {one}" for state, each in seen.items() for one in each["found"]]:
        sys.exit("\n".join(dict.fromkeys(wrong)))
