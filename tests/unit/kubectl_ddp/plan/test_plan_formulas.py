"""Formulas of papers, with values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.distributed.grad_allreduce import buckets
from ddp_trainer.train.models.gpt import Gpt
from kubectl_ddp.errors import UsageError
from kubectl_ddp.plan.activations import activation_memory
from kubectl_ddp.plan.choice import Choice, choices
from kubectl_ddp.plan.known import KNOWN, known, parse_count, shape_of
from kubectl_ddp.plan.machine import GIGA, GPUS, Machine, gpu_of
from kubectl_ddp.plan.memory import memory, stages
from kubectl_ddp.plan.recomputation import ALL, CHEAP, NOTHING, Recomputation
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.timing import Timing, bubble, timing
from kubectl_ddp.plan.traffic import Traffic, traffic
from kubectl_ddp.plan.work import Precision, Work

SMALL = Shape(layers=4, hidden=64, heads=4, vocabulary=256, window=32)
STEP = Work(sequence=32, global_batch=8, precision=Precision.FP32)


def machine(nodes: int = 1, per_node: int = 8) -> Machine:
    gpu = GPUS["H100"]
    return Machine(gpu=gpu, nodes=nodes, per_node=per_node, far_bytes=gpu.far_bytes, reserved_bytes=0)


def test_gpt_3_has_175_billion_parameters() -> None:
    # 96 blocks of 12 x 12288^2 and two norms, 50257 tokens, 2048 positions, and the last norm.
    by_hand = 96 * (12 * 12288**2 + 2 * 12288) + 50257 * 12288 + 2048 * 12288 + 12288
    assert known("gpt3-175b").parameters == by_hand == 174_591_270_912
    assert 174e9 < by_hand < 176e9


def test_llama_7b_has_its_6_738_415_616_parameters() -> None:
    by_hand = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 32000 * 4096 + 4096
    assert known("llama-7b").parameters == by_hand == 6_738_415_616


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt2", 124.3), ("gpt2-xl", 1557), ("llama3-8b", 8030), ("llama3-70b", 70554), ("llama3-405b", 405853)],
)
def test_models_have_the_parameters_that_they_are_published_with(name: str, millions: float) -> None:
    assert known(name).parameters / 1e6 == pytest.approx(millions, rel=0.002)


@pytest.mark.parametrize("text", ["124M", "350M", "1.3B", "7B", "13B", "70B", "175B", "400B", "1T", "10M", "500k"])
def test_a_number_of_parameters_becomes_a_usual_shape_of_about_that_size(text: str) -> None:
    wanted = parse_count(text)
    shape = shape_of(wanted)
    if wanted > 1e8:
        assert shape.parameters == pytest.approx(wanted, rel=0.1)
        assert 32 <= shape.hidden // shape.heads <= 256
    assert shape.layers >= 1


@pytest.mark.parametrize("text", ["", "7", "-7B", "7BB", "many", "9999999T", "1e9", "\u0667B"])
def test_what_is_no_number_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--params is"):
        parse_count(text)


def test_flops_are_six_per_weight_and_token_and_attention_is_on_top() -> None:
    multiplied = 4 * (12 * 64 * 64 + 2 * 64) + 64 + 256 * 64
    assert SMALL.flops_per_token(32) == 6 * multiplied + 12 * 4 * 64 * 32


def test_a_block_keeps_16_numbers_per_token_and_width_and_what_norms_and_attention_keep_per_row() -> None:
    rows = 2 * 32
    held = activation_memory(SMALL, STEP, Choice(Layout(), 2, 4, NOTHING))
    assert held.block == 4 * (16 * rows * 64 + rows * (4 + 4))
    assert held.stream == 4 * rows * 64
    assert held.loss == 3 * 4 * rows * 256


def test_sixteen_bits_and_a_stream_in_them_make_the_34_bytes_of_the_paper_without_masks() -> None:
    work = Work(sequence=32, global_batch=8, precision=Precision.BF16)
    held = activation_memory(SMALL, work, Choice(Layout(shard=2), 1, 1, NOTHING))
    assert held.block == (34 - 2) * 32 * 64 + 32 * 8 * 4


def test_tensor_parallelism_divides_all_but_what_enters_matrices() -> None:
    one = activation_memory(SMALL, STEP, Choice(Layout(), 1, 1, NOTHING))
    two = activation_memory(SMALL, STEP, Choice(Layout(tp=2), 1, 1, NOTHING))
    entering = 2 * 32 * 64 * 4
    assert two.block - entering == (one.block - entering) / 2
    assert two.loss == one.loss / 2


def test_adamw_keeps_16_bytes_per_weight_with_weights_and_gradients() -> None:
    # With next to no activations the optimizer's moment, or the one before it, is the largest.
    tiny = Work(sequence=1, global_batch=2, precision=Precision.FP32)
    taken = memory(SMALL, tiny, Choice(Layout(), 1, 2, NOTHING))
    assert taken.weights == 4 * SMALL.parameters
    assert taken.optimizer == 8 * SMALL.parameters
    assert taken.gradients >= 4 * SMALL.parameters


def test_four_shards_keep_a_quarter_of_the_states_each() -> None:
    whole = memory(SMALL, STEP, Choice(Layout(), 1, 8, NOTHING))
    shard = memory(SMALL, STEP, Choice(Layout(shard=4), 1, 2, NOTHING))
    assert shard.optimizer == whole.optimizer / 4


def test_gradients_that_passes_add_up_are_whole_until_the_last_of_them_deals_them_out() -> None:
    # FSDPParamGroup.post_backward reshards weights alone where it is not to reduce gradients.
    one = memory(SMALL, STEP, Choice(Layout(shard=4), 2, 1, NOTHING))
    two = memory(SMALL, STEP, Choice(Layout(shard=4), 1, 2, NOTHING))
    assert one.gradients < 4 * SMALL.parameters / 4 + 4 * 3 * SMALL.block_matrices
    assert two.gradients >= 4 * SMALL.parameters


def test_stages_keep_a_buffer_for_all_that_they_receive_in_a_step() -> None:
    def taken(stages_count: int, passes: int) -> float:
        return memory(SMALL, STEP, Choice(Layout(pp=stages_count), 1, passes, NOTHING)).total

    stream = activation_memory(SMALL, STEP, Choice(Layout(pp=2), 1, 8, NOTHING)).stream
    # No more micro-batches are in flight. Either end receives from one side, and in the middle a stage from both.
    assert taken(2, 24) - taken(2, 8) == 16 * stream
    assert taken(4, 516) - taken(4, 500) == 2 * 16 * stream


def test_a_rank_computes_each_of_its_slices_of_a_batch_by_itself() -> None:
    # 64 samples are 8 slices for 8 ranks, of which each of the 4 parts has two of 8 samples.
    step = Work(sequence=32, global_batch=64, micro_batch=16, recomputation=NOTHING)
    assert list(choices(Layout(shard=4, tp=2), step)) == [Choice(Layout(shard=4, tp=2), 8, 2, NOTHING)]
    assert list(choices(Layout(shard=4, tp=2), replace(step, batch_slices=4))) == [
        Choice(Layout(shard=4, tp=2), 16, 1, NOTHING)
    ]


def test_a_stage_in_pieces_is_there_as_a_whole_with_its_gradients_through_the_step() -> None:
    # 4 of 8 blocks of 12 x 512^2 and two norms, and the tokens and positions of the first stage.
    shape = Shape(layers=8, hidden=512, heads=8, vocabulary=256, window=32)
    work = Work(sequence=32, global_batch=8, precision=Precision.FP32)
    taken = memory(shape, work, Choice(Layout(shard=2, pp=2), 1, 4, NOTHING))
    weights = 4 * (12 * 512**2 + 2 * 512) + 256 * 512 + 32 * 512
    bucket = (25 << 20) + 4 * 4 * 512**2
    assert (taken.stage, taken.moment) == (0, "dealing out of gradients")
    assert taken.weights == 4 * weights / 2 + 4 * weights
    assert taken.gradients == 4 * weights + 2.5 * bucket
    assert taken.optimizer == 8 * weights / 2


def test_no_bucket_of_the_trainer_is_larger_than_is_counted() -> None:
    shape = Shape(layers=6, hidden=768, heads=8, vocabulary=256, window=32)
    model = Gpt(vocabulary=256, window=32, layers=6, width=768, heads=8)
    largest = max(sum(4 * weight.numel() for weight in bucket) for bucket in buckets(list(model.parameters())))
    work = Work(sequence=1, global_batch=4, precision=Precision.FP32)
    taken = memory(shape, work, Choice(Layout(shard=2, pp=2), 1, 2, NOTHING))
    whole = 4 * next(iter(stages(shape, Choice(Layout(shard=2, pp=2), 1, 2, NOTHING)))).weights
    assert 25 << 20 <= largest <= (taken.gradients - whole) / 2.5 <= 1.3 * largest


def test_each_micro_batch_in_flight_keeps_what_autocast_has_made_of_blocks_that_do_not_compute_again() -> None:
    work = Work(sequence=1, global_batch=8, precision=Precision.BF16)
    shape = Shape(layers=8, hidden=512, heads=8, vocabulary=256, window=1)
    blocks = 4 * (12 * 512**2 + 2 * 512)
    weights = blocks + 256 * 512 + 512
    kept = memory(shape, work, Choice(Layout(pp=2), 1, 8, NOTHING))
    assert kept.weights == (4 + 2) * weights + 2 * blocks
    again = memory(shape, work, Choice(Layout(pp=2), 1, 8, ALL))
    assert again.weights == (4 + 2) * weights


def test_stages_share_layers_and_the_first_keeps_most_micro_batches() -> None:
    shape = Shape(layers=7, hidden=64, heads=4, vocabulary=256, window=32)
    found = list(stages(shape, Choice(Layout(pp=3), 1, 8, NOTHING)))
    assert [stage.layers for stage in found] == [3, 2, 2]
    assert [stage.in_flight for stage in found] == [3, 2, 1]
    # The embedding is also the output layer: the first and the last stage have one each.
    assert sum(stage.weights for stage in found) == shape.parameters + shape.embedding


def test_the_bubble_is_p_minus_1_of_m_and_p_minus_1() -> None:
    assert bubble(8, 32) == 7 / 39
    choice = Choice(Layout(pp=8), 1, 32, NOTHING)
    shape = Shape(layers=8, hidden=64, heads=4, vocabulary=256, window=32)
    found = timing(shape, Work(sequence=32, global_batch=32), choice, machine(), [])
    assert found.lost_seconds["bubble"] / found.step_seconds == pytest.approx(7 / 39)
    assert found.mfu == pytest.approx(0.6 * 32 / 39)


def test_every_third_block_of_the_model_computes_again_whichever_stage_it_is_in() -> None:
    shape = Shape(layers=7, hidden=64, heads=4, vocabulary=16, window=1024)
    long = Work(sequence=1024, global_batch=8, precision=Precision.FP32)
    choice = Choice(Layout(), 8, 1, Recomputation(3))
    held, taken = activation_memory(shape, long, choice), memory(shape, long, choice)
    # Of seven blocks the third and the sixth; the seventh, whose backward pass comes first, kept everything.
    assert taken.moment == "backward of the last block"
    assert taken.activations == 5 * held.block + 2 * held.stream + held.backward
    # Of the two stages the first has the third block alone, and two micro-batches in flight.
    staged = Choice(Layout(pp=2), 4, 2, Recomputation(3))
    held, taken = activation_memory(shape, long, staged), memory(shape, long, staged)
    assert taken.stage == 0
    # In two buffers more it will receive their gradients.
    assert taken.activations == (3 + 3) * held.block + (2 + 2) * held.stream + held.backward


def test_the_fewer_blocks_compute_again_the_more_memory_they_take() -> None:
    taken = [memory(SMALL, STEP, Choice(Layout(), 8, 1, Recomputation(every))).total for every in (1, 2, 4, 5)]
    assert taken == sorted(taken)
    assert taken[-1] == memory(SMALL, STEP, Choice(Layout(), 8, 1, NOTHING)).total
    assert taken[0] < memory(SMALL, STEP, Choice(Layout(), 8, 1, CHEAP)).total < taken[-1]


def test_what_is_computed_again_takes_time_by_its_operations_or_by_what_it_reads_and_writes() -> None:
    def found(again: Recomputation) -> Timing:
        return timing(SMALL, STEP, Choice(Layout(), 2, 4, again), machine(per_node=1), [])

    ratio = SMALL.recompute_flops_per_token(32) / SMALL.flops_per_token(32)
    assert found(ALL).hfu / found(ALL).mfu == pytest.approx(1 + ratio)
    assert found(ALL).step_seconds / found(NOTHING).step_seconds == pytest.approx(1 + ratio)
    assert found(Recomputation(2)).hfu / found(Recomputation(2)).mfu == pytest.approx(1 + ratio / 2)
    cheap = found(CHEAP)
    assert cheap.hfu == cheap.mfu
    by_hand = 8 * 32 * 4 * (7 * 4 * 64 + 2 * 4 * 256) / 3.35e12
    assert cheap.lost_seconds["recomputation"] == pytest.approx(by_hand)


def sent(choice: Choice, on: Machine) -> dict[tuple[str, str], Traffic]:
    return {(each.dimension, each.operation): each for each in traffic(SMALL, STEP, choice, on)}


def test_replicas_send_every_gradient_twice_but_for_their_own_part() -> None:
    found = sent(Choice(Layout(replicate=4), 1, 2, NOTHING), machine(per_node=4))
    assert found["replicate", "all-reduce"].sent_bytes == 2 * 3 / 4 * 4 * SMALL.parameters


def test_shards_gather_weights_twice_per_pass_and_scatter_gradients_once() -> None:
    found = sent(Choice(Layout(shard=4), 1, 2, NOTHING), machine(per_node=4))
    assert found["shard", "all-gather"].sent_bytes == 2 * 2 * 3 / 4 * 4 * SMALL.parameters
    assert found["shard", "reduce-scatter"].sent_bytes == 3 / 4 * 4 * SMALL.parameters


def test_a_stage_is_gathered_once_in_a_step_and_dealt_out_once_in_32_bits() -> None:
    work = Work(sequence=32, global_batch=16, precision=Precision.BF16)
    choice = Choice(Layout(shard=2, pp=2), 2, 4, NOTHING)
    found = {each.operation: each for each in traffic(SMALL, work, choice, machine(per_node=4))}
    largest = max(stage.weights for stage in stages(SMALL, choice))
    assert found["all-gather"].sent_bytes == found["reduce-scatter"].sent_bytes == 1 / 2 * 4 * largest
    # Before the first pass and after the last one: nothing is computed meanwhile.
    sent = list(found.values())
    lost = timing(SMALL, work, choice, machine(per_node=4), sent).lost_seconds
    assert lost["shard"] == pytest.approx(sum(each.seconds for each in sent if each.dimension == "shard"))


def test_tensor_parallelism_sends_what_four_all_reduces_of_the_stream_would_per_block() -> None:
    found = sent(Choice(Layout(tp=2), 2, 4, NOTHING), machine(per_node=2))
    an_all_reduce = 2 * 1 / 2 * (2 * 32 * 64) * 4
    assert found["tp", "all-gather and reduce-scatter"].sent_bytes == 4 * an_all_reduce * 4 * 4
    again = sent(Choice(Layout(tp=2), 2, 4, ALL), machine(per_node=2))
    assert again["tp", "all-gather and reduce-scatter"].sent_bytes == 6 * an_all_reduce * 4 * 4


def test_a_stage_hands_the_stream_on_and_gets_its_gradient_back() -> None:
    found = sent(Choice(Layout(pp=2), 2, 4, NOTHING), machine(per_node=2))
    assert found["pp", "send"].sent_bytes == 2 * 4 * (2 * 32 * 64) * 4


def test_a_group_between_nodes_sends_by_the_network_of_all_its_ranks_in_a_node() -> None:
    two, near = machine(nodes=2), GPUS["H100"].near_bytes
    assert two.link(1, 8) == 0.8 * near
    assert two.link(8, 2) == 0.8 * 50 * GIGA
    assert two.link(1, 16) == 0.8 * 400 * GIGA
    assert two.hop(8, 2) == 0.8 * 50 * GIGA


def test_gpus_are_known_by_name_and_by_the_label_of_their_machines() -> None:
    assert gpu_of("NVIDIA-A100-SXM4-80GB").name == "A100-80GB"
    assert gpu_of("b200").name == "B200"
    assert gpu_of("NVIDIA-L40S-SHARED").name == "L40S"
    with pytest.raises(UsageError, match=r"'H1000'.*known. Did you mean 'H100'"):
        gpu_of("H1000")


@pytest.mark.parametrize(
    ("product", "sentence"),
    [
        ("NVIDIA-L40", "the figures of such a GPU are not known"),
        ("NVIDIA-H200-NVL", "the figures of such a GPU are not known"),
        ("NVIDIA-H200-NVL-SHARED", "the figures of such a GPU are not known"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "a slice of a GPU, and plans are of whole ones"),
    ],
)
def test_a_label_that_only_begins_like_that_of_a_known_gpu_is_another_one(product: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=rf"--gpu-type is '{product}', .*{sentence}"):
        gpu_of(product)


def test_every_known_model_says_where_its_shape_was_published() -> None:
    assert all("20" in each.source for each in KNOWN.values())
