"""RAGEN's extensions of veRL's trainer: everything goes in through veRL's doors (see verl/README.md)."""
