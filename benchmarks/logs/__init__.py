"""How fast a log byte travels, how many do at a time, and what a storm of them does to the rest."""
