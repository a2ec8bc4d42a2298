"""`raysum teach`: clusters in; the same clusters out, each with a summary, and those that got none set aside.

The clusters are gone through three times: to count what is to be asked, to ask, and to write what was answered. Asking
goes through Ray Data where there is much to read: tasks read and rank, and one actor asks, on this machine, with as
many threads as there may be requests at once.
"""

import pickle
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from raysum.config.loading import section_of
from raysum.config.signatures import with_settings
from raysum.errors import UserError
from raysum.runtime.lock import folder_lock
from raysum.runtime.log_filters import quiet_data
from raysum.runtime.progress import bar, say
from raysum.runtime.remote import local
from raysum.runtime.session import optional_session
from raysum.runtime.storage import check_here
from raysum.sources.find import RawSource, find_sources
from raysum.teach.answers import Answer, Answers, answers_in
from raysum.teach.asking import Asker, Outcome, ask_here, kept_of
from raysum.teach.config import TeachConfig, api_key
from raysum.teach.log_relay import relayed
from raysum.teach.previous_answers import Earlier
from raysum.teach.prompts import Brief, Item, Prompts, Task, brief_of, items
from raysum.teach.rejects import Tally
from raysum.teach.written import TeachResult, aside, write

_SMALL = 8 << 20  # bytes of text: this process reads and ranks them while the teacher answers, in less than Ray's start
_READING, _ASKING = 0.9, 0.1  # of a CPU; one that asks mostly waits
_IN_CALL = 16  # briefs in a call of the actor, at most: a call takes Ray 45 ms
_CALLS = 8  # of each thread, at least
_ANSWERS = ".answers"  # behind the name of the output


@with_settings(TeachConfig)
def teach(
    sources: str | Path | Iterable[str | Path], out: str | Path, teacher: str, model: str, **settings: Any
) -> TeachResult:
    """Let ``model`` at the server ``teacher`` write the summaries that the clusters of ``sources`` lack, into ``out``.

    The server's key is in the environment, RAYSUM_TEACHER_KEY. Each
    answer is kept as it comes, in ``out.answers``: the same call goes on where a killed one was, and asks for nothing
    twice. Raises UserError for a mistake in sources or settings, where the server refuses what is asked, and where it
    does not answer any more.

    >>> raysum.teach("clusters.jsonl", "taught.jsonl", "http://127.0.0.1:8000/v1", "qwen").taught
    """
    given = {**settings, "out": str(out), "teacher": teacher, "model": model}
    began, config = time.monotonic(), section_of(TeachConfig, given)
    named = [sources] if isinstance(sources, str | Path) else list(sources)
    path = local(config.out)
    kept = path.with_name(path.name + _ANSWERS)
    check_here(Path(config.out), "--out")
    _check_place(path, kept, [local(str(name)) for name in named])
    task, found = Task(config, Prompts.of(config), api_key(), kept), find_sources(named, config.mapping)
    with folder_lock(path, path.with_name(f".{path.name}.lock")):
        with answers_in(kept) as answers:
            answers.note(task.prompts.sha256, task.prompts.summary)
            tally = Tally(config.max_rejected)
            known, todo = len(answers), _to_teach(found, task, answers, tally, Earlier(path))
        missing, spent = dict[str, str](), False
        if todo and not tally.ends_it:
            is_large = sum(source.size for source in found) > _SMALL
            with optional_session(config.address, config.address is not None or is_large) as on_ray:
                ask = _ask_on_ray if on_ray else _ask_here
                with closing(ask(found, task, todo, tally)) as outcomes:
                    missing, spent = _followed(outcomes, len(todo))
        with answers_in(kept) as answers:
            figures = write(found, task, answers, path, missing)
            asked = len(answers) - known
    figures |= {"answers": asked, "spent": spent, "seconds": round(time.monotonic() - began, 2)}
    return TeachResult(figures, config)


def _check_place(out: Path, kept: Path, named: list[Path]) -> None:
    """Raises UserError where what would be written over is not ours, or would be read as a source."""
    if out.exists() and not kept.exists():
        raise UserError(f"{out} exists already; remove it, or choose another --out")
    for written in (out, kept, aside(out)):
        if written.exists() and not written.is_file():
            raise UserError(f"{written} is no file; remove it, or choose another --out")
        for name in named:
            if written.resolve() == name.resolve() or (name.is_dir() and written.is_relative_to(name)):
                raise UserError(f"{written} would be read as one of the clusters; choose an --out elsewhere")


