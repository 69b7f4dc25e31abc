"""How the page of a report looks, on a screen, a phone and on paper, light and dark."""

from __future__ import annotations

__all__ = ["STYLE"]

# Teal, amber and purple stay apart for colour-blind eyes; every use has a sign and a word too.
STYLE = """\
:root { color-scheme: light dark;
  --paper: #ffffff; --raised: #f4f6f8; --ink: #22303c; --muted: #566473; --rule: #d5dce3;
  --link: #0a5c99; --alarm: #b3261e;
  --held: #00594a; --held-tint: #dff3ec;
  --corrected: #6b4700; --corrected-tint: #fdf0cf;
  --refuted: #8a1c4d; --refuted-tint: #fbe3ee; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12181e; --raised: #1b242d; --ink: #e6ebf0; --muted: #a3b1be; --rule: #35424e;
    --link: #84c5f4; --alarm: #ff8a80;
    --held: #8fe0c4; --held-tint: #0f3a30;
    --corrected: #f3cf7f; --corrected-tint: #40310a;
    --refuted: #f7a8cb; --refuted-tint: #4a1730; }
  .picture { filter: brightness(0.9); }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 84rem; padding: 2rem 1.5rem 5rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.6 system-ui, sans-serif; overflow-wrap: break-word; }
a { color: var(--link); }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 0.75rem; text-wrap: balance; }
h2 { font-size: 1.5rem; line-height: 1.25; margin: 3.5rem 0 1rem; padding-bottom: 0.35rem;
  border-bottom: 2px solid var(--rule); }
h3 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 0.75rem; text-wrap: balance; }
p, figcaption, li { max-width: 46rem; }
code { font: 0.875em/1.5 ui-monospace, Menlo, Consolas, monospace; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 0.5rem; padding: 0.25rem 0.75rem; background: var(--paper); }
.lead { font-size: 1.1rem; }
.facts, .made { color: var(--muted); font-size: 0.875rem; }
.anchor { color: var(--muted); font-weight: normal; text-decoration: none; padding: 0 0.3rem; }
.anchor:hover, .anchor:focus { color: var(--link); }

nav ul { list-style: none; margin: 0; padding: 0; }
nav a { text-decoration: none; }
nav a:hover { text-decoration: underline; }
nav > ul > li > a { font-weight: 600; color: var(--ink); }
@media (min-width: 72rem) {
  body { display: grid; grid-template-columns: 15rem minmax(0, 60rem); column-gap: 3rem; }
  header, footer { grid-column: 2; grid-row: auto; }
  nav { grid-column: 1; grid-row: 1 / span 3; position: sticky; top: 2rem; align-self: start;
    max-height: calc(100vh - 4rem); overflow-y: auto; font-size: 0.875rem; line-height: 1.4; }
  nav > ul > li { margin-bottom: 0.9rem; }
  nav li li { margin: 0.25rem 0 0 0.75rem; }
  main { grid-column: 2; min-width: 0; }
}
@media (max-width: 71.99rem) {
  nav { margin-bottom: 1.5rem; }
  nav > ul { display: flex; flex-wrap: wrap; gap: 0.4rem; }
  nav > ul > li > a { display: block; padding: 0.2rem 0.7rem; border: 1px solid var(--rule);
    border-radius: 1rem; font-size: 0.875rem; font-weight: 500; }
  nav ul ul { display: none; }
}

.tally { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 0.75rem;
  list-style: none; margin: 0 0 1.25rem; padding: 0; }
.tally li { border-radius: 0.5rem; padding: 0.75rem 1rem; line-height: 1.3; }
.tally b { display: block; font-size: 1.9rem; font-variant-numeric: tabular-nums; }
.held { color: var(--held); background: var(--held-tint); }
.corrected { color: var(--corrected); background: var(--corrected-tint); }
.refuted { color: var(--refuted); background: var(--refuted-tint); }
.seen { color: var(--muted); background: var(--raised); }
.badge { display: inline-block; border-radius: 1rem; padding: 0.05rem 0.65rem; font-size: 0.8125rem;
  font-weight: 600; white-space: nowrap; }

.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.875rem; line-height: 1.45; }
th, td { text-align: left; vertical-align: top; padding: 0.35rem 1.25rem 0.35rem 0;
  border-top: 1px solid var(--rule); }
thead td { border-top: 0; }
thead th { border-top: 0; color: var(--muted); font-weight: 600; }
.claims { width: 100%; }
.claims th[scope="rowgroup"] { border-top: 0; padding-top: 1rem; }
.claims td:first-child { width: 1%; }
.claims td:last-child { padding-right: 0; }
.text { width: 100%; }
.text td { min-width: 6rem; }
.text td:first-child { min-width: 0; white-space: nowrap; }
.text td:last-child { padding-right: 0; }
.text tr:target td { background: var(--corrected-tint); }
.numbers { margin-top: 0.75rem; }
.numbers caption { text-align: left; font-weight: 600; padding: 0.25rem 0; }
.numbers th { font-weight: 500; color: var(--muted); }
.numbers td { font-variant-numeric: tabular-nums; }
.numbers th[scope="col"], .numbers .grid td { text-align: right; white-space: nowrap; }
.numbers thead th:first-child { text-align: left; }

article { margin: 0 0 3rem; }
figure { margin: 0; }
figcaption { margin: 0.75rem 0 0; }
.picture { overflow-x: auto; background: #ffffff; border: 1px solid var(--rule);
  border-radius: 0.5rem; padding: 0.75rem; }
.picture img { display: block; width: 100%; min-width: 40rem; height: auto; }
.findings { list-style: none; margin: 1rem 0; padding: 0; }
.findings li { margin: 0 0 0.9rem; padding-left: 0.9rem; border-left: 3px solid var(--rule); }
.findings strong { font-weight: 600; }
.findings p { margin: 0.2rem 0 0; }
details { margin: 0.75rem 0 0; }
summary { cursor: pointer; color: var(--link); }
.made { margin: 0.75rem 0 0; }
.made code { color: var(--ink); background: var(--raised); border-radius: 0.25rem;
  padding: 0.1rem 0.4rem; }
.notice { background: var(--raised); border-left: 4px solid var(--muted); border-radius: 0.25rem;
  padding: 0.75rem 1rem; margin: 0 0 1rem; }
.notice p { margin: 0; }
.failed { border-left-color: var(--alarm); }
.failed b { color: var(--alarm); }
footer { margin-top: 4rem; color: var(--muted); font-size: 0.875rem; }

@media (max-width: 40rem) {
  body { padding: 1.25rem 1rem 3rem; }
  h1 { font-size: 1.6rem; }
  .tally { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 0.5rem; }
  .tally li { padding: 0.5rem 0.6rem; font-size: 0.8125rem; }
  .claims td:first-child { padding-right: 0.6rem; }
  .claims .badge .word { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  .text thead { display: none; }
  .text, .text tbody, .text tr, .text td { display: block; }
  .text tr { border-top: 1px solid var(--rule); padding: 0.75rem 0; }
  .text td { border-top: 0; padding: 0.1rem 0; }
  .text td:first-child { font-weight: 600; white-space: normal; }
  .text td:not(:first-child)::before { content: attr(data-head) ": "; color: var(--muted); }
}
@media print {
  :root { color-scheme: light; --paper: #ffffff; --raised: #f4f6f8; --ink: #22303c;
    --muted: #566473; --rule: #d5dce3; --link: #22303c; --alarm: #b3261e;
    --held: #00594a; --held-tint: #dff3ec; --corrected: #6b4700; --corrected-tint: #fdf0cf;
    --refuted: #8a1c4d; --refuted-tint: #fbe3ee; }
  body { display: block; max-width: none; padding: 0; font-size: 10pt; }
  nav, .skip, .anchor { display: none; }
  a { text-decoration: none; }
  .tally li, .badge { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .picture { border: 0; padding: 0; overflow: visible; filter: none; }
  .picture img { min-width: 0; }
  .scroll { overflow: visible; }
  .numbers th[scope="col"], .numbers .grid td { white-space: normal; }
  figure, .findings li, .notice, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
}"""
