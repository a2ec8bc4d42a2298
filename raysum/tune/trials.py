"""What a trial of a decode space does: it scores what one setting gives. Runs in Ray workers."""

from typing import Any

import ray
from ray import tune

from raysum.tune.decoding import BETA, Decoder, Scorer
from raysum.tune.job import Job

_CHUNK = 64  # examples between two reports


def decode_trial(values: dict[str, Any], job: Job, decoder: Any) -> None:
    """Scores the split chunk by chunk, in an actor that the dashboard shows under the trial's name."""
    name = tune.get_context().get_trial_name()
    beta = values[BETA] if decoder else None
    decoder = decoder or ray.remote(Decoder).options(num_cpus=0).remote(job, values)
    scorer: Any = ray.remote(Scorer).options(name=name, num_cpus=1).remote(job, name)
    for start in range(0, job.length, _CHUNK):
        stop = min(start + _CHUNK, job.length)
        tune.report(ray.get(scorer.score.remote(start, stop, decoder.decode.remote(start, stop, beta))))
