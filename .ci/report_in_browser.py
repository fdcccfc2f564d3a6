"""Look at the page of `gnndrive report` in Chromium: what is shown, and whether anything overlaps.

It shows the samples of tests/cli/report/html, at four widths and in both schemes.
.ci/run calls it where there is a Chromium (Debian's package chromium, 0.4 GB, so that it is not
installed for it).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gnndrive.cli.report.html import page, read_run  # noqa: E402
from tests.cli.report.html.samples import RUNS  # noqa: E402

WIDTHS = (320, 400, 768, 1600)
# Every text's boxes, line by line; two that overlap, or one that reaches out of the page or cannot
# be seen. What a box of its own scrolls is measured up to that box.
LOOK = """
<script>
const found = [], boxes = [], clip = e => { const s = e.closest('.scroll,pre');
  return s ? s.getBoundingClientRect() : {left: 0, right: innerWidth} };
for (const d of document.querySelectorAll('details')) d.open = OPEN;
if (document.documentElement.scrollWidth > innerWidth)
  found.push('the page is ' + document.documentElement.scrollWidth + ' px wide');
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const node = walk.currentNode, parent = node.parentElement, text = node.textContent.trim();
  if (!text || parent.closest('script') || !parent.checkVisibility()) continue;
  const range = document.createRange(), room = clip(parent);
  range.selectNodeContents(node);
  for (const r of range.getClientRects()) {
    const left = Math.max(r.left, room.left), right = Math.min(r.right, room.right);
    if (right - left < 1 || r.height < 1) continue;
    if (left < -0.5 || right > innerWidth + 0.5) found.push('out of the page: ' + text);
    // Between lines of a paragraph, boxes of code may touch: what is written is less high.
    const air = 0.18 * r.height;
    boxes.push({left, right, top: r.top + air, bottom: r.bottom - air, text});
  }
}
boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
  if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    found.push('overlap: ' + a.text + ' | ' + b.text);
}));
const shown = boxes.map(b => b.text);
parent.postMessage({name: 'NAME', found, shown}, '*');
</script>
"""
FRAMES = """<!DOCTYPE html><body style="margin:0"><pre id="said"></pre>
<script>const said = [];
onmessage = e => { said.push(e.data);
  document.getElementById('said').textContent = JSON.stringify(said) }
</script>"""
FRAME = '<iframe src="{}" style="border:0;display:block;width:{}px;height:{}px"></iframe>'


def chromium(*words: str) -> str:
    """What a headless Chromium prints."""
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files")
    return subprocess.run(
        ["chromium", *flags, *words], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def look(contents: dict[str, str], folder: Path) -> dict[str, dict[str, list[str]]]:
    """What a browser shows of each page at each width, folded and not; and what is wrong."""
    frames = FRAMES
    names = []
    for number, (what, content) in enumerate(contents.items()):
        # Its policy would not run the script.
        content = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", content)
        for width in WIDTHS:
            for state in ("closed", "open"):
                names.append(f"{what}, {width} px, {state}")
                script = LOOK.replace("OPEN", "true" if state == "open" else "false")
                file = folder / f"{number}-{width}-{state}.html"
                script = script.replace("NAME", names[-1])
                file.write_text(content.replace("</body>", f"{script}</body>"))
                frames += FRAME.format(file.name, width, 3000)
    (folder / "frames.html").write_text(frames)
    told = chromium("--virtual-time-budget=30000", "--dump-dom", f"file://{folder}/frames.html")
    said = re.search(r'<pre id="said">(.*?)</pre>', told, re.S)
    seen = {each["name"]: each for each in json.loads(unescape(said[1]) or "[]")} if said else {}
    missing = [name for name in names if name not in seen]
    if missing:
        sys.exit(f"the script did not run in: {'; '.join(missing)}")
    return seen


def pages(folder: Path) -> dict[str, str]:
    """The pages to look at, by name: one for each kind, and one of all."""
    written = {}
    for kind, run in RUNS.items():
        written[kind] = folder / f"{kind}.json"
        written[kind].write_text(json.dumps(run()))
    parts = {kind: read_run(path) for kind, path in written.items()}
    found = {kind: page([written[kind]], [part]) for kind, part in parts.items()}
    return found | {"all": page(list(written.values()), list(parts.values()))}


def main() -> None:
    """Look at the pages; exit with what is wrong, if anything is."""
    with tempfile.TemporaryDirectory() as name:
        seen = look(pages(Path(name)), Path(name))
    for state, each in seen.items():
        print(f"{state}: {len(each['shown'])} lines of text")
    wrong = [f"{state}: {one}" for state, each in seen.items() for one in each["found"]]
    if wrong:
        sys.exit("\n".join(dict.fromkeys(wrong)))


if __name__ == "__main__":
    main()
