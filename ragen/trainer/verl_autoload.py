"""veRL imports this module at its entry point `verl.plugins`, and calls nothing: importing it is the call."""

from ragen.trainer.verl_plugin import install

install()
