"""Looks and behaviour of the page. Colours have a name each and two values, for light and for dark surroundings."""

from __future__ import annotations

_LIGHT = {
    "back": "#ffffff",
    "soft": "#f6f7f9",
    "line": "#e2e5ea",
    "ink": "#1c2129",
    "muted": "#5f6b7a",
    "cached": "#2a9668",
    "cached-back": "#dcf3e7",
    "cached-ink": "#1c7a53",
    "computed": "#3f74cf",
    "computed-back": "#e3edfc",
    "computed-ink": "#2d5cad",
    "generated": "#e79a28",
    "generated-back": "#fdf0d9",
    "generated-ink": "#9a5b00",
    "wait": "#c9ced6",
    "busy": "#9d86cf",
    "bad": "#c7352c",
    "bad-back": "#fdeceb",
    "chosen": "#eef6f2",
    "mark": "#6b4fb3",
    "mark-back": "#efeafa",
    "focus": "#1f6feb",
    "heat0": "#e3e6ea",
    "heat1": "#cde9dc",
    "heat2": "#a2d8bf",
    "heat3": "#6cc19b",
    "heat4": "#37a377",
    "heat5": "#1a7d57",
}
_DARK = {
    "back": "#14171c",
    "soft": "#1b1f26",
    "line": "#2d333d",
    "ink": "#e4e8ee",
    "muted": "#97a1af",
    "cached": "#35ad7b",
    "cached-back": "#153828",
    "cached-ink": "#5fd0a0",
    "computed": "#4c82df",
    "computed-back": "#1b2c4a",
    "computed-ink": "#85b0f5",
    "generated": "#e0962c",
    "generated-back": "#3f2d10",
    "generated-ink": "#f0b860",
    "wait": "#4a5260",
    "busy": "#8269bb",
    "bad": "#ff7168",
    "bad-back": "#3c1f20",
    "chosen": "#16291f",
    "mark": "#b7a0f0",
    "mark-back": "#2e2547",
    "focus": "#6aa6ff",
    "heat0": "#2d333d",
    "heat1": "#1c3a2d",
    "heat2": "#1e5640",
    "heat3": "#217354",
    "heat4": "#28946b",
    "heat5": "#3bbd89",
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_RULES = """
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 28px 40px;max-width:1680px;background:var(--back);color:var(--ink);
 font:14px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
h1{font-size:22px;line-height:1.25;margin:0 0 14px;font-weight:650;overflow-wrap:anywhere}
h2{font-size:15px;margin:34px 0 10px;font-weight:650}
h3{font-size:16px;margin:0;font-weight:600;overflow-wrap:anywhere}
h4{font-size:12px;margin:18px 0 6px;color:var(--muted);font-weight:600}
p{margin:4px 0}a{color:inherit;text-decoration:none}
pre,code,.snippet,.span,.logprobs{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12.5px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.55}
.muted,footer{color:var(--muted);font-size:13px}footer{margin-top:36px}
.bad{color:var(--bad)}.cached-ink{color:var(--cached-ink)}.computed-ink{color:var(--computed-ink)}
.generated-ink{color:var(--generated-ink)}
.cards,.figures{display:flex;flex-wrap:wrap;gap:10px 30px}
.cards div,.figures div{display:flex;flex-direction:column}
.cards b{font-size:20px;line-height:1.25;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.figures b{font-size:15px;font-weight:600;font-variant-numeric:tabular-nums}
.cards span,.figures span{color:var(--muted);font-size:12px}
.reports{margin:14px 0 0;padding:0;list-style:none}.reports li{padding:2px 0}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--muted);font-size:12px;margin:0 0 10px;align-items:center}
.legend>span>i{display:inline-block;width:12px;height:10px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.wait{background:var(--wait)}.prefill{background:var(--computed)}.decode{background:var(--generated)}
.busy{background:var(--busy)}.legend .failed{background:var(--bad)}

.lanes{border:1px solid var(--line);border-radius:8px;padding:6px 12px 8px 0;max-height:70vh;overflow:auto}
.lane,.axis{display:grid;grid-template-columns:minmax(90px,180px) 1fr;align-items:center}
.lane>span{padding:0 12px 0 14px;font-size:12px;color:var(--muted);overflow:hidden;text-overflow:ellipsis;white-space:nowrap;
 text-align:right}
.lane.first>span{color:var(--ink)}
.lane .track{position:relative;height:24px;border-top:1px solid transparent}
.lane.first .track{border-top-color:var(--line)}
.dense .lane .track{height:13px}.dense .lane>span{font-size:10px;line-height:12px}.dense .bar b{display:none}
.axis{position:sticky;top:-6px;background:var(--back);z-index:2}
.axis .track{position:relative;height:22px;overflow:hidden}
.axis i{position:absolute;top:2px;font-style:normal;font-size:11px;color:var(--muted);padding-left:4px;height:20px;
 border-left:1px solid var(--line);white-space:nowrap}
.bar{position:absolute;top:3px;bottom:3px;min-width:3px;display:flex;border-radius:3px;overflow:hidden}
.dense .bar{top:1px;bottom:1px;border-radius:1px}
.bar>i{display:block;height:100%;flex:none}
.bar b{position:absolute;left:6px;right:2px;top:50%;transform:translateY(-50%);font-size:11px;font-weight:500;line-height:1;
 color:#fff;white-space:nowrap;overflow:hidden;text-shadow:0 0 3px rgba(0,0,0,.6);pointer-events:none}
.bar.failed,.bar.cancelled,.bar.unparsed{box-shadow:inset 0 0 0 2px var(--bad)}
.bar.failed .busy{background:var(--bad)}.bar.running{opacity:.7}
.bar:hover,.bar:focus-visible{filter:brightness(1.12)}.bar.selected{outline:2px solid var(--ink);outline-offset:1px;z-index:1}

.columns{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:24px;align-items:start}
.run{border:1px solid var(--line);border-radius:8px;margin-bottom:8px;overflow:hidden}
.run>summary{display:flex;align-items:center;gap:12px;padding:7px 12px;cursor:pointer;list-style:none;background:var(--soft)}
.run>summary::-webkit-details-marker{display:none}
.run>summary::before{content:'';width:6px;height:6px;border:solid var(--muted);border-width:0 1.5px 1.5px 0;
 transform:rotate(-45deg);flex:none}
.run[open]>summary::before{transform:rotate(45deg)}
.run.bad{color:inherit;border-color:var(--bad)}
.runname{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.args{color:var(--muted)}.more{color:var(--focus);font-size:12px}
.raised{margin:0;padding:6px 12px;color:var(--bad);background:var(--bad-back);overflow-wrap:anywhere}
.row{display:flex;align-items:center;gap:8px;padding:4px 12px;border-top:1px solid var(--line);min-width:0}
.row b{font-weight:600;white-space:nowrap}.row:hover{background:var(--soft)}
.row.selected,.more.selected{box-shadow:inset 3px 0 0 var(--focus);background:var(--soft)}
.snippet{flex:1 1 0;min-width:40px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;color:var(--muted)}
.row.gen .snippet,.row.select .snippet{color:var(--generated-ink)}.snippet.bad,.row .snippet.bad{color:var(--bad)}
.tail{display:flex;align-items:center;gap:8px;flex:none;margin-left:auto}
.figure{color:var(--muted);font-size:12px;font-variant-numeric:tabular-nums;white-space:nowrap;min-width:56px;text-align:right}
.kind{font-size:11px;line-height:16px;padding:0 6px;border-radius:4px;color:var(--muted);background:var(--soft);flex:none;
 border:1px solid var(--line)}
.kind.gen{color:var(--generated-ink);background:var(--generated-back);border-color:transparent}
.kind.select{color:var(--computed-ink);background:var(--computed-back);border-color:transparent}
.kind.fork,.kind.join{color:var(--mark);background:var(--mark-back);border-color:transparent}
.status{font-size:11px;padding:0 6px;border-radius:4px;border:1px solid currentColor;color:var(--muted)}
.status.failed,.status.raised,.status.unparsed,.status.cancelled{color:var(--bad)}
.share{display:inline-flex;width:84px;height:7px;border-radius:4px;overflow:hidden;background:var(--line);flex:none}
.share i{display:block;height:100%}.share .cached{background:var(--cached)}.share .computed{background:var(--computed)}
.share .generated{background:var(--generated)}
.branches{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(250px,100%),1fr));gap:8px;padding:8px 12px 10px;
 border-top:1px solid var(--line)}
.branch{border:1px solid var(--line);border-left:3px solid var(--mark);border-radius:6px;overflow:hidden;min-width:0}
.branchname{font-size:11px;color:var(--mark);padding:3px 10px}
.branch .row{padding:3px 10px}.branch .share{width:44px}.branch .figure{min-width:0}
.filter{display:inline-flex;gap:6px;align-items:center;margin-bottom:8px;font-size:13px}
body:has(#only-failed:checked) .run:not(.bad){display:none}

.panel{position:sticky;top:16px;max-height:calc(100vh - 32px);overflow:auto;border:1px solid var(--line);border-radius:8px;
 padding:16px 18px;scrollbar-gutter:stable}
.detail{display:none}.detail:target,.js .detail.shown{display:block}.js .detail:target:not(.shown){display:none}
.panel:has(.detail:target) .placeholder,.js .panel:has(.shown) .placeholder{display:none}
.placeholder{color:var(--muted)}.close{display:none}
.detail>.share{width:100%;height:10px;margin:12px 0 10px}.detail .muted{margin:2px 0}
.error{margin:12px 0;padding:10px 12px;border-radius:6px;background:var(--bad-back)}.error b{color:var(--bad)}
.error ol{margin:8px 0 0;padding-left:20px;color:var(--muted);font-size:13px;overflow-wrap:anywhere}
.moments{display:flex;flex-wrap:wrap;gap:4px 0;list-style:none;padding:0;margin:14px 0 0;font-size:12px}
.moments li{display:flex;flex-direction:column;padding-right:10px;position:relative}
.moments em{font-style:normal;color:var(--muted);display:none}
.moments li:has(em){padding-left:78px}.moments li:has(em) em{display:block;position:absolute;left:0;top:9px;width:70px;
 text-align:center;border-bottom:1px solid var(--line);line-height:1.2;padding-bottom:1px}
.moments b{font-weight:600}.moments span{color:var(--muted);font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 16px;margin:0;font-size:13px}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere;white-space:pre-wrap}
.detail pre{background:var(--soft);border-radius:6px;padding:10px 12px;max-height:46vh;overflow:auto}
.detail pre.out{background:var(--generated-back)}.error pre{background:none;padding:4px 0 0}
.prompt .cached{background:var(--cached-back)}.prompt .computed{background:var(--computed-back)}
.prompt .cached,.prompt .computed{padding:1px 0;border-radius:2px;-webkit-box-decoration-break:clone;box-decoration-break:clone}
.prompt i{font-style:normal}.prompt i:hover{outline:1px solid var(--muted);border-radius:2px}
mark{background:var(--mark-back);color:var(--mark);border-radius:3px;box-shadow:inset 0 0 0 1px var(--mark);padding:0 3px;margin:0 1px}
.ids{margin-top:6px;font-size:12px;color:var(--muted)}.ids summary{cursor:pointer}.ids code{font-size:11.5px;line-height:1.6}
.logprobs{margin-top:6px;line-height:1.9}
.logprobs span{position:relative;padding:2px 0;white-space:pre-wrap;border-radius:2px;
 background:color-mix(in srgb,var(--bad) calc(var(--u)*60%),transparent);box-shadow:inset -1px 0 0 var(--line)}
.choices{border-collapse:collapse;width:100%;font-size:13px}
.choices th{font-weight:500;color:var(--muted);font-size:12px;text-align:right;padding:2px 0 4px 10px}
.choices td{padding:3px 0 3px 10px;text-align:right;font-variant-numeric:tabular-nums;border-top:1px solid var(--line)}
.choices td:first-child,.choices th:first-child{text-align:left;padding-left:6px;overflow-wrap:anywhere;white-space:pre-wrap}
.choices .bar{position:static;display:block;width:100%;min-width:70px;height:10px;background:var(--line);border-radius:5px}
.choices .bar i{background:var(--computed);height:100%;border-radius:5px}.choices td:nth-child(2){width:30%}
.chosen td{background:var(--chosen);font-weight:600}.chosen .bar i{background:var(--cached)}
.message{margin:6px 0}.message b{font-size:12px;color:var(--mark);font-weight:600}

.nodes{border:1px solid var(--line);border-radius:8px;padding:4px 12px 8px;max-height:80vh;overflow:auto}
.node{display:grid;grid-template-columns:minmax(0,1fr) 64px 56px 84px;align-items:center;height:24px;font-size:12px;
 font-variant-numeric:tabular-nums}
.node>span{text-align:right;color:var(--muted);white-space:nowrap}.node:hover{background:var(--soft)}
.node.head{position:sticky;top:-4px;background:var(--back);z-index:2;font-size:11px}
.span{position:relative;height:24px;min-width:0}
.span>i{position:absolute;top:3px;bottom:3px;min-width:4px;border-radius:3px}
.span>i.locked{box-shadow:0 0 0 2px var(--generated)}
.span>span{position:absolute;top:0;line-height:24px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;padding:0 8px;font-size:11.5px}
.span .after{right:0}.span .before{text-align:right}
.span .inside{color:var(--ink);background:none}
.span .inside.heat4,.span .inside.heat5{color:#fff}
.heats{display:inline-flex}.heats i{width:22px;height:10px}
iframe{width:100%;border:1px solid var(--line);border-radius:8px;background:var(--back)}
:focus-visible{outline:2px solid var(--focus);outline-offset:1px}

@media(max-width:1000px){
 body{padding:16px}.columns{grid-template-columns:minmax(0,1fr)}
 .panel{position:fixed;left:0;right:0;bottom:0;top:auto;max-height:62vh;background:var(--back);z-index:5;border-radius:12px 12px 0 0;
  box-shadow:0 -6px 30px rgba(0,0,0,.28);display:none;padding-top:34px}
 .panel:has(.detail:target),.js .panel:has(.shown){display:block}.placeholder{display:none}
 .js .panel:not(:has(.shown)){display:none}
 .close{display:block;position:absolute;top:8px;right:16px;color:var(--focus);font-size:13px}
 .lane,.axis{grid-template-columns:96px 1fr}.run>summary .share,.run>summary .figure:not(:nth-of-type(3)){display:none}
 .node{grid-template-columns:minmax(0,1fr) 48px 40px}.node>span:last-child{display:none}
 .cards{gap:8px 22px}.cards b{font-size:17px}
}
@media print{.panel{position:static;max-height:none}}
"""

STYLE = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    + "".join(f".heat{idx}{{background:var(--heat{idx})}}" for idx in range(6))
    + _RULES
)

