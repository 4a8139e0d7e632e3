import gc

from kubectl_ddp.util.process import at_rest, freeze_gc, raise_gc_threshold


def test_the_collector_rests_within_and_is_as_it_was_afterwards() -> None:
    assert gc.isenabled()
    with at_rest():
        assert not gc.isenabled()
        with at_rest():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_cycles_are_looked_for_seldom_and_at_the_end_not_at_all() -> None:
    before = gc.get_threshold()
    try:
        raise_gc_threshold()
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0]
        freeze_gc()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
