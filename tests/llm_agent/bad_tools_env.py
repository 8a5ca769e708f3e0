"""An environment whose tools are no schemas."""

from ragen.env.bandit.env import Bandit


class BadTools(Bandit):
    def action_lookup(self):
        return None

    def tools(self):
        return [{"name": "not a schema"}]
