"""For all tests: YAML by libyaml. The tests compose a hundred configs, and Python's own parser is most of that time."""

import yaml

if yaml.__with_libyaml__:
    yaml.SafeLoader = yaml.CSafeLoader  # OmegaConf derives its loader from this name
