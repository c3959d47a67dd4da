"""Notebook 05: toy groups, checks of predictions, groups with something wrong, and a sampler of one's own.

toys.py     groups put by hand, prompts that a sampler asks for, a `sample` beside the notebook
checks.py   which groups are taken, how many are submitted anew, will a wait end
faults.py   a short group, an orphan and a ghost to tell apart
sampler.py  WholeGroups, and the check of a reader's own
"""

from kitlib.lessons.sample_groups.checks import check_refill, check_sampled, check_wait
from kitlib.lessons.sample_groups.faults import OddGroups, plant_odd_groups
from kitlib.lessons.sample_groups.sampler import WholeGroups, check_whole_groups
from kitlib.lessons.sample_groups.toys import SampleAside, ToyRefill, put_group

__all__ = [
    "OddGroups",
    "SampleAside",
    "ToyRefill",
    "WholeGroups",
    "check_refill",
    "check_sampled",
    "check_wait",
    "check_whole_groups",
    "plant_odd_groups",
    "put_group",
]
