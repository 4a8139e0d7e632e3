"""The keyword arguments of the client are the keys of a job file."""

from tools.client_keys import FILE, module_text


def test_the_written_module_is_up_to_date() -> None:
    assert FILE.read_text() == module_text(), "run 'make docs'"
