"""The connection to the coordinator: dialing, the control link, and the inbox of the owner.

It delivers messages in order and reconnects for ever. It never looks into a message.
"""
