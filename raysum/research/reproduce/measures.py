"""Fill the cells of a table: ROUGE and attention from evaluations, other figures from ``raysum.research.analyses``."""

from collections.abc import Callable
from typing import Any

from raysum.metrics.rouge import PROTOCOLS
from raysum.research.reproduce.people import people
from raysum.research.reproduce.scoring import evaluated
from raysum.research.reproduce.systems import MEASURE, RANKER, systems
from raysum.research.reproduce.tables import PaperTable, TableRow
from raysum.research.reproduce.training import beta_of
from raysum.research.reproduce.workspace import BASE, Workspace
from raysum.runtime.processes import cores
from raysum.runtime.progress import say, span
from raysum.runtime.storage import read_json, write_json

# A figure {"value", "low", "high"}, the last two if it has an interval; or {"told"}: the reason for its absence.
Cell = dict[str, Any]
_ENDS = ("low", "high")
Filled = dict[str, Any]  # "rows": {row: [cells]}, and of the whole table "protocol", "examples", "notes", "plot"


def fill_table(place: Workspace, table: PaperTable) -> Filled:
    """The cells of a table with trained and evaluated systems."""
    return _MEASURES[table.measure](place, table)


def _rouge(place: Workspace, table: PaperTable) -> Filled:
    last = PROTOCOLS[table.protocol].published_l
    return _of_evaluations(place, table, ["rouge1", "rouge2", last])


def _attention(place: Workspace, table: PaperTable) -> Filled:
    return _of_evaluations(place, table, ["attention_similarity"])


def _of_evaluations(place: Workspace, table: PaperTable, names: list[str]) -> Filled:
    filled: Filled = {"rows": {}}
    for row in table.rows:
        if lacking := place.lacks(systems()[row.system]):
            filled["rows"][row.name] = [{"told": lacking}] * len(names)
            continue
        found = evaluated(place, row.system, table)
        (figures,) = found["systems"].values()
        filled["rows"][row.name] = [_cell(figures, name) for name in names]
        filled |= {"protocol": found["protocol"].partition(" | n ")[0], "examples": found["examples"]}
    return filled


def _cell(figures: dict[str, float], name: str) -> Cell:
    if name not in figures:
        return {"told": "no attention"}
    return {"value": figures[name]} | {end: figures[f"{name}_{end}"] for end in _ENDS if f"{name}_{end}" in figures}


def _kept(place: Workspace, name: str, measured: Callable[[], Filled]) -> Filled:
    """What is ``measured``, once for each folder."""
    file = place.measure(name)
    if not file.is_file():
        file.parent.mkdir(exist_ok=True)
        say(f"\nmeasure {name}, which takes about {span(MEASURE)}")
        write_json(file, measured())
    found: Filled = read_json(file)
    return found


def _recall(place: Workspace, table: PaperTable) -> Filled:
    """HT Table 1; L is scaled as all counts of paragraphs are."""
    from raysum.research.analyses import recall

    counts = {column: int(column.removeprefix("L = ")) for column in table.columns}
    best = {column: place.scale.paragraph_count(count) for column, count in counts.items()}

    def measured() -> Filled:
        lengths = tuple(dict.fromkeys(best.values()))
        frame = recall(place.data(_pool(place)), place.run(RANKER).path, "test", lengths, place.config.limit)
        rows = {}
        for row in table.rows:
            lines = frame[frame.order == row.system].set_index("best")
            rows[row.name] = [
                {"value": float(lines.recall[count])} | {end: float(lines[end][count]) for end in _ENDS}
                for count in best.values()
            ]
        notes = [f"Clusters have {frame.attrs['paragraphs']:.1f} paragraphs on average."]
        if [*counts.values()] != [*best.values()]:
            notes.append("Here L is " + ", ".join(map(str, best.values())) + ", scaled to the data.")
        return {"rows": rows, "examples": int(frame.examples.max()), "notes": notes}

    return _kept(place, table.id, measured)


def _pool(place: Workspace) -> str:
    """Return the dataset for the best paragraphs; at the papers' size it has all paragraphs."""
    return "many" if place.config.size == "paper" else BASE


