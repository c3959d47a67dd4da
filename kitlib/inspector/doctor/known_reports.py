"""Public reports of the same kind of trouble, by project and number: somebody else has met it before.

Projects are named as on GitHub; verl is verl-project/verl. A kind that is not here was found by reading verl 0.9.1 or
by measuring it and TransferQueue 0.1.11.
"""

from __future__ import annotations

_REPORTS: dict[str, str] = {
    "all_groups_empty": "verl PR #7082; agentcore-rl-toolkit PR #122",
    "all_stale": "verl #6975, PR #7037, PR #7082",
    "batch_info_clash": "verl PR #6354; TransferQueue PR #109, PR #95",
    "dense_beside_jagged": "verl #6407; TransferQueue PR #92",
    "duplicate_content": "torchtune #2943, PR #2981",
    "empty_group_skipped": "verl PR #7082; agentcore-rl-toolkit PR #122",
    "extra_optimizer_steps": "agentcore-rl-toolkit PR #131, PR #140; rllm #630",
    "failure_evicted": "agentcore-rl-toolkit PR #142",
    "field_missing": "verl PR #4928, PR #6963, PR #7037, PR #4199, #7486, PR #7491, #7368, #3996, PR #6158, #4912; "
    "verl-omni #513, #470, RFC #615; OpenRLHF #1322; NeMo-RL #3599",
    "ghost_key": "verl #7155",
    "hidden_abort": "slime #2402",
    "images_missing": "agent-lightning #559, PR #560",
    "masked_tool_tokens": "rllm #497, PR #503; verl #5859, PR #5860",
    "mixed_types": "Relax #283, PR #286; verl PR #4492; TransferQueue PR #75; tensordict #1047, #1399, #1746, #1778",
    "multi_output_session": "verl PR #6024, PR #6101, PR #6227",
    "nan_reward": "ms-swift #8123; verl #1197, #2626",
    "no_valid_token": "verl PR #3984",
    "off_policy_uncorrected": "verl #4449, #6780; miles PR #1829; SkyRL #1315",
    "one_element_rows": "Relax #283, PR #286; verl PR #4492; TransferQueue PR #75; tensordict #1047, #1399, #1746, "
    "#1778",
    "orphan_rows": "verl PR #7082",
    "padded_to_total": "verl PR #5699",
    "padding_dilutes_metrics": "verl #7771, PR #7772, PR #7785",
    "partition_mixup": "ms-swift PR #3573; TransferQueue #81",
    "prompts_lost": "verl PR #7037, PR #4199; verl-omni #470, RFC #615; OpenRLHF #1322; NeMo-RL #3599",
    "ragged_dim": "verl #6073, PR #5689, PR #6127, PR #7767",
    "reissue_in_flight": "verl PR #7037, PR #4199; verl-omni #470, RFC #615; OpenRLHF #1322; NeMo-RL #3599",
    "reserved_reward_key": "verl #6830, PR #7151; verl-omni #297; agentcore-rl-toolkit #136",
    "reward_on_masked_token": "verl PR #6310, PR #6362; OpenRLHF #1239",
    "shaped_reward_filter": "NeMo-RL #2431",
    "short_group": "verl #6437, PR #6641; agentcore-rl-toolkit PR #142",
    "sparse_reward_keys": "verl #6830, PR #7151; verl-omni #297; agentcore-rl-toolkit #136",
    "stale_groups": "verl #6975, PR #7082",
    "stale_readiness": "TransferQueue PR #127",
    "stuck_prompt": "verl #7155, PR #7082",
    "surplus_discarded": "slime PR #2238",
    "turn_bias": "agent-lightning PR #445, PR #462; SkyRL PR #1536",
    "uid_key_mismatch": "rllm #605, PR #924; Relax #283, PR #286; verl PR #4492; TransferQueue PR #75; tensordict "
    "#1047, #1399, #1746, #1778",
    "uid_underscore": "verl-omni RFC #249",
    "unreachable_batch": "verl #7937, PR #7939; AReaL #588, PR #1396",
    "value_unreadable": "TransferQueue PR #137, #141, #149",
    "version_tags_constant": "uni-agent PR #103; verl PR #7568",
    "version_tags_missing": "uni-agent PR #103; verl PR #7568",
    "zero_std_groups": "TRL #5588, PR #3502; verl #953, #876, #5211",
}


def reports_of(kind: str) -> tuple[str, ...]:
    """One string a project, such as `verl #7155, PR #7082`."""
    return tuple(_REPORTS[kind].split("; ")) if kind in _REPORTS else ()
