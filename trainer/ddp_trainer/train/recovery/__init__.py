"""How a surviving worker joins the next process group, and recovers its state from peers."""
