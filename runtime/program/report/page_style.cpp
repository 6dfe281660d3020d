#include "runtime/program/report/page.h"

namespace meshtrain {

// Colors: each of c0 to c7 has a contrast of at least 3 to the background in both schemes, text one of at least 4.5.
const char* const kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --back: #ffffff; --panel: #f6f7f9; --text: #1b1f24; --soft: #59616b; --rule: #d9dde2; --grid: #e6e9ed; --alarm: #b3261e;
  --c0: #2563c9; --c1: #b85c00; --c2: #1b7f4b; --c3: #8a3fb5; --c4: #a8760a; --c5: #0a7f8c; --c6: #c2336b; --c7: #6b7280;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --panel: #1c2026; --text: #e6e9ed; --soft: #a0a9b4; --rule: #343a42; --grid: #2a2f36; --alarm: #ff8a80;
    --c0: #6ea8ff; --c1: #ff9f4a; --c2: #5cc98c; --c3: #c792ea; --c4: #e0b84c; --c5: #4fc3d0; --c6: #ff7fa8; --c7: #9aa4b0;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 20px 24px 60px; max-width: 1440px; background: var(--back); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
h1 { font-size: 22px; margin: 0; }
h2 { font-size: 16px; margin: 36px 0 12px; padding-bottom: 4px; border-bottom: 1px solid var(--rule); }
h3 { font-size: 14px; margin: 18px 0 6px; }
p { margin: 4px 0 8px; }
.soft, .note, figcaption span, .axis { color: var(--soft); }
.alarm { color: var(--alarm); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(158px, 1fr)); gap: 10px; margin: 16px 0; padding: 0; }
.tiles div { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 8px 12px; min-width: 0; }
.tiles b { display: block; font-size: 17px; font-weight: 600; }
.tiles span { color: var(--soft); font-size: 12px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); gap: 14px 28px; }
.charts > * { min-width: 0; }
figure { margin: 0; }
figcaption { margin-bottom: 4px; }
figcaption span { font-size: 12px; margin-left: 4px; }
.plot { display: grid; grid-template: 190px 18px / 64px minmax(0, 1fr); position: relative; margin-right: 14px; padding-top: 7px; }
.up, .across { position: relative; font-size: 11px; color: var(--soft); }
.up i { position: absolute; right: 7px; transform: translateY(50%); font-style: normal; white-space: nowrap; }
.across { grid-column: 2; }
.across i { position: absolute; top: 3px; transform: translateX(-50%); font-style: normal; white-space: nowrap; }
.axis { position: absolute; left: 0; bottom: 0; width: 40px; text-align: right; font-size: 11px; }
.area { position: relative; cursor: crosshair; touch-action: pan-y; }
.area > svg { position: absolute; width: 100%; height: 100%; overflow: hidden; border-bottom: 1px solid var(--soft); }
.area path { fill: none; stroke: currentColor; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.area .grid path { stroke: var(--grid); stroke-width: 1px; }
.area .marks path { stroke: var(--soft); stroke-width: 1px; stroke-dasharray: 2 3; }
.area .line { stroke-width: 1.6px; }
.area .sparse { stroke-width: 1px; stroke-dasharray: 4 3; }
.area .points { stroke-width: 5px; stroke-linecap: round; }
.area .band { fill: currentColor; fill-opacity: .22; stroke: none; }
.area .layer { fill: currentColor; fill-opacity: .8; stroke: var(--back); stroke-width: .5px; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.key { width: 10px; height: 10px; margin-right: 5px; vertical-align: -1px; fill: currentColor; }
.legend { font-size: 12px; margin: 4px 0 0; }
.legend span { margin-right: 12px; display: inline-block; }
.plot + .legend { margin-left: 64px; }
.cross { position: absolute; top: 0; bottom: 0; width: 0; border-left: 1px solid var(--soft); pointer-events: none; }
.chosen { position: absolute; top: 0; bottom: 0; background: var(--c0); opacity: .15; pointer-events: none; }
.tip { position: absolute; top: 4px; z-index: 2; pointer-events: none; background: var(--panel); border: 1px solid var(--rule);
  border-radius: 4px; padding: 3px 8px; font-size: 12px; white-space: nowrap; }
.tip div { display: flex; justify-content: space-between; gap: 14px; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 13px; margin: 4px 0 10px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12px; }
th, td { padding: 3px 16px 3px 0; border-bottom: 1px solid var(--rule); vertical-align: top; white-space: nowrap; }
th, td.wide { white-space: normal; }
td.wide { min-width: 90px; }
.fitted { width: 100%; max-width: 760px; }
.fitted td:first-child { white-space: normal; }
.fitted td.shares { width: 30%; min-width: 48px; padding-right: 0; }
td.number, th.number { text-align: right; }
code { font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
details { margin: 6px 0; }
summary { cursor: pointer; color: var(--soft); }
.mesh text { font-size: 12px; fill: var(--soft); }
.mesh rect { fill: currentColor; fill-opacity: .2; stroke: currentColor; }
.mesh g text { fill: var(--text); }
.bar { display: flex; height: 22px; border-radius: 4px; overflow: hidden; max-width: 900px; gap: 1px; }
.bar i { background: currentColor; min-width: 2px; }
.share { display: inline-block; height: 9px; min-width: 1px; background: currentColor; border-radius: 2px; }
footer { margin-top: 40px; font-size: 12px; color: var(--soft); }
@media (max-width: 560px) {
  body { padding: 14px 14px 40px; }
  .plot { grid-template-columns: 58px minmax(0, 1fr); }
  .axis { width: 34px; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media print { .area { cursor: auto; } details { display: none; } }
)css";

}  // namespace meshtrain
