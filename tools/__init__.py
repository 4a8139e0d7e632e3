"""Writers and checks that the Makefile calls; no package contains them."""
