"""Benchmarks that run as jobs: their programs, and parsers of their output.

`muster bench` calls it. The package is pure, except for the programs, which the job's interpreter
runs with the standard library and torch.
"""
