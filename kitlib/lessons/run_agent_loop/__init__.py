"""Notebook 04: the agent loop taken apart, watched and broken.

predictions.py   checks of two predictions: what sampling leaves over, which tokens are trained
loops.py         a loop with several outputs, one whose sessions die, and how to send prompts to a loop
faults.py        a killed session and a mask that covers the tool: to be found
watching.py      wait for sessions, draw the requests of a server
"""

from kitlib.lessons.run_agent_loop.faults import KilledSessions, kill_sessions, train_the_tool
from kitlib.lessons.run_agent_loop.loops import TurnByTurnLoop, send_to
from kitlib.lessons.run_agent_loop.predictions import check_mask, check_shares, log_prob_of, shares
from kitlib.lessons.run_agent_loop.watching import request_lives, wait_for_sessions

__all__ = [
    "KilledSessions",
    "TurnByTurnLoop",
    "check_mask",
    "check_shares",
    "kill_sessions",
    "log_prob_of",
    "request_lives",
    "send_to",
    "shares",
    "train_the_tool",
    "wait_for_sessions",
]
