"""Views of the state, as the HTTP API returns them.

The API and the webhooks call them. They are pure functions, and never change anything.
"""
