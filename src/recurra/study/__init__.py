"""Plans and executes the runs of studies."""
