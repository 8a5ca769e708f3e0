"""How a run is asked to stop: a file in its folder. Imports nothing, so that the launcher may use it before torch."""

#: A file of this name in the run's folder asks the run to save and end. The launcher's signal handlers write it.
STOP_FILE = "STOP"


class StopTraining(Exception):
    """The run was asked to stop; its state is saved."""
