"""Code that runs in a worker: bootstrap, heartbeat, fork server, profiler. Loaded by path; standard library only."""
