"""All rules, by family. A rule is a function of a `Situation` that yields findings; it changes nothing.

Add one: write the function in its family's file, with the kinds it yields in the first word of its docstring, and
name it here. `values` marks rules that read values (the named fields of at most MAX_ROWS_READ rows): they can be
switched off, and they are silent where there are none, as in a snapshot from a file. BORDER names the rules that run
before every stage of a strict training run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

from kitlib.inspector.doctor import (
    advantages,
    changes,
    dicts,
    eviction,
    grammar,
    groups,
    joins,
    layout,
    outputs,
    padding,
    presence,
    requests,
    rewards,
    sizes,
    startup,
    versions,
    waiting,
)
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.situation import Situation

BORDER = frozenset(
    {
        "missing_fields",
        "narrowed_handle",
        "underscores",
        "half_registered",
        "bad_keys",
        "length_mismatch",
        "ragged_dim",
        "mixed_types",
        "padding_tag_missing",
    }
)


@dataclass(frozen=True)
class Rule:
    """check: the function. family: the heading it stands under. values: it reads values."""

    check: Callable[[Situation], Iterator[Finding]]
    family: str
    values: bool = False

    @property
    def name(self) -> str:
        return self.check.__name__

    @property
    def border(self) -> bool:
        """True if it is quick, and says something, between two stages of a training step."""
        return self.name in BORDER

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The words of this rule, from its docstring."""
        head = re.sub(r"\([^)]*\)", "", (self.check.__doc__ or "").split("\n")[0])
        return tuple(re.findall(r"\b([a-z]+(?:_[a-z]+)+|(?<=^)[a-z_]+)(?=\s*:|\s+at|\s*$)", head))


def _family(name: str, module: ModuleType, metadata: str = "", values: str = "") -> tuple[Rule, ...]:
    return (
        *(Rule(getattr(module, rule), name) for rule in metadata.split()),
        *(Rule(getattr(module, rule), name, values=True) for rule in values.split()),
    )


RULES: tuple[Rule, ...] = (
    *_family(
        "presence",
        presence,
        "missing_fields missing_prompt_rows missing_in_request narrowed_handle",
        "missing_images",
    ),
    *_family("prompts", waiting, "stuck_prompts unreachable_batch wait_blocked stalled_elsewhere"),
    *_family("prompts", eviction, "stale_groups failed_groups failed_validation"),
    *_family("key grammar", grammar, "underscores ghosts half_registered bad_keys strange_keys marker_tags"),
    *_family("joins", joins, "orphans partition_mixup stale_readiness unreadable", "uid_column"),
    *_family("lengths", sizes, "length_mismatch padded_to_total tag_mismatch empty_responses", "short_attention_mask"),
    *_family("layout", layout, "dense_beside_jagged dense_write ragged_dim one_element_rows mixed_types"),
    *_family("groups", groups, "short_groups uneven_groups sessions_out_of_range empty_groups"),
    *_family(
        "groups",
        rewards,
        values="nan_rewards reward_on_masked_token no_valid_token zero_std_groups shaped_reward_filter",
    ),
    *_family("groups", advantages, values="mispaired_advantages"),
    *_family(
        "padding",
        padding,
        "padding_tag_missing padding_too_short too_few_padding_rows dumped_padding",
        "padding_mask_one padding_real_uid padding_dilutes_metrics stand_ins",
    ),
    *_family(
        "outputs",
        outputs,
        "multi_output_sessions extra_optimizer_steps session_weight",
        "turn_bias last_output_masked",
    ),
    *_family("versions", versions, "version_tags_missing version_tags_constant version_span", "off_policy_uncorrected"),
    *_family("request", requests, "fewer_rows same_key_twice chunks_disagree"),
    *_family(
        "before and after",
        changes,
        "surplus_discarded wrong_keys_cleared reissue_in_flight prompts_lost no_prompts_after_resume",
    ),
    *_family(
        "dict columns",
        dicts,
        values="sparse_reward_keys reserved_reward_key hidden_aborts duplicate_content masked_tool_tokens",
    ),
    *_family("start-up", startup, "too_few_cpus old_package"),
)
NOT_AT_BORDERS = tuple(rule.name for rule in RULES if not rule.border)
