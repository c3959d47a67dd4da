"""`check_run` for a run that is not in this process: its folder, its recording, a queue.

verl 0.9.1 has no counterpart. A trainer of kitlib brings its formulas along (kitlib.trainer.formulas); a recording has
its config and its metrics in files, and a queue of verl has neither: they are put together here, so that estimator and
policy loss are computed again whatever the run was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kitlib.config import load_config
from kitlib.inspector import Recording, open_recording
from kitlib.inspector.doctor import RunCheck
from kitlib.inspector.doctor import check_run as ask_seven
from kitlib.inspector.doctor.diagnose import telling_moment
from kitlib.inspector.newest import newest_or_warn
from kitlib.inspector.recording_files import CONFIG
from kitlib.run.curve import read_metrics
from kitlib.trainer.formulas import reference_formulas


def check_run(run: Any, **arguments: Any) -> RunCheck:
    """The seven questions about a run. See kitlib.inspector.doctor.check_run for arguments and answers.

    run: a trainer, a queue, a Recording, or the folder of a run or of its recording (the newest one below it). The
        last question needs values: those of a recording are what kitlib.record_values names.
    """
    if isinstance(run, str | Path):
        run = open_recording(newest_or_warn(run))
    if "formulas" not in arguments and not hasattr(run, "formulas"):
        config = arguments.get("config")
        if isinstance(run, Recording) and config is None:
            config = _recorded_config(run.folder)
        source = telling_moment(run) if isinstance(run, Recording) and run.moments else run
        if config is not None:
            arguments["formulas"] = reference_formulas(source, config, _metrics(run))
    return ask_seven(run, **arguments)


def _recorded_config(folder: Path) -> Any:
    file = folder / CONFIG
    return load_config(file=file) if file.exists() else None


def _metrics(run: Any) -> dict[str, Any]:
    """The last metrics beside a recording; {} if there are none, or of another step than the last moment."""
    file = run.folder.parent / "metrics.jsonl" if isinstance(run, Recording) else None
    rows = read_metrics(file) if file is not None and file.exists() else []
    steps = [moment.step for moment in run.moments if moment.step is not None] if rows else []
    return rows[-1] if rows and steps and rows[-1].get("step") == steps[-1] else {}
