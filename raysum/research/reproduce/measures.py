"""Fill the cells of a table: ROUGE and attention from evaluations, judgements from studies, others from analyses."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from raysum.bench.efficiency import EfficiencyBench
from raysum.errors import UserError
from raysum.metrics.rouge import PROTOCOLS
from raysum.research.analyses import METRICS, PARTS, compression, plot_ranks, ranks, recall
from raysum.research.human.answers import MARKS, UnansweredStudy
from raysum.research.human.sheets import SHEETS, human_sheets
from raysum.research.reproduce.tables import BASE, RANKER, REFERENCE, SECONDS, PaperTable, systems
from raysum.research.reproduce.training import beta_of, folder_of
from raysum.research.reproduce.workspace import Workspace
from raysum.runtime.processes import cores
from raysum.runtime.progress import say, span
from raysum.runtime.storage import read_json, read_lines, write_json, write_text

# A figure {"value", "low", "high"}, the last two if it has an interval; or {"told"}: the reason for its absence.
Cell = dict[str, Any]
Cells = dict[str, Any]  # "rows": {row: [cells]}, and of the whole table "protocol", "examples", "notes", "plot"
Scores = dict[str, dict[str, float]]  # of judges, by system and measure

AVERAGE = "average"
JUDGES = "judges"
_ENDS = ("low", "high")
# Source tokens, and MiB for a batch. The papers' 1,600 tokens take about ten minutes on two cores.
_EFFICIENT = {"small": (400, 1024), "paper": (1600, 2048)}
_COSTED = ["ft-3", "transformer-decoder", "tdmca-3", "txl", "ht-3-3", "vht", "pht"]


def fill_table(place: Workspace, table: PaperTable) -> Cells:
    """Return the cells of a table whose systems are trained and evaluated. Analyses are computed once a folder."""
    measure = _MEASURES[table.measure]
    if table.measure in ("recall", "compression", "ranks"):
        return _kept(place, table.id, lambda: measure(place, table))
    return measure(place, table)


def _kept(place: Workspace, name: str, measure: Callable[[], Cells]) -> Cells:
    file = place.out / "measures" / f"{name}-{place.config.limit}.json"
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        say(f"\nmeasure {name}, which takes about {span(SECONDS['measure'])}")
        write_json(file, measure())
    found: Cells = read_json(file)
    return found


def _cell(figures: Mapping[Any, Any], name: str, prefix: str) -> Cell:
    """Return the figure ``name``, with its bounds, if there are any of this ``prefix``."""
    bounds = {end: float(figures[prefix + end]) for end in _ENDS if prefix + end in figures}
    return {"value": float(figures[name]), **bounds}


def _of_evaluations(place: Workspace, table: PaperTable) -> Cells:
    rouge = ["rouge1", "rouge2", PROTOCOLS[table.protocol].published_l]
    names = rouge if table.measure == "rouge" else ["attention_similarity"]
    filled: Cells = {"rows": {}}
    for row in table.rows:
        if lacking := place.lacks(systems()[row.system]):
            filled["rows"][row.name] = [{"told": lacking}] * len(names)
            continue
        found = read_json(folder_of(place, row.system, table) / "table.json")
        (figures,) = found["systems"].values()
        filled["rows"][row.name] = [
            _cell(figures, name, f"{name}_") if name in figures else {"told": "no attention"} for name in names
        ]
        filled |= {"protocol": found["protocol"].partition(" | n ")[0], "examples": found["examples"]}
    return filled


def _recall(place: Workspace, table: PaperTable) -> Cells:
    """HT Table 1; L is scaled as all counts of paragraphs are."""
    counts = [int(column.removeprefix("L = ")) for column in table.columns]
    best = [place.scale.length("max_paragraphs", count) for count in counts]
    pool = "many" if place.config.size == "paper" else BASE
    frame = recall(place.data(pool), place.run(RANKER).path, "test", tuple(dict.fromkeys(best)), place.config.limit)
    lines = {(line["order"], line["best"]): line for line in frame.to_dict("records")}
    notes = [f"Clusters have {frame.attrs['paragraphs']:.1f} paragraphs on average."]
    if counts != best:
        notes.append(f"Here L is {', '.join(map(str, best))}, scaled to the data.")
    rows = {row.name: [_cell(lines[row.system, count], "recall", "") for count in best] for row in table.rows}
    return {"rows": rows, "examples": int(frame.examples.max()), "notes": notes}


def _compression(place: Workspace, table: PaperTable) -> Cells:
    """PHT Table 6: figures of all paragraphs, differences to them of fewer."""
    system = systems()[str(table.system)]
    counts = {row.name: int(row.system) for row in table.rows}
    whole, scale = max(counts.values()), place.scale
    kept = {name: scale.length("max_paragraphs", count) for name, count in counts.items() if count < whole}
    frame = compression(
        place.run(system.run).path,
        place.data(systems()[system.run].data),
        "test",
        tuple(dict.fromkeys(kept.values())),
        table.protocol,
        place.config.limit,
        beta=beta_of(place, system.run),
    )
    rows = {}
    for name in counts:
        lines = frame[frame.keep == kept.get(name, 0)].set_index(["metric", "part"])
        shown = ("difference", "difference_") if name in kept else ("value", "")
        rows[name] = [_cell(lines.loc[metric, part], *shown) for metric in METRICS for part in PARTS]
    notes = [f"Here s is {', '.join(map(str, kept.values()))}, scaled to the data; the last row reads all."]
    return {"rows": rows, "protocol": frame.attrs["protocol"].partition(" | n ")[0], "notes": notes}


def _ranks(place: Workspace, table: PaperTable) -> Cells:
    """PHT Figure 2: the plot, and the quartiles of the first ranks."""
    name = str(table.system)
    limit = 100 * place.config.limit  # rows that are read, not written: 10,000 as in the paper
    frame = ranks(place.run(name).path, place.data(systems()[name].data), table.split, limit)
    plot = place.table(table.id, ".png")
    plot.parent.mkdir(exist_ok=True)
    plot_ranks(frame, plot)
    lines = frame[frame.of == "model"].sort_values("rank").to_dict("records")
    rows = {f"rank {one['rank']}": [{"value": float(one[key])} for key in ("median", "q1", "q3")] for one in lines}
    return {"rows": rows, "examples": int(lines[0]["n"]), "plot": plot.name}


def _efficiency(place: Workspace, table: PaperTable) -> Cells:
    """VHT Table 4, PHT Table 5: of fresh weights, as they take the same time and memory; the papers' sizes always."""
    read, memory = _EFFICIENT[place.config.size]
    memory = place.config.memory or memory
    bench = EfficiencyBench(
        presets=_COSTED,
        memory_mb=memory,
        threads=cores(),
        target_tokens=read * 7 // 80,  # 140 of 1,600
        config=[f"source.max_tokens={read}", f"source.max_paragraphs={read // 100}"],
    )
    name, keys = f"efficiency-{memory}", ("largest_batch", "parameters_mb", "validation_s")
    lines = _kept(place, name, lambda: {"rows": {line["preset"]: line for line in bench.run().rows}})["rows"]
    rows = {row.name: [{"value": lines[row.system][key]} for key in keys] for row in table.rows}
    size = f"the papers' sizes; {read:,} source tokens (1,600 in the papers); {memory} MiB, {bench.most} examples most"
    notes = [f"Validation: seconds for {bench.examples} examples, {bench.threads} threads; the papers' are of 38,144."]
    return {"rows": rows, "size": size, "notes": notes}


