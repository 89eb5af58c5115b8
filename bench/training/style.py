"""The page's style sheet."""

STYLE = """
:root{--ink:#1d2733;--quiet:#5d6a78;--line:#dfe4ea;--paper:#fff;--own:#0b6bcb;--own-soft:#5f9fdf;--peer:#c4661f;
--good:#1a7f4b;--bad:#b3261e;--soft:#f5f7f9}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf0;--quiet:#9aa8b6;--line:#303b47;--paper:#14191f;--own:#5aa9f5;
--own-soft:#3f7fc4;--peer:#e59a5c;--good:#58c48a;--bad:#f28b82;--soft:#1b222a}}
body{font:15px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:860px;margin:2.5rem auto;
padding:0 1.2rem}
h1{font-size:1.7rem;margin:0 0 .3rem}h2{font-size:1.25rem;margin:2.6rem 0 .5rem}h3{font-size:1rem;margin:1.4rem 0 .3rem}
p.lead,.small{color:var(--quiet)}.small{font-size:13px}table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:600;color:var(--quiet);border-bottom:1px solid var(--line)}
td,th{padding:.32rem .8rem .32rem 0;vertical-align:top}tr+tr td{border-top:1px solid var(--line)}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}.met{color:var(--good);font-weight:600}
.missed{color:var(--bad);font-weight:600}.wide{overflow-x:auto}
svg{display:block;max-width:100%;height:auto;margin:.2rem 0 .8rem}
svg text{font:13px system-ui,sans-serif;fill:var(--ink)}svg .tick{font-size:12px;fill:var(--quiet)}
svg .value{font-variant-numeric:tabular-nums;font-size:12.5px}.grid{stroke:var(--line)}
.mark{stroke:var(--peer);stroke-dasharray:4 3;stroke-width:1.5}.part0{fill:var(--own)}.part1{fill:#9aa7b4}
.part2{fill:#d9b44a}.part3{fill:var(--peer)}.part4{fill:#d9dee4}code{background:var(--soft);padding:.1rem .3rem}
@media (prefers-color-scheme:dark){.part4{fill:#3a4653}}
"""