SCRIPT = """
(function () {
  var root = document.documentElement, links = Array.from(document.querySelectorAll('.tree a.row'));
  root.classList.add('js');
  function show(id, scroll) {
    document.querySelectorAll('.detail.shown').forEach(function (e) { e.classList.remove('shown'); });
    document.querySelectorAll('.selected').forEach(function (e) { e.classList.remove('selected'); });
    var detail = id && document.getElementById(id);
    if (!detail || !detail.classList.contains('detail')) return;
    detail.classList.add('shown');
    detail.parentNode.scrollTop = 0;
    document.querySelectorAll('a[href="#' + id + '"]').forEach(function (e) {
      e.classList.add('selected');
      var run = e.closest('details.run');
      if (run && e.classList.contains('row')) run.open = true;
      if (scroll && e.classList.contains('row')) e.scrollIntoView({block: 'nearest'});
    });
  }
  document.addEventListener('click', function (event) {
    var link = event.target.closest('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    var id = link.getAttribute('href').slice(1);
    history.replaceState(null, '', '#' + id);
    show(id, link.classList.contains('bar'));
  });
  document.addEventListener('keydown', function (event) {
    var step = {j: 1, k: -1}[event.key];
    if (event.key === 'Escape') return show('');
    if (!step || event.target.matches('input,textarea') || event.metaKey || event.ctrlKey) return;
    var open = links.filter(function (e) { return e.offsetParent !== null; });
    var at = open.findIndex(function (e) { return e.classList.contains('selected'); });
    var next = open[Math.min(open.length - 1, Math.max(0, at + step))];
    if (next) { history.replaceState(null, '', next.hash); show(next.hash.slice(1), true); }
  });
  addEventListener('hashchange', function () { show(location.hash.slice(1), true); });
  var first = document.querySelector('.tree a.row.failed') || document.querySelector('.tree a.row.gen,.tree a.row.select');
  if (location.hash) show(location.hash.slice(1), true);
  else if (first && innerWidth > 1000) show(first.getAttribute('href').slice(1));
})();
"""
