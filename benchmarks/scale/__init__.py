"""What a node of a gang costs the coordinator: `./dev bench scale`."""
