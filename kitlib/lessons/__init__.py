"""What the notebooks and the shipped data are made with.

    roadmap.py         the call chain as a picture, with the stage of the notebook lit
    tables.py          the contract as tables: what a stage is for, takes, gives, what changes it, where verl has it
    expect.py          errors shown on purpose: fail when nothing is raised
    answers.py         what a check says to a reader
    plain_checks.py    checks of a number, a choice, a set of names, an order
    checks.py          checks of predictions about a queue
    faults/            something broken to find, a check of the finding, and the way back
    fixtures.py        a recorded batch, to begin in the middle of a step
    rollout.py         wait for the agent loop without taking anything
    make_data/         the makers of the shipped data sets and checkpoints
    make_fixtures.py   the recorder of the batch

Checks, faults and helpers of one notebook alone lie in a module of its name.

Nothing of the pipeline imports from here.
"""

from kitlib.lessons import faults
from kitlib.lessons.answers import Answer
from kitlib.lessons.checks import check_new_fields, check_read
from kitlib.lessons.expect import LessonError, captured_log, expect_error
from kitlib.lessons.faults import Fault, FaultError, lose_field, misplace_row
from kitlib.lessons.fixtures import Fixture, FixtureError, load_fixture
from kitlib.lessons.plain_checks import check_choice, check_names, check_number, check_order
from kitlib.lessons.roadmap import Roadmap, roadmap
from kitlib.lessons.rollout import wait_for_rollout
from kitlib.lessons.tables import crosswalk, three_questions

__all__ = [
    "Answer",
    "Fault",
    "FaultError",
    "Fixture",
    "FixtureError",
    "LessonError",
    "Roadmap",
    "captured_log",
    "check_choice",
    "check_names",
    "check_new_fields",
    "check_number",
    "check_order",
    "check_read",
    "crosswalk",
    "expect_error",
    "faults",
    "load_fixture",
    "lose_field",
    "misplace_row",
    "roadmap",
    "three_questions",
    "wait_for_rollout",
]
