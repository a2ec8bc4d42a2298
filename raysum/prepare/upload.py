"""A dataset for a store: made in the cache, then uploaded, the manifest last; kept there for whoever reads it here."""

import shutil
from pathlib import Path
from typing import Any

from raysum.data.dataset import MANIFEST
from raysum.errors import UserError
from raysum.runtime.lock import LOCK
from raysum.runtime.progress import say
from raysum.runtime.remote import listed, upload, url_of, version
from raysum.runtime.storage import read_json, write_json

_JOB = ".made.json"  # what the dataset that waits for its upload was made of


def making(out: Path) -> Path:
    """Where the dataset ``out`` is made: beside what is kept of it, where that is a URL's."""
    return version(out) if url_of(out) else out


def is_made(place: Path, job: dict[str, Any]) -> bool:
    """Whether ``place`` holds the dataset of this ``job``, which only has to be uploaded; what else is there goes.

    Raises UserError where something else is on the store, too.
    """
    if (url := url_of(place)) is None:
        return False
    there = listed(url).keys() - {LOCK}
    if MANIFEST in there:
        raise UserError(f"{url} exists already; remove it or choose another folder")
    told = place.with_name(_JOB)
    made = (place / MANIFEST).is_file() and told.is_file() and read_json(told) == job
    if there and not made:
        run = "config.yaml" in there
        what = "is a run" if run else f"has files but no {MANIFEST}: it is no dataset, or was not finished"
        raise UserError(f"{url} {what}; {'' if run else 'remove it or '}choose another folder")
    if not made:
        shutil.rmtree(place, ignore_errors=True)
    return made


def publish(place: Path, job: dict[str, Any]) -> None:
    """Upload the dataset at ``place``, if it is for a store. Raises UserError where that cannot be: the same command
    begins with the upload then."""
    if (url := url_of(place)) is None:
        return
    write_json(place.with_name(_JOB), job)
    names = sorted(path.name for path in place.iterdir() if path.name != MANIFEST)
    say(f"Uploading {sum(path.stat().st_size for path in place.iterdir()) / 1e6:.1f} MB to {url}")
    upload(place, names)
    upload(place, [MANIFEST])
    kept = version(place.parent, (place / MANIFEST).read_bytes())
    shutil.rmtree(kept, ignore_errors=True)
    place.rename(kept)
    place.with_name(_JOB).unlink()
