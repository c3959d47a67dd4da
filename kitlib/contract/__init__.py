"""The one contract: which fields and tags each stage of the V1 trainer reads and writes, and which config keys change
that.

The trainer enforces it in strict mode, the inspector colours by it, the doctor reasons with it, and the docs print
it. Nothing else in the project repeats it. Reading order: `fields` (the columns), `switches` (the conditions),
`stages` (who touches what, when), `enforce` (the decorator).

Left out: fields of engines that kitlib has no counterpart for (router replay beyond `routed_experts`, MTP statistics).
"""

from kitlib.contract.enforce import ContractError, StageRecord, stage
from kitlib.contract.fields import FIELDS, GROUPS, TAGS, Field, Tag
from kitlib.contract.stages import STAGES, Need, Needs, Stage, needs
from kitlib.contract.switches import SWITCHES, Condition, switch

__all__ = [
    "FIELDS",
    "GROUPS",
    "STAGES",
    "SWITCHES",
    "TAGS",
    "Condition",
    "ContractError",
    "Field",
    "Need",
    "Needs",
    "Stage",
    "StageRecord",
    "Tag",
    "needs",
    "stage",
    "switch",
]
