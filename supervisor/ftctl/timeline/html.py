"""The timeline as a page: one file without scripts and external resources, in light and dark colours."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from ftctl.timeline import timeline
from ftrun.core.text.durations import seconds
from ftrun.core.text.sentences import printable
from ftrun.drawing import svg
from ftrun.drawing.shapes import PALETTE
from ftrun.records.past.history import History
from ftrun.records.past.lost_time import AttemptSpan

ROWS: Final = 500  # attempts in the table; the last ones


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
        "#lost~.wide tr>:nth-child(2),#lost~.wide tr>:nth-child(3){text-align:right;font-variant-numeric:tabular-nums}"
        ".muted{color:var(--muted)}"
        "a:focus-visible,.wide:focus-visible{outline:3px solid #56b4e9;outline-offset:2px}"
        "@media print{.wide{overflow:visible}svg{min-width:0}}"
    )


def render(history: History) -> str:
    """The page.  Text from elsewhere is escaped."""
    title = escape(printable(f"ftrun: {' '.join(history.command) or history.run_dir}"))
    picture = svg.render(timeline.draw(history), alone=False)
    problems = "".join(f"<p>{escape(printable(problem))}</p>" for problem in history.problems)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_style()}{svg.STYLE}</style></head>\n<body><main>"
        f'<h1>Timeline of a run</h1><p class="muted">{escape(printable(timeline.describe(history)))}</p>\n'
        f'<div class="wide" tabindex="0" role="region" aria-label="Timeline">{picture}</div>\n'
        f"{problems}{_lost(history)}{_attempts(history)}</main></body></html>\n"
    )


def _lost(history: History) -> str:
    if not history.wall:
        return ""
    rows = [("kept", max(0.0, history.wall - sum(history.totals.values())), "work that was kept")]
    rows += [(why, value, timeline.MEANINGS[why]) for why, value in history.shown_totals.items()]
    cells = [(why, seconds(value), f"{value / history.wall:.1%}", meaning) for why, value, meaning in rows]
    return _table("lost", "Where the time went", ("What", "Time", "Share", "Meaning"), cells)


def _attempts(history: History) -> str:
    shown = history.attempts[-ROWS:]
    left = len(history.attempts) - len(shown)
    note = f'<p class="muted">The first {left} are not shown.</p>' if left else ""
    heads = ("Start", "Why", "Began (UTC)", "Lasted", "Steps", "Ended by", "What happened")
    return _table("starts", "Starts", heads, (_row(history, attempt) for attempt in shown), note)


def _table(name: str, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """The first cell of each row is its head."""
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{escape(printable(cell))}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>{note}'
        f'<div class="wide" tabindex="0" role="region" aria-label="{title}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>\n"
    )


def _row(history: History, attempt: AttemptSpan) -> tuple[str, ...]:
    last = attempt is history.attempts[-1]
    end, why = attempt.cause or "", attempt.why
    if attempt.under_way:
        end = f"{end}, no new start yet" if end else "running"
    elif attempt.cut_off:
        end = end or "cut off"
    elif not end:
        end = "success" if attempt.kept else (history.verdict or "") if last else ""
        why = history.why or "" if last else ""
    return (
        str(attempt.number),
        timeline.reason(attempt) or "first",
        timeline.stamp(attempt.since),
        seconds(attempt.until - attempt.since),
        "" if attempt.first_step is None else f"{attempt.first_step} to {attempt.last_step}",
        end,
        why,
    )
