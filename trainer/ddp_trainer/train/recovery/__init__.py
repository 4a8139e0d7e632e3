"""Recovery of a surviving worker: it joins the next process group and recovers its state from peers."""
