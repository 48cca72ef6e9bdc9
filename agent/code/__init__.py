"""Code that travels with jobs: fetched, verified, kept, and copied for each task.

The daemon keeps one store for all tasks, and `agent.tasks` fetches from it while a task is
prepared. Peers of a gang exchange chunks with each other. The package never runs the code, and
never uses a chunk whose SHA-256 differs from its name.
"""
