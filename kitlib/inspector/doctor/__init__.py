"""The doctor: it looks at a queue and says what is wrong, which keys, and the way out.

    from kitlib.inspector.doctor import doctor
    doctor(tq, stage="compute_advantage", config=config, batch=batch)     # a Report: text, page, findings, JSON
    check_run(trainer, overrides=["data.train_batch_size=32"])            # seven questions, settings first

Most trouble of a V1 run is visible in keys, tags and presence alone, before any tensor is looked at. Rules are short
pure functions of one `Situation`; a finding has a stable kind, the offending keys, a sentence and a way out.

Reading order: `finding`, `situation` (with `scene`, `choices`, `values`), one family of rules such as `presence` or
`waiting`, `rules`, `examine`, `diagnose`, `report`; `guess` for a run whose stage nobody tells; `case_file` for states
kept as files; `check_run` for a whole run.
"""

from kitlib.inspector.doctor.case_file import CaseFileError
from kitlib.inspector.doctor.check_run import check_run
from kitlib.inspector.doctor.diagnose import doctor
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.handle import HandleError
from kitlib.inspector.doctor.report import Report
from kitlib.inspector.doctor.run_check import RunCheck

__all__ = ["CaseFileError", "Finding", "HandleError", "Report", "RunCheck", "check_run", "doctor"]
