"""Settings with verl's own names: `ppo_trainer.yaml` holds the defaults, `load_config` changes and checks them.

schema.py     which settings there are, which type each takes, near names
sources.py    a file, `key=value` words, a mapping -> {dotted name: value}
load.py       load_config
checks.py     rules, alone and together
config.py     Config: attribute access, origin of each value
printing.py   as YAML and as a table
support.py    settings that are known but that this version does not act on
"""

from kitlib.config.config import Config, Origin
from kitlib.config.errors import ConfigError, UnknownKeyError
from kitlib.config.load import load_config
from kitlib.config.support import require_supported

__all__ = ["Config", "ConfigError", "Origin", "UnknownKeyError", "load_config", "require_supported"]
