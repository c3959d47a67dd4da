"""Something broken to find: plant a fault in a queue, check what a reader has found, take it back.

    fault = lose_field(tq, batch, seed=2)
    fault.check(key, field)         says what is wrong with a finding; keys may be as short as in the views
    fault.reveal()                  what was done
    fault.kind                      the word under which the doctor finds it
    fault.mend()                    as it was

    in the rows of a batch (fields.py)                          to find         doctor
    lose_field          a row lacks a field                     key, field      field_missing
    misspell_field      a row carries it under another name     key, field      field_missing
    wrong_length        a field has one token too many          key, field      length_mismatch
    nan_reward          the reward is NaN                       key             nan_reward
    mask_reward         the reward sits on a masked token       key             reward_on_masked_token
    swap_advantages     two rows of a group are mixed up        keys            mispaired_advantages
    duplicate_uid       two groups carry one uid                uid             uid_key_mismatch

    in the keys of a batch (rows.py)
    misplace_row        a row lies in another partition         key, partition_id   fewer_rows_than_keys
    drop_row            the handle names a row that is gone     key             fewer_rows_than_keys
    ghost_key           a status was written after the clear    key             ghost_key
    orphan_row          a row of a prompt that nobody knows     key             orphan_rows
    pad_with_real_uid   padding that joins a real group         key, uid        padding_real_uid

    among prompts before sample (prompts.py)
    lose_session        a session has left no row               uid, session_id short_group
    stick_prompt        a marker says running for ever          uid             stuck_prompt
    underscore_in_uid   the sampler looks for another group     uid             uid_underscore
    stale_group         a group of old weights                  uid             stale_groups (async modes)

Add one: a function that saves what it touches (`save`), changes one thing, and gives a `Fault` with its truth and a
judge for each part of it; its line here, and a case in the tests.
"""

from kitlib.lessons.faults.fault import Fault, FaultError
from kitlib.lessons.faults.fields import (
    duplicate_uid,
    lose_field,
    mask_reward,
    misspell_field,
    nan_reward,
    swap_advantages,
    wrong_length,
)
from kitlib.lessons.faults.prompts import lose_session, stale_group, stick_prompt, underscore_in_uid
from kitlib.lessons.faults.rows import drop_row, ghost_key, misplace_row, orphan_row, pad_with_real_uid

__all__ = [
    "Fault",
    "FaultError",
    "drop_row",
    "duplicate_uid",
    "ghost_key",
    "lose_field",
    "lose_session",
    "mask_reward",
    "misplace_row",
    "misspell_field",
    "nan_reward",
    "orphan_row",
    "pad_with_real_uid",
    "stale_group",
    "stick_prompt",
    "swap_advantages",
    "underscore_in_uid",
    "wrong_length",
]
