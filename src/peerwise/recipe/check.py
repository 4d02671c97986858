"""Rules across settings: what cannot work is refused, all of it at once; what usually goes wrong is warned of.

Judges a resolved recipe alone: no file is opened and no model or data set is looked at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from peerwise.algo.presets import PRESETS, Method
from peerwise.errors import RecipeError
from peerwise.recipe import reward
from peerwise.recipe.finding import Finding
from peerwise.recipe.finding import unknown as _unknown
from peerwise.recipe.finding import warning as _warning
from peerwise.recipe.method import compares_groups, method_of, samples
from peerwise.recipe.overrides import STAGE_NAME
from peerwise.recipe.schema import METHOD_SECTIONS, Algorithm, Critic, Curriculum, Recipe, Stage, Task, Vllm

TASKS = ("arithmetic", "gsm8k", "math", "files", "reasoning-gym", "mbpp", "humaneval", "programs")
PROGRAM_TASKS = ("mbpp", "humaneval", "programs")
OWN_FILES = ("files", "programs")
GENERATED_TASKS = ("arithmetic", "reasoning-gym")
TEMPLATES = ("boxed", "boxed-zh", "answer-zh", "lines", "code", "code-zh", "plain")

HIGH_FULL_RATE = 3e-5
"""GRPO of all weights above this rate has collapsed small models within a few steps."""
MANY_UPDATES = 5
SHORT_ANSWER = 32


def check(recipe: Recipe) -> list[str]:
    """Warnings about a recipe that can run.

    Raises:
        RecipeError: it cannot run; every violation, one a line.
    """
    findings = [*_run_rules(recipe), *_mixture_rules(recipe.tasks)]
    for index, task in enumerate(recipe.tasks):
        key = "task" if index == 0 else f"more_tasks.{index - 1}"
        findings += [*_task_rules(key, task), *reward.rules(key, task, _last_step(recipe))]
    for name, stage in recipe.stage.items():
        findings += _stage_rules(recipe, name, stage)
    # A base setting that several stages inherit is one mistake.
    violations = list(dict.fromkeys(finding.text for finding in findings if finding.fatal))
    if violations:
        raise RecipeError("the recipe cannot run:\n  " + "\n  ".join(violations))
    return list(dict.fromkeys(finding.text for finding in findings))


def uniform_share(p: float, group_size: int) -> float:
    """Share of groups that teach nothing, all right or all wrong, when each answer is right with probability p."""
    return float(p**group_size + (1 - p) ** group_size)


def _run_rules(recipe: Recipe) -> Iterator[Finding]:
    model, evaluation = recipe.model, recipe.evaluation
    if not recipe.stage:
        yield Finding("stage: there is none; add [stage.grpo] with method = 'grpo'")
    folded: dict[str, str] = {}
    for name in recipe.stage:
        if not STAGE_NAME.fullmatch(name):
            yield Finding(
                f"stage: got the name {name!r}, expected a folder name: at most 64 letters, digits, - and _, "
                "a letter or digit first"
            )
        twin = folded.setdefault(name.replace("_", "-").casefold(), name)
        if twin != name:
            yield Finding(f"stage: {twin!r} and {name!r} would share a flag or a folder; rename one")
    if model.lora_alpha is not None and model.lora_rank == 0:
        yield Finding("model.lora_alpha: has no effect while model.lora_rank is 0; set the rank or leave it out")
    if model.quantization and model.lora_rank == 0:
        yield Finding(
            f"model.quantization: weights in {model.quantization!r} are frozen, so only adapters can learn; set "
            "model.lora_rank, such as 16"
        )
    if model.offload_activations and model.device == "cpu":
        yield _warning("model.offload_activations: a CPU has nowhere else to keep them; the copies only cost time")
    if evaluation.patience and not evaluation.every:
        yield Finding("evaluation.patience: stages are evaluated only at their end; set evaluation.every above 0")
    yield from _vllm_rules(recipe)
    if evaluation.samples > 1 and evaluation.temperature == 0:
        yield Finding(
            f"evaluation.samples: {evaluation.samples} greedy answers are all the same; "
            "set evaluation.temperature above 0 or samples to 1"
        )


def _vllm_rules(recipe: Recipe) -> Iterator[Finding]:
    """Settings of vLLM against the engines that the stages name."""
    vllm, evaluation = recipe.vllm, recipe.evaluation
    engines = {stage.rollout.engine for stage in recipe.stage.values()}
    if not engines & {"vllm-server", "vllm"}:
        if vllm != Vllm():
            yield _warning("vllm: no stage samples with it; set rollout.engine = 'vllm-server' or 'vllm'")
        return
    if {"vllm-server", "vllm"} <= engines:
        yield Finding("rollout.engine: stages name both 'vllm-server' and 'vllm'; a run has one of them")
    if "vllm-server" in engines and not vllm.urls:
        yield Finding("vllm.urls: 'vllm-server' needs the URL of at least one server, such as http://127.0.0.1:8000")
    for url in vllm.urls:
        if not re.fullmatch(r"https?://[^/\s?#]+/?", url):
            yield Finding(f"vllm.urls: got {url!r}, expected http://HOST:PORT")
    if len({url.rstrip("/") for url in vllm.urls}) < len(vllm.urls):
        yield Finding("vllm.urls: a server is named twice")
    only_for = {"nccl": "vllm-server", "ipc": "vllm"}.get(vllm.transfer)
    if only_for is not None and only_for not in engines:
        yield Finding(f"vllm.transfer: {vllm.transfer!r} is for rollout.engine = {only_for!r}; take 'files'")
    if recipe.model.quantization:
        yield Finding(
            "model.quantization: vLLM would sample from weights that were not rounded to 4 bits, another policy than "
            "the one that learns; take rollout.engine = 'native'"
        )
    if recipe.model.lora_rank and vllm.transfer != "files":
        yield Finding(
            f"vllm.transfer: {vllm.transfer!r} moves all weights, and model.lora_rank trains adapters; take 'files'"
        )
    if evaluation.min_p > 0 and evaluation.top_p < 1 and evaluation.temperature > 0:
        yield Finding("evaluation.min_p: vLLM applies it before top_p, other engines after it; set one of them")


def _mixture_rules(tasks: list[Task]) -> Iterator[Finding]:
    seen: list[Task] = []
    for task in (task.model_copy(update={"weight": 1.0}) for task in tasks):
        if task in seen:
            yield Finding(f"more_tasks: {task.name!r} is listed twice with the same settings; raise its weight instead")
        seen.append(task)


def _task_rules(key: str, task: Task) -> Iterator[Finding]:
    if task.name not in TASKS:
        yield _unknown(f"{key}.name", task.name, TASKS)
    if task.template not in TEMPLATES:
        yield _unknown(f"{key}.template", task.template, TEMPLATES)
    if task.name in OWN_FILES and not task.path:
        yield Finding(f"{key}.path: {task.name} needs one; give a .jsonl, .csv or .parquet file")
    yield from _program_rules(key, task)
    if task.name == "reasoning-gym" and not task.params.get("dataset"):
        yield Finding(f"{key}.params.dataset: reasoning-gym needs the name of a data set, such as 'chain_sum'")
    if task.eval_split is not None and task.eval_split == task.split and task.name not in GENERATED_TASKS:
        yield Finding(f"{key}.eval_split: {task.split!r} is the split that is trained on; leave it out or name another")
    unused = {
        "path": task.path is not None and task.name in GENERATED_TASKS,
        "columns": bool(task.columns) and task.name not in OWN_FILES,
        "params": bool(task.params) and task.name in TASKS and task.name not in (*GENERATED_TASKS, "mbpp"),
    }
    for field in (field for field, is_unused in unused.items() if is_unused):
        yield _warning(f"{key}.{field}: task {task.name!r} does not use it")


def _program_rules(key: str, task: Task) -> Iterator[Finding]:
    """A task that asks for programs needs their tests run, and no other task has any."""
    asks, runs = task.name in PROGRAM_TASKS, "programs" in (task.reward, *task.reward_weights)
    own = ":" in task.reward
    if asks and not runs and not own:
        yield Finding(f"{key}.reward: {task.name} asks for programs; set reward = 'programs', given {task.reward!r}")
    if asks and not task.template.startswith("code") and task.template in TEMPLATES:
        yield Finding(
            f"{key}.template: {task.name} asks for programs; set template = 'code' or 'code-zh', given "
            f"{task.template!r}"
        )
    if runs and not asks and task.name in TASKS:
        yield Finding(
            f"{key}.reward: {task.name} has no tests to run programs with; take task {', '.join(PROGRAM_TASKS)}, or "
            "another reward"
        )


def _last_step(recipe: Recipe) -> int | None:
    """The last step of the last stage that learns from rewards; None where that is known only with the data."""
    stages = [stage for stage in recipe.stage.values() if stage.method == "grpo"]
    return None if not stages or stages[-1].epochs is not None else stages[-1].steps - 1


def _key(recipe: Recipe, name: str, section: str, field: str) -> str:
    """Where the setting stands: in the stage if it departs from the base there, else in the base section."""
    base, own = getattr(recipe, section), getattr(recipe.stage[name], section)
    inherited = getattr(base, field) == getattr(own, field)
    return f"{section}.{field}" if inherited else f"stage.{name}.{section}.{field}"


def _stage_rules(recipe: Recipe, name: str, stage: Stage) -> Iterator[Finding]:
    yield from _optimizer_rules(recipe, name, stage)
    yield from _curriculum_rules(recipe, name, stage)
    if stage.method == "dpo" and stage.dpo.pairs is not None and stage.epochs is not None:
        yield Finding(f"stage.{name}.epochs: epochs count the task's problems, and pairs come from a file; set steps")
    if stage.method == "grpo":
        yield from _algorithm_rules(recipe, name, stage)
    if samples(stage):
        yield from _sampling_rules(recipe, name, stage)
    elif stage.method == "sft" and all(task.name == "reasoning-gym" for task in recipe.tasks):
        yield _warning(f"stage.{name}: sft needs worked solutions, and reasoning-gym data has none")
    for section in METHOD_SECTIONS.values():
        if section != METHOD_SECTIONS[stage.method] and getattr(stage, section) != getattr(recipe, section):
            yield _warning(f"stage.{name}.{section}: method {stage.method!r} does not use it")


def _curriculum_rules(recipe: Recipe, name: str, stage: Stage) -> Iterator[Finding]:
    """Settings of a curriculum that is not there, or that nothing reads."""
    given, default = stage.curriculum, Curriculum()
    keys = {field: _key(recipe, name, "curriculum", field) for field in type(given).model_fields}
    if given != default and not samples(stage):
        if given != recipe.curriculum:
            yield _warning(f"stage.{name}.curriculum: only stages that sample answers use it")
        return
    measured = given.by == "measured"
    unused = {"start": measured, "until": measured, "easy": measured, "floor": not measured}
    for field, is_unused in unused.items():
        if getattr(given, field) == getattr(default, field):
            continue
        if given.by is None:
            yield Finding(f"{keys[field]}: has no effect without curriculum.by; name a column or 'measured'")
        elif is_unused:
            yield _warning(f"{keys[field]}: curriculum.by = {given.by!r} does not use it")


def _optimizer_rules(recipe: Recipe, name: str, stage: Stage) -> Iterator[Finding]:
    optimizer, rollout = stage.optimizer, stage.rollout
    for field, value in optimizer:
        if isinstance(value, float) and not math.isfinite(value):
            yield Finding(f"{_key(recipe, name, 'optimizer', field)}: got {value}, expected a finite number")
    if optimizer.warmup_steps > stage.steps:
        yield _warning(
            f"{_key(recipe, name, 'optimizer', 'warmup_steps')}: {optimizer.warmup_steps} of warm-up in a stage of "
            f"{stage.steps} steps; the rate never reaches its peak"
        )
    longest = rollout.max_prompt_tokens + rollout.max_new_tokens
    if optimizer.micro_batch_tokens != "auto" and optimizer.micro_batch_tokens < longest:
        yield _warning(
            f"{_key(recipe, name, 'optimizer', 'micro_batch_tokens')}: {optimizer.micro_batch_tokens} is less than the "
            f"longest row, {rollout.max_prompt_tokens} + {rollout.max_new_tokens} tokens; such a row is taken alone "
            "and needs more memory than planned by this setting"
        )
    if stage.method != "sft" and recipe.model.lora_rank == 0 and optimizer.learning_rate > HIGH_FULL_RATE:
        yield _warning(
            f"{_key(recipe, name, 'optimizer', 'learning_rate')}: {optimizer.learning_rate:g} is high for "
            f"{stage.method} on all weights; such runs often collapse within a few steps, begin near 1e-5"
        )


def _sampling_rules(recipe: Recipe, name: str, stage: Stage) -> Iterator[Finding]:
    rollout = stage.rollout
    keys = {field: _key(recipe, name, "rollout", field) for field in type(rollout).model_fields}
    alone = stage.method == "grpo" and stage.algorithm.preset in PRESETS and not compares_groups(stage)
    if rollout.group_size < (1 if alone else 2):
        why = "has nothing to compare with: advantage is always 0" if rollout.group_size == 1 else "cannot be sampled"
        yield Finding(
            f"{keys['group_size']}: a group of {rollout.group_size} {why}; set rollout.group_size to 4 or more"
        )
    if not 0 < rollout.temperature < math.inf:
        yield Finding(
            f"{keys['temperature']}: got {rollout.temperature:g}, expected a finite one above 0; at 0 all answers of "
            "a group are the same"
        )
    if rollout.final_temperature is not None and not math.isfinite(rollout.final_temperature):
        yield Finding(f"{keys['final_temperature']}: got {rollout.final_temperature}, expected a finite number")
    for field, neutral in (("top_p", 1), ("top_k", 0)):
        if (value := getattr(rollout, field)) != neutral:
            yield Finding(
                f"{keys[field]}: got {value:g}, training needs {neutral}; answers from a truncated distribution would "
                "bias the ratio between new and sampling policy"
            )
    if rollout.group_size in (2, 3) and not alone:
        shares = " and ".join(f"{uniform_share(p, rollout.group_size):.0%} at p = {p}" for p in (0.2, 0.5))
        yield _warning(
            f"{keys['group_size']}: {rollout.group_size} gives few informative groups; all right or all wrong, "
            f"p^G + (1-p)^G, are {shares}"
        )
    yield from _schedule_rules(stage, keys["group_schedule"])
    if rollout.max_new_tokens < SHORT_ANSWER and any(task.template.startswith("boxed") for task in recipe.tasks):
        yield _warning(
            f"{keys['max_new_tokens']}: {rollout.max_new_tokens} tokens leave little room for steps and \\boxed{{}}; "
            "answers that are cut off count as wrong"
        )


def _schedule_rules(stage: Stage, key: str) -> Iterator[Finding]:
    schedule = stage.rollout.group_schedule
    if not all(start.isdecimal() and int(start) >= 1 for start in schedule):
        yield Finding(f"{key}: got steps {', '.join(schedule)}, expected whole numbers of 1 or more")
        return
    steps = [int(start) for start in schedule]
    if steps != sorted(set(steps)):
        yield Finding(f"{key}: got steps {steps}, expected each after the one before")
    if any(size < 2 for size in schedule.values()):
        yield Finding(f"{key}: a group needs at least 2 answers")
    if stage.epochs is None and any(start >= stage.steps for start in steps):
        yield _warning(f"{key}: some of it begins after the stage's {stage.steps} steps")


def _algorithm_rules(recipe: Recipe, name: str, stage: Stage) -> Iterator[Finding]:
    algorithm = stage.algorithm
    keys = {field: _key(recipe, name, "algorithm", field) for field in type(algorithm).model_fields}
    for field, value in algorithm:
        if isinstance(value, float) and not math.isfinite(value):
            yield Finding(f"{keys[field]}: got {value}, expected a finite number")
    if algorithm.updates_per_batch > MANY_UPDATES:
        yield _warning(
            f"{keys['updates_per_batch']}: {algorithm.updates_per_batch} passes over one batch move far from the "
            "policy that sampled it; most of the later ones are clipped"
        )
    if algorithm.preset not in PRESETS:
        yield _unknown(keys["preset"], algorithm.preset, PRESETS)
        return
    method = method_of(algorithm)
    yield from _contradictions(stage, method, keys)
    yield from _divergence_rules(recipe, algorithm, method, keys)


def _contradictions(stage: Stage, method: Method, keys: Mapping[str, str]) -> Iterator[Finding]:
    """Axes that make no sense together, and settings that the others leave without effect."""
    algorithm, rollout = stage.algorithm, stage.rollout
    if stage.critic != Critic() and method.baseline != "critic":
        yield Finding(
            f"critic: {algorithm.preset!r} has no value network (its baseline is {method.baseline!r}); set "
            "algorithm.preset = 'ppo' or leave [critic] out"
        )
    if method.baseline == "critic" and method.scale != "batch":
        yield Finding(f"{keys['scale']}: a critic's advantages are whitened over the batch; set scale = 'batch'")
    if method.scale == "group" and method.baseline in ("batch", "none"):
        yield Finding(
            f"{keys['scale']}: 'group' needs a baseline within the group, got baseline {method.baseline!r}; "
            "set scale to 'batch' or 'none'"
        )
    if method.surrogate == "geometric_mean" and method.ratio != "token":
        yield Finding(
            f"{keys['ratio']}: surrogate 'geometric_mean' takes its mean over token ratios; set ratio = 'token'"
        )
    if method.ratio == "none" and method.surrogate != "clip":
        yield Finding(f"{keys['surrogate']}: {method.surrogate!r} follows a ratio, and ratio is 'none'")
    if method.ratio == "none" and (algorithm.updates_per_batch > 1 or algorithm.mini_batches > 1):
        yield Finding(
            f"{keys['updates_per_batch']}: with ratio 'none' only the first update after sampling is right; set "
            "updates_per_batch and mini_batches to 1, or ratio to 'token'"
        )
    if algorithm.replay_groups and method.ratio == "none":
        yield Finding(
            f"{keys['replay_groups']}: groups of earlier steps need a ratio to the policy that sampled them, and ratio "
            "is 'none'; set ratio to 'token' or replay_groups to 0"
        )
    if not algorithm.replay_groups and algorithm.replay_steps != Algorithm().replay_steps:
        yield _warning(f"{keys['replay_steps']}: has no effect while replay_groups is 0")
    whole = method.ratio == "sequence" or method.surrogate == "geometric_mean"
    if whole and method.aggregation == "token":
        yield _warning(
            f"{keys['aggregation']}: with a ratio of whole answers 'token' counts long answers more; the papers take "
            "'sequence'"
        )
    for field, is_on in (("correction", method.correction != "none"), ("entropy_share", method.entropy_share < 1)):
        if whole and is_on:
            yield Finding(f"{keys[field]}: chooses among tokens, and here a whole answer has one ratio; leave it out")
    if method.dual_clip is not None and method.dual_clip <= 1 + method.clip_high:
        yield Finding(
            f"{keys['dual_clip']}: {method.dual_clip:g} is not above 1 + clip_high = {1 + method.clip_high:g}, so it "
            "would hold tokens that the clip follows; 3 is usual"
        )
    if algorithm.mini_batches > rollout.problems:
        yield Finding(
            f"{keys['mini_batches']}: {algorithm.mini_batches} of {rollout.problems} groups; a group is not split"
        )
    buffer = algorithm.overlong_buffer
    if buffer is not None and buffer >= rollout.max_new_tokens:
        yield Finding(
            f"{keys['overlong_buffer']}: {buffer} is not less than rollout.max_new_tokens = {rollout.max_new_tokens}; "
            "every answer would be punished for its length"
        )
    ratio_is_followed = method.ratio != "none"
    unused = {
        "dual_clip": method.surrogate != "clip" or not ratio_is_followed,
        "gate_positive": method.surrogate != "soft_gate",
        "gate_negative": method.surrogate != "soft_gate",
        "clip_low": method.surrogate == "soft_gate" or not ratio_is_followed,
        "clip_high": method.surrogate == "soft_gate" or not ratio_is_followed,
        "overlong_buffer": method.truncated != "penalty",
    }
    for field in (f for f, is_unused in unused.items() if is_unused and getattr(algorithm, f) is not None):
        yield _warning(f"{keys[field]}: this method does not use it")


def _divergence_rules(
    recipe: Recipe, algorithm: Algorithm, method: Method, keys: Mapping[str, str]
) -> Iterator[Finding]:
    low, high = algorithm.kl_low, algorithm.kl_high
    if low > high:
        yield Finding(f"{keys['kl_low']}: {low:g} is more than kl_high = {high:g}")
    if method.kl_coefficient == 0:
        for field in ("kl_target", "divergence", "kl_in"):
            if getattr(algorithm, field) is not None:
                fatal = field == "kl_target"
                yield Finding(f"{keys[field]}: has no effect while kl_coefficient is 0; set one above 0", fatal=fatal)
        return
    if method.divergence == "k1" and method.kl_in == "loss":
        yield Finding(
            f"{keys['divergence']}: the gradient of k1 is 0 on average, so in the loss it is nothing but noise; take "
            "'k2' or 'k3', or kl_in = 'reward'"
        )
    if algorithm.kl_target is not None and not low <= method.kl_coefficient <= high:
        yield Finding(
            f"{keys['kl_coefficient']}: {method.kl_coefficient:g} lies outside kl_low to kl_high, {low:g} to {high:g}"
        )
    if method.kl_in == "reward" and method.scale == "group":
        yield _warning(
            f"{keys['kl_in']}: where all answers of a group are right they differ by the divergence alone, and scale "
            "'group' makes that as large as right from wrong; take scale 'batch' or 'none'"
        )
    if recipe.model.lora_rank == 0:
        source = "" if algorithm.kl_coefficient is not None else f" (from preset {algorithm.preset!r})"
        yield _warning(
            f"{keys['kl_coefficient']}: {method.kl_coefficient:g}{source} without LoRA keeps a frozen reference: "
            "memory for one more copy of the weights; 0 keeps none"
        )
