"""The shim: owns one task's processes, uses only the standard library and outlives the agent."""