def _to_teach(sources: list[RawSource], task: Task, answers: Answers, tally: Tally, earlier: Earlier) -> frozenset[str]:
    """The keys of clusters to be asked about; how many is said, and answers that are kept go into the ``tally``. Raises
    UserError where no cluster can be read, or the output holds others."""
    todo, counts, first = set[str](), Counter[str](), ""
    for source in sources:
        for item in items(source, task):
            earlier.seen(item.raw)
            if item.problem:
                counts["unreadable"] += 1
                first = first or f"{item.record.where}: {item.problem}"
            else:
                counts["to teach" if item.key else "kept"] += 1
                kept = kept_of(answers, item.key, task.config) if item.key else None
                if kept:
                    tally.add(bool(kept.reason))
                if item.key and not (kept and _is_done(item, kept, task.config, answers)):
                    todo.add(item.key)
    if counts["unreadable"] == counts.total():
        raise UserError(f"no cluster can be read; the first that cannot is {first}")
    earlier.check()
    told = [f"{counts['to teach']} clusters to teach, {counts['kept']} have a summary"]
    if counts["unreadable"]:
        told.append(f"{counts['unreadable']} cannot be read, such as {first}")
    if done := counts["to teach"] - len(todo):
        told.append(f"{done} are answered already or the same as another")
    say("; ".join(told))
    return frozenset(todo)


def _is_done(item: Item, kept: Answer, config: TeachConfig, answers: Answers) -> bool:
    """Whether nothing more is to be asked; of a rejected answer no citations are."""
    return not config.cite or bool(kept.reason) or kept_of(answers, item.cite_key, config) is not None


def _followed(outcomes: Iterator[Outcome], todo: int) -> tuple[dict[str, str], bool]:
    """Why clusters were not answered, by key, and whether the budget is spent. Raises UserError for a problem, once
    all that was on its way is answered."""
    missing, done, problem, spent, enough = dict[str, str](), set[str](), "", False, False
    with bar(total=todo, label="teach", unit="cluster") as shown:
        for outcome in outcomes:
            if outcome.fault:
                raise RuntimeError(f"teaching failed:\n{outcome.fault}")
            problem, spent = problem or outcome.problem, spent or outcome.spent
            enough = enough or outcome.enough
            if outcome.missing:
                missing[outcome.key] = outcome.missing
            if outcome.key not in done and not (outcome.problem or outcome.spent or outcome.left):
                done.add(outcome.key)
                shown.set_postfix_str(f"{outcome.tokens:,} tokens", refresh=False)
                shown.update()
            if (problem or spent or enough) and not outcome.busy:
                break
    if problem:
        raise UserError(problem)
    return missing, spent


def _briefs(source: RawSource, task: Task, todo: frozenset[str]) -> Iterator[Brief]:
    """Of the clusters whose keys are in ``todo``."""
    return (brief_of(item, task.config) for item in items(source, task) if item.key in todo)


def _ask_here(sources: list[RawSource], task: Task, todo: frozenset[str], tally: Tally) -> Generator[Outcome]:
    asker = Asker(task, tally)
    try:
        briefs = (brief for source in sources for brief in _briefs(source, task, todo))
        yield from ask_here(asker, briefs, task.config.concurrency)
    finally:
        asker.close()


class _Asking:
    """The actor that asks: by each call for some briefs, one after the other."""

    def __init__(self, task: Task, tally: Tally, relay: Path):
        self.asker = Asker(task, tally, relay)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        given = pickle.loads(row["briefs"])  # written by read, on the same cluster
        return {"outcomes": pickle.dumps([one if isinstance(one, Outcome) else self.asker(one) for one in given])}


def _ask_on_ray(sources: list[RawSource], task: Task, todo: frozenset[str], tally: Tally) -> Generator[Outcome]:
    """The actor is on this machine, where the answers are kept. No exception leaves a task, as in `raysum prepare`."""
    import ray.data

    quiet_data()
    at_once = task.config.concurrency
    in_call = max(1, min(_IN_CALL, len(todo) // (_CALLS * at_once)))

    def read(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            briefs = _briefs(sources[row["source"]], task, todo)
            while some := list(islice(briefs, in_call)):
                yield {"briefs": pickle.dumps(some)}
        except Exception:
            yield {"briefs": pickle.dumps([Outcome("", "", fault=traceback.format_exc())])}

    numbers = range(len(sources))
    dataset = ray.data.from_items([{"source": number} for number in numbers], override_num_blocks=len(numbers))
    dataset.context.target_max_block_size = 1  # byte: every row is a block of its own, and so a call of its own
    most = max(1, int(ray.cluster_resources()["CPU"]))
    briefs = dataset.flat_map(read, num_cpus=_READING, compute=ray.data.TaskPoolStrategy(min(most, len(sources))))
    threads = ray.data.ActorPoolStrategy(
        size=1,
        max_concurrent_calls_per_actor=at_once,
        max_tasks_in_flight_per_actor=at_once + 1,
        enable_true_multi_threading=True,
    )
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    with relayed() as relay:
        given = (task, tally, relay)
        actor: Any = {"num_cpus": _ASKING, "label_selector": here, "compute": threads, "fn_constructor_args": given}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that max_restarts will have another place in a later Ray
            outcomes = briefs.map(_Asking, max_restarts=0, **actor)  # type: ignore[arg-type]
        for row in outcomes.iter_rows():
            yield from pickle.loads(row["outcomes"])