def _people(place: Workspace, table: PaperTable) -> Cells:
    """Tables of judgements: sheets for judges, and, once these are filled in, the figures."""
    lacking = {row.name: place.lacks(systems()[row.system]) for row in table.rows if row.system in systems()}
    judged = [row.system for row in table.rows if lacking.get(row.name) == ""]
    cells: dict[str, list[Cell]] = {}
    for row in table.rows:
        cells[row.name] = [{"told": lacking.get(row.name) or JUDGES}] * len(table.columns)
    notes = []
    for study in table.studies:
        scores, note = _study(place, table, study, judged)
        notes += [note] if note else []
        for row in table.rows:
            for column, key in study["columns"].items():
                value = None if scores is None else _value(scores, study, row.system, key)
                divisor = 100 if column in study.get("shares", ()) else study.get("divisor", 1)
                if scores is None or value is not None:
                    cell = {"told": "no sheets"} if value is None else {"value": value / divisor}
                    cells[row.name][table.columns.index(column)] = cell
    return {"rows": cells, "notes": notes}


def _study(place: Workspace, table: PaperTable, study: dict[str, Any], judged: list[str]) -> tuple[Scores | None, str]:
    """Return the scores of a study, whose sheets are made if need be, and a note on what is still to be done for it.

    None if there can be no sheets.
    """
    from raysum.research.human.analysis import human_analyze  # loads scipy

    folder = place.out / "judges" / f"{table.id}-{study['design']}"
    again = f"`raysum reproduce {table.id}` with the same settings reads what they hold"
    try:
        if not folder.is_dir():
            _write_sheets(place, table, study, judged, folder)
        found = human_analyze(folder)
    except UnansweredStudy:
        return {}, f"Sheets for judges ({study['design']}) are in {folder / SHEETS}; {again}."
    except UserError as error:
        if folder.is_dir():  # a sheet that does not read
            raise
        return None, f"No sheets for judges ({study['design']}): {error}"  # such as no question to ask of these data
    return found.scores, f"Answers wait for marks in {folder / MARKS}; {again}." if found.waiting else ""


