"""The page's style: colours for light and for dark, and sizes. No text is told by its colour alone.

The colours of text have a contrast of 4.5 or more to what they stand on, those of lines and bars of
3 or more, in both schemes.
"""

from __future__ import annotations

LIGHT = {
    "page": "#f4f6f8", "card": "#ffffff", "raised": "#eef2f6", "text": "#1a2027",
    "muted": "#55606c", "edge": "#c9d1d9", "accent": "#0a58a8",
    "c1": "#1f6fbf", "c2": "#b3480b", "c3": "#1c7a3d", "c4": "#7d44b8",
}  # fmt: skip
DARK = {
    "page": "#0f1318", "card": "#171c23", "raised": "#212831", "text": "#e7ecf1",
    "muted": "#a3afbb", "edge": "#3b4450", "accent": "#7db8f7",
    "c1": "#5aa2ec", "c2": "#f0935a", "c3": "#55c07a", "c4": "#bb92ee",
}  # fmt: skip

_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);line-height:1.5;font-size:16px;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:16px 12px 48px}
h1{font-size:1.1rem;margin:4px 0 16px;color:var(--muted);font-weight:600}
h2{font-size:1.35rem;line-height:1.3;margin:0 0 6px;overflow-wrap:anywhere}
h3{font-size:1rem;margin:0 0 8px;overflow-wrap:anywhere}
p{margin:0 0 10px;overflow-wrap:anywhere}
header,section,nav{background:var(--card);border:1px solid var(--edge);border-radius:10px;
padding:16px 12px;margin:0 0 16px}
figure{margin:0 0 8px}
figure+h3{margin-top:28px}
figcaption{color:var(--muted);margin:0 0 14px;max-width:75ch}
.muted{color:var(--muted)}
.verdict{font-size:1.15rem;font-weight:600;border-left:5px solid var(--accent);
padding:4px 0 4px 12px;max-width:60ch}
.says{font-weight:600;margin:0 0 6px;max-width:75ch}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));gap:8px;margin:14px 0}
.tiles div{background:var(--raised);border-radius:8px;padding:8px 10px;display:flex;
flex-direction:column-reverse;justify-content:flex-end}
dt{color:var(--muted);font-size:.85rem;line-height:1.3}
dd{margin:0;font-size:1.2rem;font-weight:600}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85rem}
code{background:var(--raised);border-radius:4px;padding:1px 5px;overflow-wrap:anywhere;
-webkit-box-decoration-break:clone;box-decoration-break:clone}
pre{background:var(--raised);border-radius:8px;padding:10px;overflow-x:auto}
.command{color:var(--muted);font-size:.85rem;margin:10px 0 0}
details{margin:10px 0 0}
summary{cursor:pointer;color:var(--accent);padding:4px 0}
a{color:var(--accent)}
nav ul{display:flex;flex-wrap:wrap;gap:4px 22px;list-style:none;padding:0;margin:0}
ul{padding-left:20px;margin:8px 0}
li{overflow-wrap:anywhere}
.scroll{overflow-x:auto;margin:8px 0}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:5px 14px 5px 0;border-bottom:1px solid var(--edge)}
td,th{min-width:4.5em;max-width:26em}
thead th{color:var(--muted);font-weight:600}
tbody th{font-weight:600}
tr.strong th,tr.strong td{background:var(--raised);font-weight:600}
.wide,.narrow{overflow:hidden}
.wide{display:none}
svg{display:block;width:100%;height:auto;max-width:420px}
.wide svg{max-width:none}
@media(min-width:900px){.wide{display:block}.narrow{display:none}main{padding:24px 20px 64px}
header,section,nav{padding:22px 26px}
.tiles{grid-template-columns:repeat(auto-fill,minmax(210px,1fr))}}
svg text{font-size:12px;fill:var(--text)}
svg .bold{font-weight:600}
svg text.muted{fill:var(--muted)}
svg .accent{fill:var(--accent);font-weight:600}
.bar.c1,.c1{fill:var(--c1)}.bar.c3,.c3{fill:var(--c3)}.c2{fill:var(--c2)}.c4{fill:var(--c4)}
.box{stroke:var(--edge);stroke-width:1.2}
.stage{fill:var(--raised)}.queue{fill:var(--card);stroke:var(--muted);stroke-dasharray:5 3}
.place{fill:var(--card)}
.most{stroke:var(--accent);stroke-width:3.5;stroke-dasharray:none}
polyline{fill:none}
.arrow{stroke:var(--muted);stroke-width:1.5}.head{fill:var(--muted)}
.grid{stroke:var(--edge);stroke-width:1}
.whisker{stroke:var(--text);stroke-width:1.6}
.mark{fill:var(--card);stroke:var(--text);stroke-width:1.8}
.line{stroke-width:2}
.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}
.dash{stroke-dasharray:7 4}.dots{stroke-dasharray:2 3}.dash-dots{stroke-dasharray:8 3 2 3}
.now{stroke:var(--text);stroke-width:1.2}
.ink{stroke:var(--card);stroke-width:1.6;fill:none}.dot{fill:var(--card)}
.column{stroke:none}
@media(forced-colors:active){svg text{fill:CanvasText}}
"""


def stylesheet() -> str:
    """The page's CSS."""
    light, dark = (
        ";".join(f"--{name}:{colour}" for name, colour in colours.items())
        for colours in (LIGHT, DARK)
    )
    scheme = f":root{{color-scheme:light dark;{light}}}"
    scheme += f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return scheme + _RULES.replace("\n", "")
