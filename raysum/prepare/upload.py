"""Datasets for a store: written into the cache, and uploaded with the manifest last; the copy stays in the cache."""

import shutil
from pathlib import Path
from typing import Any

from raysum.data.dataset import MANIFEST
from raysum.errors import UserError
from raysum.runtime.lock import LOCK
from raysum.runtime.progress import say
from raysum.runtime.remote import listed, upload, url_of, version
from raysum.runtime.storage import read_json, write_json

_JOB = ".made.json"  # the inputs of a complete dataset that is not yet uploaded


def staging_folder(out: Path) -> Path:
    """Return the folder to write the dataset ``out`` into: for a URL, one beside its copies in the cache."""
    return version(out) if url_of(out) else out


def is_staged(folder: Path, job: dict[str, Any]) -> bool:
    """Return whether ``folder`` holds the dataset of this ``job`` and only needs the upload; remove any other content.

    Raises UserError if the store already has other files there.
    """
    if (url := url_of(folder)) is None:
        return False
    files = listed(url).keys() - {LOCK}
    if MANIFEST in files:
        raise UserError(f"{url} exists already; remove it or choose another folder")
    job_file = folder.with_name(_JOB)
    is_complete = (folder / MANIFEST).is_file() and job_file.is_file() and read_json(job_file) == job
    if files and not is_complete:
        is_run = "config.yaml" in files
        problem = "is a run" if is_run else f"has files but no {MANIFEST}: it is no dataset, or is incomplete"
        raise UserError(f"{url} {problem}; {'' if is_run else 'remove it or '}choose another folder")
    if not is_complete:
        shutil.rmtree(folder, ignore_errors=True)
    return is_complete


def publish(folder: Path, job: dict[str, Any]) -> None:
    """Upload the dataset in ``folder``, if it is for a store. Raises UserError if that fails.

    The same command then starts with the upload.
    """
    if (url := url_of(folder)) is None:
        return
    write_json(folder.with_name(_JOB), job)
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)
    say(f"Uploading {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.1f} MB to {url}")
    upload(folder, names)
    upload(folder, [MANIFEST])
    cached = version(folder.parent, (folder / MANIFEST).read_bytes())
    shutil.rmtree(cached, ignore_errors=True)
    folder.rename(cached)
    folder.with_name(_JOB).unlink()
