"""From the results of all benchmarks to docs/comparison.md: every figure there comes from a run."""

from __future__ import annotations

from bench.comparing import texts
from bench.comparing.tables import case_table, exponents, kills, load_table, table
from bench.inmemory.plan import CASES as IN_MEMORY
from bench.killing.plan import ALIVE_S, CONCURRENCY, JOBS
from bench.onefile.plan import CASES as ON_FILE
from bench.onserver.plan import CASES as ON_SERVER
from bench.tasking.plan import CASES as OF_TASKS
from bench.tasking.plan import ONCE

# Part -> its title, and its cases by name.
COMPARED = {
    "memory": ("In memory", IN_MEMORY),
    "sqlite": ("One file", ON_FILE),
    "tasks": ("Tasks", OF_TASKS),
    "postgres": ("PostgreSQL", ON_SERVER),
}


def page(results, before, *, date):
    """results: part -> its JSON. before: the same of an earlier run, where there is one."""
    parts = [texts.INTRO, overview(results, before, date)]
    if "load" in results:
        parts.append(load(results["load"]))
    parts += [compared(name, results[name], before.get(name)) for name in COMPARED if name in results]
    if "killed" in results:
        parts.append(killed(results["killed"]))
    if "growth" in results:
        parts.append(growth(results["growth"]))
    parts.append(settings(results))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def overview(results, before, date):
    """When and where, and whether each part counts."""
    runs = {name: result["run"] for name, result in results.items()}
    keys = ("machine", "python")
    known = {key: next((run[key] for run in runs.values() if key in run), "?") for key in keys}
    said = [f"{date}; {known['machine']}; CPython {known['python']}."]
    for run in runs.values():
        if "fsync_p50_us" in run:
            fsync = f"{run['fsync_p50_us']:.0f} µs (p99 {run['fsync_p99_us']:.0f} µs)"
            said.append(f"SQLite {run['sqlite']}; an fsync of the files' {run['file_system']} takes {fsync}.")
    if any(run.get("quick") for run in runs.values()):
        said.append(texts.QUICK)
    rows = [
        (f"`{name}`", texts.STATUSES[result["status"]], f"{runs[name]['took_s'] / 60:.1f} min")
        for name, result in results.items()
    ]
    again = texts.AGAIN if before else texts.ONCE
    return "\n\n".join([" ".join(said), table(("part", "", "took"), rows), again])


def load(result):
    parts = ["## Under load", texts.LOAD.format(options=result["run"]["options"])]
    for store, found in result["stores"].items():
        parts.append(f"**{store}**, {found['rate']:,} jobs/s: {result['run']['settings'][store]}")
        if len(found["tried"]) > 1:
            tried = (
                f"{int(rate):,}{'' if kept else ' (not sustained)'}" for rate, kept in found["tried"].items()
            )
            parts.append(f"Tried: {', '.join(tried)}.")
        parts.append(load_table(found["result"]["series"]))
        parts += [f"Not valid: {problem}" for problem in found["result"]["problems"]]
        parts.append(f"![latency under load, {store}](comparison/load-{store}.svg)")
    return blocks(parts)


def compared(name, result, before):
    title, cases = COMPARED[name]
    parts = [f"## {title}", texts.NOTES[name]]
    for case, sides in result["cases"].items():
        earlier = before and before["cases"].get(case)
        parts.append(f"**`{case}`** {cases[case].title}")
        parts.append(case_table(cases[case], sides, earlier, has_ratios=case not in ONCE))
    missed = [row for row in result["targets"] if row["is_ok"] is False]
    if missed:
        parts.append("Not reached:")
        parts.append("\n".join(f"- `{row['case']}` {row['text']}: {row['reached']:.3g}" for row in missed))
    return blocks(parts)


def killed(result):
    run = result["run"]
    text = texts.KILLED.format(jobs=JOBS, concurrency=CONCURRENCY, alive_s=ALIVE_S, wait_s=run["wait_s"])
    return blocks(["## A worker that is killed", text, kills(result["sides"], run["settings"])])


def growth(result):
    parts = ["## How costs grow", texts.GROWTH]
    for store, dimensions in result["stores"].items():
        picture = f"![how costs grow, {store}](comparison/growth-{store}.svg)"
        parts += [f"**{store}**", exponents(dimensions), picture]
    parts.append("\n".join(f"- {name}: {title}" for name, title in result["run"]["titles"].items()))
    return blocks(parts)


def settings(results):
    parts = ["## Versions and settings"]
    for name in (*COMPARED, "killed"):
        if name not in results:
            continue
        run = results[name]["run"]
        peers = ", ".join(" ".join(peer) for peer in run["peers"].items()) or "no other library"
        parts.append(f"**{name}**: {peers}")
        if name != "killed":
            rows = [(side.strip(), text) for side, text in run["settings"].items()]
            parts.append(table(("side", "set up as"), rows))
        parts += [f"Not installed here: {side}: {why}" for side, why in run.get("missing", {}).items() if why]
    return blocks(parts)


def blocks(parts):
    return "\n\n".join(part.strip("\n") for part in parts)