def _value(scores: Scores, study: dict[str, Any], system: str, key: str) -> float | None:
    if "sides" in study and scores:  # how many times as often as the first side
        sides = study["sides"]
        own = next(side for side, names in sides.items() if system in names)
        first = scores[next(iter(sides))].get(key)
        return scores[own].get(key, 0.0) / first if first else None
    if system == AVERAGE:
        known = [one[key] for one in scores.values() if key in one]
        return sum(known) / len(known) if known else None
    return scores.get(system, {}).get(key)


def _write_sheets(place: Workspace, table: PaperTable, study: dict[str, Any], judged: list[str], folder: Path) -> None:
    """Write the sheets of a study. Raises UserError as ``human_sheets`` does."""
    folders = [folder_of(place, name, table) for name in judged]
    names = [*judged, *(row.system for row in table.rows if row.system == REFERENCE)]
    if "sides" in study:
        folders, names = [_write_sides(place, table, study["sides"], folder)], [*study["sides"]]
    examples = sum(1 for _ in read_lines(folders[0] / "outputs.jsonl"))
    settings = {"design": study["design"], "judges": study["judges"], "systems": names, "out": str(folder)}
    if study["design"] == "questions" and place.config.questions:
        settings["questions"] = place.config.questions
    folder.parent.mkdir(exist_ok=True)
    human_sheets(folders, **settings, items=min(study["items"], examples))


def _write_sides(place: Workspace, table: PaperTable, sides: dict[str, list[str]], folder: Path) -> Path:
    """Write outputs as of two systems: of each example a summary by one of each side's systems, drawn."""
    draw = Random(f"raysum sides {table.id}")
    names = [name for side in sides.values() for name in side]
    outputs = {name: list(read_lines(folder_of(place, name, table) / "outputs.jsonl")) for name in names}
    lines = []
    for number, one in enumerate(outputs[names[0]]):
        drawn = {side: draw.choice(some) for side, some in sides.items()}
        summaries = {side: outputs[name][number][name] for side, name in drawn.items()}
        lines.append(json.dumps({"id": one["id"], REFERENCE: one[REFERENCE]} | summaries, ensure_ascii=False))
    made = folder.with_name(f"{folder.name}-summaries")
    made.mkdir(parents=True, exist_ok=True)
    write_text(made / "outputs.jsonl", "\n".join(lines) + "\n")
    return made


_MEASURES: dict[str, Callable[[Workspace, PaperTable], Cells]] = {
    "rouge": _of_evaluations,
    "attention": _of_evaluations,
    "recall": _recall,
    "compression": _compression,
    "ranks": _ranks,
    "efficiency": _efficiency,
    "people": _people,
}
