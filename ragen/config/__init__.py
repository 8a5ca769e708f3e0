"""A run's configuration: composed (`compose`), checked before anything starts (`checks`), shown (`plan`), given its
own folder (`run_dir`) and handed over to veRL (`to_verl`)."""

from ragen.config.compose import load
from ragen.config.errors import ConfigError, Fault
from ragen.config.to_verl import to_verl

__all__ = ["ConfigError", "Fault", "load", "to_verl"]
