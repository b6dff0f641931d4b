"""The style sheet of report.html: nothing is fetched, and a phone, a dark room and a printer do."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--page:#f5f6f4;--card:#fff;--ink:#1b2126;--muted:#626d75;--line:#dfe3e2;
--documents:#3a6ea5;--results:#2f8f6b;--duplicates:#8467b8;--dead:#c4444f;--rejected:#c98411;
--left-out:#98a2a8;--code:#f0f2f1;--good:#1f7a56;--goodbg:#e2f3ea;--bad:#ac2f3b;--badbg:#fae6e7;
--warn:#8a5a06;--warnbg:#fbf0da}
@media (prefers-color-scheme:dark){:root{--page:#14181b;--card:#1c2226;--ink:#e7ebec;--muted:#9aa6ad;
--line:#30393f;--documents:#6fa3da;--results:#54b98f;--duplicates:#ab92dc;--dead:#e27680;
--rejected:#e0a544;--left-out:#77828a;--code:#242c31;--good:#7fd3ab;--goodbg:#1d3a2e;--bad:#f0959d;
--badbg:#43242a;--warn:#ecc27a;--warnbg:#3d3119}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);line-height:1.5;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:68rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0;letter-spacing:-.02em;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.5rem 0 .75rem;letter-spacing:-.01em}
h3{font-size:.95rem;margin:0 0 .6rem}
p{margin:.4rem 0}
a{color:var(--documents)}
.muted,figcaption{color:var(--muted)}
.small{font-size:.86rem}
.num,td.num,th.num{font-variant-numeric:tabular-nums;text-align:right}
code,pre,.mono{font:.86em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{overflow-wrap:anywhere}
pre{background:var(--code);border-radius:8px;padding:.8rem 1rem;overflow:auto;margin:.5rem 0;
white-space:pre-wrap;overflow-wrap:anywhere}
header.top{display:flex;flex-wrap:wrap;gap:.5rem 1rem;align-items:center}
.pill{border-radius:99px;padding:.12rem .7rem;font-size:.85rem;font-weight:600;white-space:nowrap}
.answer+p.pill{display:inline-block;white-space:normal}
.good{color:var(--good);background:var(--goodbg)}
.bad{color:var(--bad);background:var(--badbg)}
.warn{color:var(--warn);background:var(--warnbg)}
.headline{font-size:1.05rem;margin:.6rem 0 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:1rem 1.1rem;
min-width:0;overflow-wrap:anywhere}
.grid{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}
.card+.card,.grid+.card,.card+.grid,.grid+.grid{margin-top:1rem}
.grid>.card+.card{margin-top:0}
.facts{display:grid;gap:.7rem 1.5rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,10.5rem),1fr));
margin:0}
.facts div{min-width:0}
dt{color:var(--muted);font-size:.82rem}
dd{margin:0;overflow-wrap:anywhere}
.facts .wide{grid-column:1/-1}
.facts.big dd{font-size:1.35rem;font-weight:600;font-variant-numeric:tabular-nums;line-height:1.3}
.law{display:flex;flex-wrap:wrap;gap:.2rem .75rem;align-items:flex-start;margin:.3rem 0}
.law .term{display:flex;flex-direction:column}
.law .term b{font-size:1.5rem;line-height:1.2;font-variant-numeric:tabular-nums;font-weight:650}
.law .step{display:flex;gap:.75rem}
.law .op{font-size:1.4rem;line-height:1.25;color:var(--muted)}
.law .term span{color:var(--muted);font-size:.82rem}
.law .term b::before{content:"";display:inline-block;width:.55rem;height:.55rem;border-radius:3px;
margin-right:.4rem;background:var(--c,transparent);vertical-align:.14em}
.law .term.plain b::before{display:none}
figure{margin:0}
figure svg{display:block;width:100%;height:auto;max-width:36rem;margin:0 auto}
figcaption{font-size:.84rem;margin-top:.4rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.4rem .7rem .4rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--muted);font-weight:500;font-size:.82rem}
tr:last-child td{border-bottom:0}
td:last-child,th:last-child{padding-right:0}
.bar{display:flex;height:1.4rem;border-radius:6px;overflow:hidden;background:var(--code);gap:1px}
.bar i{display:block;min-width:2px;height:100%}
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;margin:.6rem 0 0;padding:0;list-style:none;
font-size:.88rem}
.legend i{display:inline-block;width:.65rem;height:.65rem;border-radius:3px;margin-right:.4rem}
.rows{display:grid;grid-template-columns:minmax(4rem,max-content) 1fr max-content;gap:.45rem .8rem;
align-items:center}
.rows .track{background:var(--code);border-radius:5px;height:1.05rem;overflow:hidden}
.rows .track i{display:block;height:100%;background:var(--documents);border-radius:5px}
.confusion{width:auto}
.confusion td,.confusion th{padding:.4rem .7rem;text-align:right;border:0;
font-variant-numeric:tabular-nums}
.confusion tbody th{text-align:left;color:var(--ink)}
.confusion td{border-radius:6px}
.share{font-size:2.4rem;font-weight:650;line-height:1.1;letter-spacing:-.02em}
.sample{display:grid;grid-template-columns:1fr;gap:.5rem 1.2rem}
@media (min-width:46rem){.sample{grid-template-columns:minmax(0,3fr) minmax(0,2fr)}}
.sample .text,.sample .answer{white-space:pre-wrap;overflow-wrap:anywhere;max-height:16rem;overflow:auto;
unicode-bidi:isolate}
.sample .text{border-left:3px solid var(--line);padding-left:.8rem}
.sample .meta{grid-column:1/-1;color:var(--muted);font-size:.82rem}
.answer.word{font-weight:600;font-size:1.05rem}
details{margin-top:.3rem}
summary{cursor:pointer}
ul.plain{margin:.3rem 0;padding-left:1.1rem}
footer{margin-top:3rem;color:var(--muted);font-size:.85rem}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
