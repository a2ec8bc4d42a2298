"""Write checkpoints in a background thread while training continues.

All ranks write into ``checkpoints/.partial-STEP-ATTEMPT/`` in the run folder. If it is on a store, each rank uploads
its shards. Hosts without the folder of rank 0 send it the shards that were not uploaded. Rank 0 writes the checksums,
renames the folder to ``step-STEP``, and uploads the other files, the checksums last.
"""

import os
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from raysum.errors import UserError
from raysum.models.adapters import merge_adapters
from raysum.runs.folder import Run, fill_checkpoint
from raysum.runtime.checksums import ChecksumFile
from raysum.runtime.remote import upload, url_of
from raysum.runtime.run_sync import push_so_far, unsealed
from raysum.train.checkpoints import ENGINE, PARTIAL
from raysum.train.engine_state import contents, write_contents, writes_for_host
from raysum.train.group import from_all_ranks, from_rank_0
from raysum.train.snapshot import Fragment, Snapshot, engine_states, gather_weights, weight_fragments, weight_shapes


class CheckpointWriter:
    """Saves checkpoints of ``run``, and runs other work, in order, in a thread. Every rank has one.

    The ``remote`` ranks do not share the folder of rank 0. The thread has a process group of its own.
    """

    def __init__(self, run: Run, remote: frozenset[int] = frozenset()):
        self._run, self._remote = run, remote
        self._group = distributed.new_group(backend="gloo")
        self._thread, self._error = ThreadPoolExecutor(1, "checkpoints"), list[BaseException]()
        self._writing: Future[None] | None = None
        self._uploaded = set[str]()  # files of the last checkpoint that the ranks have uploaded, in the run folder
        self._snapshot = Snapshot()

    def save(self, engine: Any, state: dict[str, Any]) -> None:
        """Start to write the checkpoint of ``state["step"]``, after the work before it. Every rank calls it.

        Training stops for a copy of the state; where memory does not suffice, until everything is written. Raises the
        errors of :meth:`wait`.
        """
        self.wait()
        final = self._run.checkpoint_path(state["step"])
        partial = self._run.checkpoint_folder / f"{PARTIAL}{final.name}-{from_rank_0(secrets.token_hex(4))}"
        states, fragments = engine_states(engine, partial, ENGINE), weight_fragments(engine)
        copied = self._snapshot.take(states, fragments)
        model, shapes = engine.module.model, weight_shapes(engine)
        self._writing = self.then(self._write, (partial, final), *(copied or (states, fragments)), shapes, model, state)
        if copied is None:
            self.wait()

    def then(self, work: Callable[..., Any], *arguments: Any) -> Future[None]:
        """Run ``work`` in the thread after the work before it, unless that fails."""
        return self._thread.submit(self._try, work, *arguments)

    def push(self) -> None:
        """Upload the run, if it is on a store: the seal of a checkpoint after all its files."""
        push_so_far(self._run.path, self._uploaded)

    def wait(self) -> None:
        """Wait for the end of all work, and raise its first error."""
        self._thread.submit(lambda: None).result()
        if self._error:
            raise self._error[0]

    def close(self) -> None:
        """Wait until the last checkpoint is written, and drop the other work that has not begun."""
        if self._writing:
            self._writing.result()
        self._thread.shutdown(cancel_futures=True)

    def _try(self, work: Callable[..., Any], *arguments: Any) -> None:
        try:
            if not self._error:
                work(*arguments)
        except BaseException as error:
            self._error.append(error)

    def _write(
        self,
        folders: tuple[Path, Path],
        states: dict[Path, Any],
        fragments: list[Fragment],
        shapes: dict[str, torch.Size],
        model: torch.nn.Module,
        state: dict[str, Any],
    ) -> None:
        """Write a checkpoint into the first of the ``folders``, which then gets the name of the second."""
        partial, final = folders
        written = self._agreed(lambda: {str(path.relative_to(partial)): _save(states[path], path) for path in states})
        uploaded = self._upload(partial, final, [str(path.relative_to(partial)) for path in states])
        self._uploaded = {str((final / name).relative_to(self._run.path)) for name in uploaded}
        if self._remote:
            self._collect(partial, [name for own in written for name in own if name not in uploaded])
        weights = gather_weights(fragments, shapes, self._group)
        checksums = {name: own[name] for own in written for name in own}

        def publish() -> None:
            if distributed.get_rank() == 0:
                fill_checkpoint(partial, merge_adapters(model, weights), state, checksums)
                shutil.rmtree(final, ignore_errors=True)  # an earlier attempt that lost its engine state
                os.replace(partial, final)

        self._agreed(publish)

    def _upload(self, partial: Path, final: Path, names: list[str]) -> set[str]:
        """Upload the files ``names`` of this rank, if the run is on a store; return those that all ranks uploaded.

        A failure is no error: rank 0 uploads the rest, and retries.
        """
        is_first = distributed.get_rank() == 0
        if url_of(self._run.path) is None or not self._agreed(lambda: is_first and unsealed(final))[0]:
            return set()

        def upload_own() -> list[str]:
            try:
                upload(final, names, source=partial)
            except UserError:
                return []
            return names

        return {name for own in self._agreed(upload_own) for name in own}

    def _collect(self, partial: Path, names: list[str]) -> None:
        """Send the files ``names`` of remote hosts to rank 0, which writes them."""
        sends, is_first = writes_for_host(self._remote), distributed.get_rank() == 0
        gathered: list[Any] | None = [None] * distributed.get_world_size() if is_first else None
        distributed.gather_object(contents(partial, names) if sends else {}, gathered, dst=0, group=self._group)
        for files in gathered or ():
            write_contents(partial, files)
        if sends:
            shutil.rmtree(partial, ignore_errors=True)

    def _agreed(self, work: Callable[[], Any]) -> list[Any]:
        """Return the results of ``work`` on all ranks. If it fails on one rank, all raise."""
        result = error = None
        try:
            result = work()
        except Exception as failure:
            error = failure
        found = from_all_ranks((result, None if error is None else str(error)), self._group)
        for rank, (_, failure_there) in enumerate(found):
            if failure_there is not None:
                raise error or RuntimeError(f"worker {rank} cannot save a checkpoint: {failure_there}")
        return [there for there, _ in found]


def _save(state: Any, path: Path) -> dict[str, int]:
    """Write a state as DeepSpeed does, and return the checksum of the file."""
    file: Any = ChecksumFile(path)
    torch.save(state, file)
    return file.close()
