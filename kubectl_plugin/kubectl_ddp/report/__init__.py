"""One job as a page: what its numbers have been, where its time went, what happened to it."""
