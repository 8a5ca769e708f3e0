"""For all tests: what libraries do over and over is made quick. Nothing here changes a result."""

import functools
import gc

import omegaconf.base
import yaml

# The tests compose a hundred configs. YAML by libyaml, since Python's own parser is most of that time, and a tree of
# each text with an interpolation but once.
if yaml.__with_libyaml__:
    yaml.SafeLoader = yaml.CSafeLoader  # OmegaConf derives its loader from this name
omegaconf.base.parse = functools.lru_cache(maxsize=None)(omegaconf.base.parse)

# A million objects of torch and veRL stay to the end: looking through them for garbage takes half a second each time.
gc.disable()


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()
