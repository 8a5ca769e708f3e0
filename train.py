"""Train a language-model agent: `python train.py --config-name quickstart`. The command line is ragen/config/cli.py."""

import sys

from ragen.config.cli import main

if __name__ == "__main__":
    sys.exit(main())
