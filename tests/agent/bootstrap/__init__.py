"""Tests of the programs that the job's interpreter runs."""
