"""What the terminal of a cluster shows when a worker dies: three errors, one above the other. Only the first is the
cause. Written after what Ray 2.60 prints; the run is made up.
"""

RAY_LOG = """\
(TaskRunner pid=2201) step 41: critic/score/mean 0.52
(TaskRunner pid=2201) step 42: critic/score/mean 0.55
(AgentLoopWorkerTQ pid=2319) Traceback (most recent call last):
(AgentLoopWorkerTQ pid=2319)   File "agent_loop_tq.py", line 255, in _run_prompt
(AgentLoopWorkerTQ pid=2319)     score = await self.reward_loop.compute_score(output)
(AgentLoopWorkerTQ pid=2319)   File "my_reward.py", line 12, in compute_score
(AgentLoopWorkerTQ pid=2319)     return float(answer == int(solution.split("####")[1]))
(AgentLoopWorkerTQ pid=2319) ValueError: invalid literal for int() with base 10: '12 apples'
(AgentLoopWorkerTQ pid=2319)
(AgentLoopWorkerTQ pid=2319) The above exception was the direct cause of the following exception:
(AgentLoopWorkerTQ pid=2319)
(AgentLoopWorkerTQ pid=2319) Traceback (most recent call last):
(AgentLoopWorkerTQ pid=2319)   File "agent_loop_tq.py", line 261, in _run_prompt
(AgentLoopWorkerTQ pid=2319)     raise RuntimeError("agent loop failed")
(AgentLoopWorkerTQ pid=2319) RuntimeError: agent loop failed
(TaskRunner pid=2201) Traceback (most recent call last):
(TaskRunner pid=2201)   File "trainer_base.py", line 702, in _compute_advantage
(TaskRunner pid=2201)     scores = data["rm_scores"]
(TaskRunner pid=2201) KeyError: 'key "rm_scores" not found in TensorDict'
Traceback (most recent call last):
  File "main_ppo.py", line 64, in main
    ray.get(runner.run.remote(config))
ray.exceptions.RayTaskError(KeyError): ray::TaskRunner.run() (pid=2201)
KeyError: 'key "rm_scores" not found in TensorDict'
"""
