"""The timeline as a page of its own: one file, no script, nothing from elsewhere, light or dark."""

from html import escape
from typing import Final

from ftrun.core.text.durations import seconds
from ftrun.core.text.sentences import printable
from ftrun.views import svg, timeline
from ftrun.views.history import History
from ftrun.views.lost_time import Life
from ftrun.views.shapes import PALETTE

ROWS: Final = 500  # of the table; the last ones
HEADS: Final = ("Start", "Why", "Began (UTC)", "Lasted", "Steps", "Ended by", "What happened")


def _style() -> str:
    names = ("ground", "text", "muted", "grid", "band")
    light, dark = (";".join(f"--{name}:{PALETTE[name][scheme]}" for name in names) for scheme in (0, 1))
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "body{margin:0 auto;max-width:1240px;padding:16px;background:var(--ground);color:var(--text);"
        "font:16px/1.5 system-ui,'DejaVu Sans','Noto Sans',sans-serif}"
        "h1{font-size:1.3rem;margin:0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}p{margin:.2rem 0}"
        ".wide{overflow-x:auto}svg{display:block;max-width:100%;min-width:760px;height:auto}"
        "table{border-collapse:collapse;font-size:.9rem}"
        "th,td{padding:.3rem .8rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid)}"
        "th{color:var(--muted);font-weight:600;white-space:nowrap}td{overflow-wrap:anywhere}"
        ".n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.muted{color:var(--muted)}"
        "a:focus-visible,.wide:focus-visible{outline:3px solid #56b4e9;outline-offset:2px}"
        "@media print{.wide{overflow:visible}svg{min-width:0}}"
    )


def render(history: History) -> str:
    """Foreign text in it is escaped."""
    title = escape(printable(f"ftrun: {' '.join(history.command) or history.run_dir}"))
    picture = svg.render(timeline.draw(history), alone=False)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_style()}{svg.STYLE}</style></head>\n<body><main>"
        f'<h1>Timeline of a run</h1><p class="muted">{escape(printable(timeline.describe(history)))}</p>\n'
        f'<div class="wide" tabindex="0" role="region" aria-label="Timeline">{picture}</div>\n'
        f"{_problems(history)}{_lost(history)}{_attempts(history)}</main></body></html>\n"
    )


def _problems(history: History) -> str:
    return "".join(f"<p>{escape(printable(problem))}</p>" for problem in history.problems)


def _lost(history: History) -> str:
    """Where the time went."""
    if not history.wall:
        return ""
    totals = history.totals
    rows = [("kept", max(0.0, history.wall - sum(totals.values())), "work that was kept")]
    rows += [(why, value, timeline.MEANINGS[why]) for why, value in history.worth.items()]
    body = "".join(
        f'<tr><th scope="row">{why}</th><td class="n">{seconds(value)}</td>'
        f'<td class="n">{value / history.wall:.1%}</td><td>{meaning}</td></tr>'
        for why, value, meaning in rows
    )
    return (
        '<section aria-labelledby="lost"><h2 id="lost">Where the time went</h2><table><thead><tr>'
        '<th scope="col">What</th><th scope="col" class="n">Time</th><th scope="col" class="n">Part</th>'
        f'<th scope="col">Meaning</th></tr></thead><tbody>{body}</tbody></table></section>\n'
    )


def _attempts(history: History) -> str:
    shown = history.attempts[-ROWS:]
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    left = len(history.attempts) - len(shown)
    note = f'<p class="muted">The first {left} are left out.</p>' if left else ""
    rows = "".join(_row(history, life) for life in shown)
    return (
        '<section aria-labelledby="starts"><h2 id="starts">Starts</h2>'
        f'{note}<div class="wide" tabindex="0" role="region" aria-label="Starts"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(history: History, life: Life) -> str:
    last = life is history.attempts[-1]
    end, why = life.cause or "", life.why
    if life.under_way:
        end = f"{end}, not yet followed" if end else "under way"
    elif life.cut_off:
        end = end or "cut off"
    elif not end:
        end = "success" if life.kept else (history.verdict or "") if last else ""
        why = history.why or "" if last else ""
    cells = [
        timeline.reason(life) or "first",
        timeline.stamp(life.since),
        seconds(life.until - life.since),
        "" if life.first_step is None else f"{life.first_step} to {life.last_step}",
        end,
        why,
    ]
    shown = "".join(f"<td>{escape(printable(cell))}</td>" for cell in cells)
    return f'<tr><th scope="row">{life.number}</th>{shown}</tr>'