def _compression(place: Workspace, table: PaperTable) -> Filled:
    """PHT Table 6: figures of all paragraphs, differences to them of fewer."""
    from raysum.research.analyses import compression

    assert table.system
    system = systems()[table.system]
    whole, dataset = max(int(row.system) for row in table.rows), systems()[system.run].data
    kept = {row.name: place.scale.paragraph_count(int(row.system)) for row in table.rows if int(row.system) < whole}

    def measured() -> Filled:
        frame = compression(
            place.run(system.run).path,
            place.data(dataset),
            "test",
            tuple(dict.fromkeys(kept.values())),
            table.protocol,
            place.config.limit,
            beta=beta_of(place, system.run),
        )
        rows = {}
        for row in table.rows:
            lines = frame[frame.keep == kept.get(row.name, 0)].set_index(["metric", "part"])
            kind = "difference" if row.name in kept else "value"
            shown = [kind, *(f"difference_{end}" if row.name in kept else end for end in _ENDS)]
            rows[row.name] = [
                {end: float(lines[one][metric, part]) for end, one in zip(("value", *_ENDS), shown, strict=True)}
                for metric in ("rouge1", "rouge2", "rougeL")
                for part in ("f1", "precision", "recall")
            ]
        notes = ["Here s is " + ", ".join(map(str, kept.values())) + ", scaled to the data; the last row reads all."]
        return {"rows": rows, "protocol": frame.attrs["protocol"].partition(" | n ")[0], "notes": notes}

    return _kept(place, table.id, measured)


def _ranks(place: Workspace, table: PaperTable) -> Filled:
    """PHT Figure 2: the plot, and the quartiles of the first ranks."""
    from raysum.research.analyses import plot_ranks, ranks

    assert table.system
    name = table.system

    def measured() -> Filled:
        limit = 100 * place.config.limit  # rows that are read, not written: 10,000 as in the paper
        frame = ranks(place.run(name).path, place.data(systems()[name].data), table.split, limit)
        plot = place.table(table.id, ".png")
        plot.parent.mkdir(exist_ok=True)
        plot_ranks(frame, plot)
        lines = frame[frame.of == "model"].sort_values("rank").to_dict("records")
        rows = {f"rank {one['rank']}": [{"value": float(one[key])} for key in ("median", "q1", "q3")] for one in lines}
        return {"rows": rows, "examples": int(lines[0]["n"]), "plot": plot.name}

    return _kept(place, table.id, measured)


def _efficiency(place: Workspace, table: PaperTable) -> Filled:
    """VHT Table 4, PHT Table 5: of fresh weights, as they take the same time and memory; the papers' sizes always."""
    from raysum.bench.efficiency import EfficiencyBench

    read, memory = _EFFICIENT[place.config.size]
    memory = place.config.memory or memory
    asked = EfficiencyBench(
        presets=_COSTED,
        memory_mb=memory,
        threads=cores(),
        target_tokens=read * 7 // 80,  # 140 of 1,600
        config=[f"source.max_tokens={read}", f"source.max_paragraphs={read // 100}"],
    )

    def measured() -> Filled:
        return {"rows": {line["preset"]: line for line in asked.run().rows}}

    lines = _kept(place, f"efficiency-{memory}", measured)["rows"]
    keys = ("largest_batch", "parameters_mb", "validation_s")
    rows = {
        row.name: [{"value": line[key]} if line.get(key) is not None else {"told": "-"} for key in keys]
        for row in table.rows
        if (line := lines[row.system])
    }
    told = f"the papers' sizes; {read:,} source tokens (1,600 in the papers); {memory} MiB, {asked.most} examples most"
    notes = [f"Validation: seconds for {asked.examples} examples, {asked.threads} threads; the papers' are of 38,144."]
    return {"rows": rows, "size": told, "notes": notes}


# Source tokens, and MiB for a batch. The papers' 1,600 tokens take about ten minutes on two cores.
_EFFICIENT = {"small": (400, 1024), "paper": (1600, 2048)}
_COSTED = ["ft-3", "transformer-decoder", "tdmca-3", "txl", "ht-3-3", "vht", "pht"]
_MEASURES: dict[str, Callable[[Workspace, PaperTable], Filled]] = {
    "rouge": _rouge,
    "attention": _attention,
    "recall": _recall,
    "compression": _compression,
    "ranks": _ranks,
    "efficiency": _efficiency,
    "people": people,
}


def row_of(name: str, table: PaperTable) -> TableRow:
    """A row of the table, or one that the paper does not have."""
    return next((row for row in table.rows if row.name == name), TableRow(name, "", [None] * len(table.columns)))
