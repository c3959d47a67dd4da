"""What `kitlib run` adds around a TaskRunner: a run folder, the fields after every stage of the first step, a
learning curve, and the numbers at the end; and `check_run`, seven questions about a run that went wrong.

verl 0.9.1: trainer/main_ppo.py prints the resolved config and starts the runner; the rest is kitlib's own.
"""

from kitlib.run.checking import check_run
from kitlib.run.training import RunResult, train

__all__ = ["RunResult", "check_run", "train"]
