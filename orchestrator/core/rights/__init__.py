"""Rights: a pure function of principal, action and object.

The API asks it before it answers a request, and the engine decides on users and tokens with it. An
action that no rule allows is denied. A rule never looks at anything but its three arguments.
"""
