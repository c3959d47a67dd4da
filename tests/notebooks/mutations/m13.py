"""Mutations under which 13_debug_it must fail."""

from __future__ import annotations


def the_questions_go_on_after_a_failure() -> None:
    """check_run asks all seven, whatever the answers before."""
    import kitlib.inspector.doctor as doctor
    from kitlib.inspector.doctor.run_check import Answer, RunCheck

    original = doctor.check_run

    def check_run(run, **arguments):
        found = original(run, **arguments).answers
        on = [Answer(one.number, one.question, "ok", "") if one.state == "not reached" else one for one in found]
        return RunCheck(tuple(on))

    doctor.check_run = check_run


def the_last_error_counts() -> None:
    """The root cause of a chain is the error that was raised last."""
    import sys

    from kitlib.inspector.doctor import root_cause

    module = sys.modules["kitlib.inspector.doctor.check_run"]  # the function of this name hides it
    root_cause.root_cause = module.root_cause = lambda error: str(error).strip().splitlines()[-1]


def a_lost_field_is_not_missed() -> None:
    """The doctor does not compare presence with what the next stage reads."""
    from dataclasses import replace

    from kitlib.inspector.doctor import examine

    def missing_fields(s):
        """field_missing: never."""
        yield from ()

    rules = [replace(one, check=missing_fields) if one.name == "missing_fields" else one for one in examine.RULES]
    examine.RULES = tuple(rules)


def any_formula_will_do() -> None:
    """Advantages are not computed again."""
    from kitlib.trainer import formulas

    formulas.advantages_again = lambda tq, config, batch=None: ""
