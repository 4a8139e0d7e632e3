"""The checks of ``bench gpu``: one module per check, and what runs and reports them."""
