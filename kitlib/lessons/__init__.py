"""What the notebooks and the shipped data are made with.

    roadmap.py         the call chain as a picture, with the stage of the notebook lit
    tables.py          the contract as tables: what a stage is for, takes, gives, what changes it, where verl has it
    fixtures.py        a recorded batch, to begin in the middle of a step; make_fixtures.py records it
    rollout.py         wait for the agent loop without taking anything
    expect.py          errors shown on purpose: fail when nothing is raised; log lines kept, not printed
    faults/            something broken in a queue to find, a check of the finding, and the way back
    make_data/         the makers of the shipped data sets and checkpoints

A check takes the answer first, then what the truth follows from, and gives an Answer. It never raises on a wrong one.

    answers.py         the verdict: right, not yet (and why), or not answered
    reading.py         what was answered, as Python's own numbers and names
    plain_checks.py    checks of a number, a choice, a set of names, an order
    checks.py          checks of predictions about a queue

Checks, faults and helpers of one notebook alone lie in a module of its name; 01 needs only what is above.

    00 run_one_step.py                  04 run_agent_loop/      09 update_actor/
    02 replace_dataproto_by_keys.py     05 sample_groups/       10 fit_four_ways/
    03 submit_prompts.py                06 compute_reward/      11 stay_on_policy/
                                        07 score_the_tokens/    12 survive_restart/
                                        08 compute_advantage/   13 debug_it/

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
