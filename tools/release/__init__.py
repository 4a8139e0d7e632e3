"""Build and check the artifacts of a version before it is published; everybody can repeat it.

::

    python -m tools.release lock      writes locks/ again: what users, images and builds install, with digests
    python -m tools.release manifests writes manifests/ again, from the chart ddp-platform
    python -m tools.release check     builds everything twice, installs it, and says what disagrees
    python -m tools.release charts    packs the charts, to the same bytes from the same commit
    python -m tools.release sbom      writes what is in each artefact, as CycloneDX

``make lock``, ``make release-check`` and ``make sbom`` set up what these need.
"""
