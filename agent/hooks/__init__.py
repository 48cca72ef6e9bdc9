"""Programs of the site that the agent runs before and after each task, and to check the node.

`agent.tasks` calls the prolog and the epilog, and the daemon runs the health check. The package
never runs a program that another user than root or the agent's can change, and it never waits for
one without a time limit.
"""
