"""Starting, watching and harming the processes, jobs and pods that are measured."""
