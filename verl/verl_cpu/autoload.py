"""The entry point that veRL imports: installs the plugin where a CPU is what the process should train on.

veRL imports an entry point and calls nothing, and it reports a plugin that fails at debug level only, so the failure
is logged here, where it can be seen.
"""

import logging

from verl_cpu.plugin import install, reason_to_stay_out

_logger = logging.getLogger(__name__)

try:
    _reason = reason_to_stay_out()
    if _reason is None:
        install()
    else:
        _logger.debug("verl_cpu stays out: %s", _reason)
except Exception:
    _logger.exception("verl_cpu could not be installed: veRL will look for a GPU. VERL_CPU=0 switches the plugin off")
    raise
