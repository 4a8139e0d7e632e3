"""Layouts: the place of each rank, the rank of each place, and the layout that a world size gets."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_trainer.common import parallel_dims as module
from ddp_trainer.common.parallel_dims import Layout, LayoutError, LayoutRange, Place

EVERY = [Layout(*sizes) for sizes in product((1, 2, 3), repeat=len(module.DIMENSIONS))]


def test_rank_and_place_are_inverse_and_a_place_belongs_to_one_rank() -> None:
    for layout in EVERY:
        places = [layout.place(rank) for rank in range(layout.world)]
        assert [layout.rank(place) for place in places] == list(range(layout.world))
        assert len(set(places)) == layout.world == layout.replicate * layout.replica


def test_the_document_has_the_table_of_dimensions() -> None:
    document = (Path(__file__).parents[4] / "docs" / "parallel.md").read_text(encoding="utf-8")
    help_of = {dimension.name: dimension.help for dimension in module.DIMENSIONS}
    assert "\n".join(f"| `{name}` | {help_of[name]} |" for name in module.WRITTEN) in document
    assert len({dimension.name[0] for dimension in module.DIMENSIONS}) == len(module.DIMENSIONS)


def test_its_text_reads_back_as_itself() -> None:
    for layout in EVERY:
        assert Layout.parse(str(layout)) == layout
        assert LayoutRange.parse(str(layout)) == LayoutRange.of(layout)
        assert LayoutRange.parse(str(layout)).choose(layout.world) == layout


def test_the_order_of_the_dimensions_is_replicate_pp_shard_tp() -> None:
    layout = Layout(replicate=2, shard=3, tp=5, pp=7)
    places = Place(tp=1), Place(shard=1), Place(pp=1), Place(replicate=1)
    assert [layout.rank(place) for place in places] == [1, 5, 15, 105]


def test_a_batch_is_divided_among_replicas_and_shards_and_shared_by_the_ranks_of_other_dimensions() -> None:
    for layout in EVERY:
        shares: dict[int, int] = {}
        for rank in range(layout.world):
            share = layout.place(rank).data_rank
            shares[share] = shares.get(share, 0) + 1
        assert shares == dict.fromkeys(range(layout.data_size), layout.world // layout.data_size)
        assert layout.data_size == layout.replicate * layout.shard


def test_a_place_made_by_hand_finds_its_rank_and_refuses_to_guess_its_share_of_a_batch() -> None:
    assert Layout(replicate=2, shard=4).rank(Place(replicate=1)) == 4
    with pytest.raises(LayoutError, match=r"ask Layout\.place"):
        _ = Place(replicate=1).data_rank


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a layout; write dimension=size with commas, as in replicate=2,shard=4"),
        ("shard=2,", "'shard=2,' is not a layout; write"),
        ("fsdp=4", "'fsdp' is not a dimension of a layout; use replicate, shard, "),
        ("shard=2,shard=2", "'shard=2,shard=2' names shard twice; name it once"),
        ("shard=", "shard= is not a size of a dimension; give a whole number from 1 to 1000000, as shard=2"),
        ("shard=0", "shard=0 is not a size"),
        ("tp=two", "tp=two is not a size"),
        ("tp=٣", "tp=٣ is not a size"),
        ("pp=1000001", "pp=1000001 is not a size"),
        ("pp=" + "9" * 5000, "is not a size"),
        ("shard=1:", "shard=1: is not a size"),
    ],
)
def test_an_invalid_layout_is_one_sentence(text: str, sentence: str) -> None:
    for parse in (Layout.parse, LayoutRange.parse):
        with pytest.raises(LayoutError) as caught:
            parse(text)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_range_that_begins_above_its_end_is_refused() -> None:
    with pytest.raises(LayoutError, match="replicate=4:2 begins above its end; write replicate=2:4"):
        LayoutRange.parse("replicate=4:2")
    with pytest.raises(LayoutError, match="tp=2:1 begins above its end; write tp=1:2"):
        LayoutRange(Layout(tp=2), Layout())


@pytest.mark.parametrize("size", [0, -2, True, 2.0, "2", None, module.MOST + 1])
def test_a_size_is_a_whole_number_of_at_least_one(size: object) -> None:
    with pytest.raises(LayoutError, match=r"tp=.* is not a size of a dimension"):
        Layout(tp=size)  # type: ignore[arg-type]


def test_a_rank_or_a_place_outside_of_the_layout_is_refused() -> None:
    for rank in (-1, 8):
        with pytest.raises(LayoutError, match=f"no rank {rank} in shard=8, which has ranks 0 to 7"):
            Layout(shard=8).place(rank)
    with pytest.raises(LayoutError, match="no shard 2 in shard=2; shard counts from 0 to 1"):
        Layout(shard=2).rank(Place(shard=2))


@pytest.mark.parametrize(
    ("allowed", "world", "chosen"),
    [("replicate=1:8,shard=1:4,tp=1:2", 8, "shard=4,tp=2"), ("pp=1:4,tp=1:4", 4, "pp=4")],
)
def test_a_range_gives_the_layout_of_most_ranks_then_of_most_shards(allowed: str, world: int, chosen: str) -> None:
    assert str(LayoutRange.parse(allowed).choose(world)) == chosen


def test_the_choice_is_the_best_of_all_that_are_allowed() -> None:
    allowed = LayoutRange.parse("replicate=1:3,shard=1:3,tp=1:2,pp=2:3")
    every = [Layout(replicate=r, shard=s, tp=t, pp=p) for r, s, t, p in product((1, 2, 3), (1, 2, 3), (1, 2), (2, 3))]
    for world in range(2, 60):
        best = max(layout.world for layout in every if layout.world <= world)
        most = max(layout.replica for layout in every if layout.world == best)
        chosen = allowed.choose(world)
        assert chosen in every
        assert (chosen.world, chosen.replica) == (best, most)


def test_a_range_of_too_many_kinds_of_replica_is_refused() -> None:
    LayoutRange.parse("replicate=1:1000000,shard=1:4096")
    with pytest.raises(LayoutError) as caught:
        LayoutRange.parse("shard=1:4097")
    assert str(caught.value).startswith("shard=1:4097 allows 4097 kinds of replica; narrow shard, ")


def test_too_few_ranks_for_the_smallest_layout_are_refused() -> None:
    with pytest.raises(LayoutError) as ranged:
        LayoutRange.parse("replicate=1:4,shard=4").choose(3)
    assert str(ranged.value) == (
        "shard=4, the smallest layout of replicate=1:4,shard=4, takes 4 ranks, and there are 3; "
        "give the job more ranks, or allow a smaller layout"
    )
    with pytest.raises(LayoutError) as fixed:
        LayoutRange.parse("shard=4").choose(1)
    assert str(fixed.value).startswith("shard=4 takes 4 ranks, and there is 1; give the job more ranks")


@given(
    st.tuples(*[st.tuples(st.integers(1, 6), st.integers(0, 5)) for _ in range(4)]),
    st.integers(1, 10),
    st.integers(0, 40),
    st.integers(1, 12),
)
def test_a_layout_has_the_sizes_that_it_fills(
    spans: tuple[tuple[int, int], ...], low: int, more: int, per_node: int
) -> None:
    names = ("replicate", "shard", "tp", "pp")
    text = ",".join(f"{name}={least}:{least + extra}" for name, (least, extra) in zip(names, spans, strict=True))
    layouts = LayoutRange.parse(text)

    def is_filled(nodes: int) -> bool:
        ranks = nodes * per_node
        return ranks >= layouts.smallest.world and layouts.choose(ranks).world == ranks

    assert [*layouts.node_counts(low, low + more, per_node)] == [*filter(is_filled, range(low, low + more + 1))]
