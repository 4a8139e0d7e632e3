"""The agent of a pod: joins the rendezvous, starts and watches its workers, and reports how they ended."""
