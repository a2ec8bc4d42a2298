"""Whether a training has reached its end."""

from raysum.report.gather import RunRecord
from raysum.train.job_spec import out_of_patience


def is_finished(record: RunRecord, step: int) -> bool:
    """Return whether the training of a run, now at ``step``, has ended by its own limits."""
    settings = record.run.config.train
    seconds = max([record.state.get("seconds") or 0.0, *(line.seconds or 0.0 for line in record.lines)])
    is_over = bool(settings.minutes and seconds >= 60 * settings.minutes)
    has_ended = not record.lines or bool(record.run.config.model.TRAINER) or step >= settings.steps or is_over
    is_patient = not out_of_patience(settings.patience, record.run.validation_scores(settings), step)
    return record.best is not None and (has_ended or not is_patient)
