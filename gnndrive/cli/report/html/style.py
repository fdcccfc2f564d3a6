"""The page's style: colours for light and for dark, and sizes. No text is told by its colour alone.

The colours of text have a contrast of 4.5 or more to what they stand on, those of lines and bars of
3 or more, in both schemes.
"""

from __future__ import annotations

LIGHT = {
    "page": "#f4f6f8", "card": "#ffffff", "raised": "#eef2f6", "text": "#1a2027",
    "muted": "#55606c", "edge": "#c9d1d9", "accent": "#0a58a8",
    "c1": "#1f6fbf", "c2": "#b3480b", "c3": "#1c7a3d", "c4": "#7d44b8",
    "grey": "#808b96",
}  # fmt: skip
DARK = {
    "page": "#0f1318", "card": "#171c23", "raised": "#212831", "text": "#e7ecf1",
    "muted": "#a3afbb", "edge": "#3b4450", "accent": "#7db8f7",
    "c1": "#5aa2ec", "c2": "#f0935a", "c3": "#55c07a", "c4": "#bb92ee",
    "grey": "#76828e",
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
small{display:block;font-size:.75rem}
h4{font-size:.8rem;margin:18px 0 12px}
.picture{font-size:.75rem;line-height:1.35}
.accent{color:var(--accent);font-weight:600}
ol{list-style:none;padding:0;margin:0}
.box{position:relative;border:1.2px solid var(--edge);border-radius:9px;padding:8px}
.box>b,.box>span{display:block}
.stage{background:var(--raised)}.queue{border:1.2px dashed var(--muted);border-radius:3px}
.place{background:var(--card)}
.most{border:3.5px solid var(--accent)}
.box ol{margin-top:6px}
.to,.down{position:relative;margin-top:24px}
.to::before,.down::before,.back::before{content:"";position:absolute;
border:4px solid transparent;border-top:6px solid var(--muted);border-bottom:0}
.to::before,.down::before{left:calc(50% - 4px);bottom:100%}
.to::after,.down::after{content:"";position:absolute;bottom:calc(100% + 4px);
left:calc(50% - .75px);height:18px;border-left:1.5px solid var(--muted)}
.flow{padding-right:24px}.loop{position:relative}
.back{color:var(--muted);margin-top:4px}
.back::after{content:"";position:absolute;right:-20px;top:64px;bottom:50px;width:20px;
border:1.5px solid var(--muted);border-left:0}
.back::before{right:-5px;top:62px;transform:rotate(90deg)}
.bars{width:100%;font-size:.75rem}
.bars *{border:0;max-width:none}
.bars tr,.bars th,.bars td{display:block;padding:0}
.bars tr{margin-bottom:12px}
.bars small{color:var(--muted)}
.track{position:relative;height:12px;margin:3px 6px 3px 0}
.track i{position:absolute;left:0;top:0;bottom:0}
.c1{background:var(--c1)}.c3{background:var(--c3)}.c4{background:var(--c4)}
.noise{background:var(--grey)}
.track .range{border:solid var(--text);border-width:0 1.6px;margin:2px 0;
background:linear-gradient(var(--text),var(--text)) center/100% 1.6px no-repeat}
.mark,.track .mark{position:absolute;width:9px;height:9px;top:1.5px;margin-left:-4.5px;
transform:rotate(45deg);background:var(--card);border:1.8px solid var(--text)}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;padding:0;margin:-8px 0 12px}
.legend i{display:inline-block;width:24px;margin-right:6px}
.legend .line{height:0;border-width:2px 0 0;vertical-align:middle}
.legend .fill{height:11px;vertical-align:-1px}
.plot{display:grid;grid-template-columns:58px 1fr;gap:0 6px;padding-right:24px;color:var(--muted)}
.y{display:flex;flex-direction:column;justify-content:space-between;text-align:right;
margin:-.675em 0}
.area{position:relative;height:96px;border:solid var(--edge);border-width:1px 0;
background:linear-gradient(var(--edge),var(--edge)) center/100% 1px no-repeat}
#curve .area{height:180px}
.area svg{position:absolute;width:100%;height:100%;overflow:visible}
.area i{position:absolute}.area .fill{box-sizing:content-box;padding-right:.5px}
.area .now{top:0;bottom:0;border-left:1.2px dashed var(--text)}
.area .mark{margin:-4.5px}
.x{grid-column:2;position:relative;height:20px}
.x span{position:absolute;top:4px;transform:translateX(-50%);white-space:nowrap}
.x span::before{content:"";position:absolute;left:50%;top:-4px;height:4px;
border-left:1px solid var(--edge)}
.x .wide{display:none}
polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}
polyline.k1{stroke:var(--c1)}
polyline.k2{stroke:var(--c2);stroke-dasharray:7 4}
polyline.k3{stroke:var(--c3);stroke-dasharray:2 3}
.line.k1{border-style:solid;border-color:var(--c1)}
.line.k2{border-style:dashed;border-color:var(--c2)}
.line.k3{border-style:dotted;border-color:var(--c3)}
.fill.k1{background:var(--c1)}
.fill.k2{background:repeating-linear-gradient(135deg,var(--c2) 0 4px,var(--card) 4px 5.6px)}
.fill.k3{background:radial-gradient(var(--card) 1.6px,transparent 2px) 0 0/8px 8px var(--c3)}
.fill.k4{background:repeating-linear-gradient(var(--c4) 0 3px,var(--card) 3px 4.6px)}
.picture i{forced-color-adjust:none;print-color-adjust:exact;-webkit-print-color-adjust:exact}
@media(min-width:900px){main{padding:24px 20px 64px}
header,section,nav{padding:22px 26px}
.tiles{grid-template-columns:repeat(auto-fill,minmax(210px,1fr))}
.x .wide{display:inline}
.bars tr{display:grid;grid-template-columns:156px 1fr 240px;gap:0 14px;margin-bottom:8px}
.bars td:nth-child(2){order:1}
.flow{display:grid;grid-template-columns:134fr 136fr 224fr 130fr 158fr 132fr;gap:0 24px;
align-items:start;padding:0}
.loop,.loop>ol{display:contents}
.flow .to{margin-top:0}
.flow .to::before{left:auto;right:100%;bottom:auto;top:15px;transform:rotate(-90deg)}
.flow .to::after{left:auto;right:calc(100% + 6px);bottom:auto;top:17px;width:17px;height:0;
border-left:0;border-top:1.5px solid var(--muted)}
.loop>ol>.box:first-child,.flow .last{align-self:stretch}
.last>ol{display:flex;flex-direction:column;height:100%}
.last>ol::after{content:"";flex:1;align-self:center;border-left:1.5px solid var(--muted)}
.loop>ol>.back{grid-column:3/7;position:relative;height:26px;margin:0 9.2% 0 15.6%;
border:1.5px solid var(--muted);border-top:0;text-align:center;padding-top:6px}
.loop>ol>.back::after{display:none}
.loop>ol>.back::before{left:-4.7px;right:auto;top:-6px;transform:rotate(180deg)}}
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
