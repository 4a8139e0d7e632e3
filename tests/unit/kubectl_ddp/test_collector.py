import gc

from kubectl_ddp.collector import at_rest


def test_the_collector_rests_within_and_is_as_it_was_afterwards() -> None:
    assert gc.isenabled()
    with at_rest():
        assert not gc.isenabled()
        with at_rest():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
