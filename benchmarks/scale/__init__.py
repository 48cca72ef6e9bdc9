"""The coordinator's cost per node of a gang: `./dev bench scale`."""
