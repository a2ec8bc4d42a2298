"""`raysum teach`: read clusters, ask for the summaries that they lack, and write all of them.

The clusters are read three times: to count the questions, to ask them, and to write the answers. Of large sources, Ray
tasks read and rank the clusters; the threads of this process ask.
"""

import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from raysum.config.base import with_settings
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.runtime.failures import Failure, unpickled
from raysum.runtime.lock import folder_lock
from raysum.runtime.processes import quiet_data
from raysum.runtime.progress import bar, say
from raysum.runtime.remote import local
from raysum.runtime.session import optional_session
from raysum.runtime.storage import check_here
from raysum.sources.find import RawSource, find_sources
from raysum.teach.answers import Answers, open_answers
from raysum.teach.asking import Asker, Tally, saved_answer
from raysum.teach.config import TeachConfig, api_key
from raysum.teach.output import PreviousOutput, TeachResult, rejected_path, write_output
from raysum.teach.prompts import Prompts, Question, Task, items, question_of

_SMALL = 8 << 20  # bytes of sources that this process reads and ranks in less time than Ray needs to start
_READING = 0.9  # of a CPU for a task
_ANSWERS = ".answers"  # suffix of the output's name


@with_settings(TeachConfig)
def teach(
    sources: str | Path | Iterable[str | Path], out: str | Path, teacher: str, model: str, **settings: Any
) -> TeachResult:
    """Let ``model`` at the server ``teacher`` write the summaries that the clusters of ``sources`` lack, into ``out``.

    The environment variable RAYSUM_TEACHER_KEY holds the server's key. Each answer is saved in ``out.answers`` as it
    comes: the same call continues a killed one, and never asks twice. Raises UserError for a mistake in sources or
    settings, if the server refuses a request, and if it stops answering.

    >>> raysum.teach("clusters.jsonl", "taught.jsonl", "http://127.0.0.1:8000/v1", "qwen").taught
    """
    start = time.monotonic()
    config = section_of(TeachConfig, {**settings, "out": str(out), "teacher": teacher, "model": model})
    needs("openai", "`raysum teach`")
    names = [sources] if isinstance(sources, str | Path) else list(sources)
    path = local(config.out)
    answers_path = path.with_name(path.name + _ANSWERS)
    check_here(Path(config.out), "--out")
    _check_paths(path, answers_path, [local(str(name)) for name in names])
    task, found = Task(config, Prompts.of(config), api_key()), find_sources(names, config.mapping)
    with folder_lock(path, path.with_name(f".{path.name}.lock")), open_answers(answers_path) as answers:
        answers.add_prompt(task.prompts.sha256, task.prompts.summary)
        tally, missing, is_spent = Tally(config.max_rejected), dict[str, str](), False
        keys = _keys_to_ask(found, task, answers, tally, PreviousOutput(path))
        if keys and not tally.ends_job:
            asker = Asker(task, answers, tally)
            _ask(asker, found, task, keys)
            missing, is_spent = asker.missing, asker.is_spent
        figures = write_output(found, task, answers, path, missing)
        figures |= {"answers": answers.added, "spent": is_spent, "seconds": round(time.monotonic() - start, 2)}
    return TeachResult(figures, config)


def _check_paths(out: Path, answers: Path, sources: list[Path]) -> None:
    """Raises UserError if the job would overwrite a file that is not its own, or read its output as a source."""
    if out.exists() and not answers.exists():
        raise UserError(f"{out} exists already; remove it, or choose another --out")
    for path in (out, answers, rejected_path(out)):
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no file; remove it, or choose another --out")
        for source in sources:
            if path.resolve() == source.resolve() or (source.is_dir() and path.is_relative_to(source)):
                raise UserError(f"{path} would be read as one of the clusters; choose an --out elsewhere")


def _keys_to_ask(
    sources: list[RawSource], task: Task, answers: Answers, tally: Tally, previous: PreviousOutput
) -> frozenset[str]:
    """Return the keys of clusters to ask about, report their number, and add saved answers to the ``tally``.

    Raises UserError if no cluster is readable, or if the output holds other clusters.
    """
    keys, counts, first = set[str](), Counter[str](), ""
    for item in (item for source in sources for item in items(source, task)):
        previous.mark_seen(item.raw)
        if item.problem:
            counts["unreadable"] += 1
            first = first or f"{item.record.where}: {item.problem}"
            continue
        counts["to teach" if item.key else "kept"] += 1
        saved = saved_answer(answers, item.key, task.config) if item.key else None
        if saved:
            tally.add(bool(saved.reason))
        # A rejected answer needs no citations.
        is_done = saved and (not task.config.cite or saved.reason or saved_answer(answers, item.cite_key, task.config))
        if item.key and not is_done:
            keys.add(item.key)
    if counts["unreadable"] == counts.total():
        raise UserError(f"no cluster can be read; the first that cannot is {first}")
    previous.check()
    parts = [f"{counts['to teach']} clusters to teach, {counts['kept']} have a summary"]
    if counts["unreadable"]:
        parts.append(f"{counts['unreadable']} cannot be read, such as {first}")
    if done := counts["to teach"] - len(keys):
        parts.append(f"{done} are answered already or the same as another")
    say("; ".join(parts))
    return frozenset(keys)


def _ask(asker: Asker, sources: list[RawSource], task: Task, keys: frozenset[str]) -> None:
    """Ask about the clusters of ``keys``, each once, with a progress bar."""
    is_large = sum(source.size for source in sources) > _SMALL
    address = task.config.address
    with (
        optional_session(address, address is not None or is_large) as on_ray,
        bar(total=len(keys), label="teach", unit="cluster") as progress,
    ):

        def report(tokens: int) -> None:
            progress.set_postfix_str(f"{tokens:,} tokens", refresh=False)
            progress.update()

        read = _questions_on_ray if on_ray else _questions
        with closing(read(sources, task, keys)) as questions:
            asker.run(_unique(questions), report)


def _unique(questions: Iterable[Question]) -> Iterator[Question]:
    keys = set[str]()
    for question in questions:
        if question.key not in keys:
            keys.add(question.key)
            yield question


def _questions(sources: list[RawSource], task: Task, keys: frozenset[str]) -> Generator[Question]:
    for source in sources:
        yield from (question_of(item, task.config) for item in items(source, task) if item.key in keys)


def _questions_on_ray(sources: list[RawSource], task: Task, keys: frozenset[str]) -> Generator[Question]:
    """Yield questions that tasks of Ray Data make."""
    import ray.data

    quiet_data()

    def read(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return Failure.in_rows(_questions([sources[row["source"]]], task, keys), "question")

    numbers = range(len(sources))
    dataset = ray.data.from_items([{"source": number} for number in numbers], override_num_blocks=len(numbers))
    most = min(max(1, int(ray.cluster_resources()["CPU"])), len(sources))
    rows = dataset.flat_map(read, num_cpus=_READING, compute=ray.data.TaskPoolStrategy(most))
    for row in rows.iter_rows():
        yield unpickled(row["question"])
