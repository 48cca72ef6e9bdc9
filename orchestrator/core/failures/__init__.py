"""Causes of failures, from a rank's exit status, its error file and its last lines, and the stop of
a gang that follows.

The engine, `gangs`, `monitoring` and `nodes` call it. It never decides whether a job is retried;
`gangs.retry_policy` does.
"""
