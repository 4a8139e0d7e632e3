"""The peers of ``bench peers``, one module each."""
