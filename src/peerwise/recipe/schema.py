"""The settings of a run: one model per section, a docstring under every field (meaning, unit, what None does).

A recipe holds the sections `run`, `model`, `task`, `more_tasks`, `evaluation` once, and the sections `rollout`,
`curriculum`, `algorithm`, `optimizer`, `critic`, `sft`, `dpo` as defaults for its stages. `[stage.NAME]` names a stage,
in the order they run; whatever it sets in one of those sections overrides the default for that stage alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

# Told apart beforehand, so that a wrong value is reported once and not once for each kind.
Weight = Annotated[
    Annotated[float, Tag("number")] | Annotated[dict[str, float], Tag("points")],
    Discriminator(lambda value: "points" if isinstance(value, dict) else "number"),
]
"""A weight: a number, or points by step."""


class Section(BaseModel):
    """Base of every section: an unknown key is an error and values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Run(Section):
    """What concerns the run as a whole."""

    out: str | None = None
    """Folder the run writes to; None takes runs/<recipe name>. A folder that holds a run is never overwritten."""
    seed: int = 0
    """Seeds problem order, sampling and adapter initialisation. The same recipe and seed draw the same samples."""
    samples_every: int = Field(20, ge=0)
    """Show a few sampled answers every this many steps; 0 never does."""
    checkpoint_every: int = Field(50, ge=0)
    """Save a checkpoint every this many steps, besides the one at the end of each stage; 0 saves only those."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the latest step checkpoints stay on disk; the last one of each stage always stays."""
    max_bad_steps: int = Field(3, ge=1)
    """Stop after this many steps in a row with a non-finite loss or gradient. Each such batch is saved."""
    trackers: list[Literal["tensorboard", "wandb", "trackio", "swanlab", "mlflow"]] = Field(default_factory=list)
    """Trackers that are told of the run as it goes on, each an extra of pip (docs/live.md). None can stop it."""
    tracker_project: str = "peerwise"
    """The project, or experiment, that trackers keep the run in."""
    threads: int | None = Field(None, ge=1)
    """CPU threads torch may use; None leaves torch's own choice."""


class Model(Section):
    """The model to train."""

    path: str = "smollm2-135m-instruct"
    """A local folder, a Hugging Face hub name, or the embedded model 'smollm2-135m-instruct'."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None takes its default branch."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute precision. 'auto' is bfloat16 where the processor multiplies it natively, float32 elsewhere.
    With bfloat16 the optimizer keeps float32 master weights and moments."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model lives; 'auto' takes a GPU when there is one."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Only for models whose code you have read."""
    quantization: Literal["nf4"] | None = None
    """'nf4' holds the decoder's linear layers in 4 bits, frozen, for adapters beside them (QLoRA); needs lora_rank and
    the extra 'bitsandbytes'. None holds them in `dtype`."""
    lora_rank: int = Field(0, ge=0)
    """Rank of LoRA adapters on every linear layer of the decoder; 0 trains all weights."""
    lora_alpha: float | None = Field(None, gt=0)
    """LoRA scale numerator; None takes twice the rank."""
    gradient_checkpointing: bool = False
    """Recompute each decoder block in the backward pass: less memory, about a third more compute."""
    offload_activations: bool = False
    """On a GPU: keep what the backward pass needs in main memory. Less GPU memory, and time for the way."""


class Task(Section):
    """Where problems come from, how they are asked and how answers are judged."""

    name: str = "arithmetic"
    """A task by name: arithmetic, gsm8k, math, files, reasoning-gym, or, for programs, mbpp, humaneval, programs."""
    path: str | None = None
    """Local file or folder with the data; None generates it or loads it from the hub."""
    split: str = "train"
    """Split that is trained on."""
    eval_split: str | None = None
    """Split that is evaluated on; None takes the task's own test split, or problems held out of `split`."""
    template: str = "boxed"
    """How a problem is asked: boxed, boxed-zh, answer-zh, lines, plain; for programs code or code-zh."""
    reward: str = "correctness"
    """How an answer is judged: correctness, graded, shaped, programs, parts, or your own as path/to/file.py:function;
    docs/rewards.md has them all."""
    reward_weights: dict[str, Weight] = Field(default_factory=dict)
    """For reward = 'parts': weight of each part by name, a number or points by the stage's step with lines between
    them: {correct = {"0" = 0.2, "100" = 1.0}, steps = 0.3}."""
    reward_length: int | None = Field(None, ge=1)
    """For the parts length and cosine: tokens that an answer may have; None takes the longest that a stage samples."""
    reward_timeout: float = Field(60.0, gt=0, le=86400)
    """For your own reward: seconds that one call of the function may take."""
    reward_failures: float = Field(0.1, ge=0, le=1)
    """For your own reward: stop when more than this share of the latest samples failed; 1 never stops."""
    all_or_nothing: bool = False
    """For programs: 1 when every test passes and 0 otherwise, instead of the share of tests passed."""
    last_number: bool = True
    """Take the last number as the answer when none is stated in a box, a marker or a sentence; false requires one."""
    columns: dict[str, str] = Field(default_factory=dict)
    """For files: which column holds `prompt`, `answer` and `solution`, where they are named differently."""
    encoding: str = "utf-8"
    """Encoding of a jsonl or csv file: utf-8 (a byte order mark is skipped), gbk, gb18030, big5, utf-16, ..."""
    params: dict[str, Any] = Field(default_factory=dict)
    """For generated problems: the generator's parameters (for reasoning-gym also `dataset`, its name)."""
    limit: int | None = Field(None, ge=1)
    """Use only the first this many training problems; None uses all."""
    max_faulty: float = Field(0.05, ge=0, le=1)
    """Refuse data of which more than this share of the rows is faulty; fewer are left out and counted."""
    weight: float = Field(1.0, gt=0)
    """Share of this task's problems in the mixture, relative to the other tasks."""

    @property
    def source(self) -> dict[str, Any]:
        """The settings that say which problems there are, as `tasks.base.load_task` takes them."""
        where = ("name", "path", "split", "eval_split", "columns", "encoding", "params", "limit")
        return {field: getattr(self, field) for field in (*where, "template", "max_faulty")}


class Rollout(Section):
    """How answers are sampled for training."""

    engine: Literal["native", "transformers", "vllm-server", "vllm"] = "native"
    """'native' computes each prompt once per group; 'transformers' is model.generate, the slow reference;
    'vllm-server' asks the servers of [vllm]; 'vllm' runs vLLM beside the trainer. docs/vllm.md has the last two."""
    problems: int = Field(8, ge=1)
    """Problems per step."""
    group_size: int = 8
    """Answers sampled for each problem; at least 2, since a group is compared with itself. (Methods that compare
    otherwise take 1: baseline 'batch', 'none' or 'critic'.)"""
    group_schedule: dict[str, int] = Field(default_factory=dict)
    """Later group sizes by the step they begin after, steps rising: {"50" = 8, "100" = 12}."""
    max_new_tokens: int = Field(256, ge=1)
    """Longest answer, in tokens. Longer ones are cut off and marked as such."""
    max_prompt_tokens: int = Field(1024, ge=1)
    """Problems with a longer prompt are left out when loading, and counted."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; the trainer's log-probs use the same one. Training needs more than 0."""
    final_temperature: float | None = Field(None, gt=0)
    """Temperature at the stage's last step, reached on a line; None keeps it constant."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling. Training needs 1: a truncated distribution would bias the ratio."""
    top_k: int = Field(0, ge=0)
    """Sample among this many likeliest tokens; 0 is no limit. Training needs 0."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end an answer as soon as it contains one."""
    max_branches: int = Field(128, ge=1)
    """Answers that are decoded side by side; others wait for a free place."""


class Curriculum(Section):
    """Which problems a stage that samples meets when. Those passed over come again in the next epoch."""

    by: str | None = None
    """Column of the data that says how hard a problem is (a number, or text with one in it such as "Level 3"); or
    'measured': problems that this run sometimes answers right, before those it always or never does. None: no
    curriculum."""
    easy: Literal["low", "high"] = "low"
    """With a column: whether low or high numbers are easy. A column of pass rates is easy where it is high."""
    start: float = Field(0.3, gt=0, le=1)
    """With a column: share of the problems, the easiest, that is met in the beginning."""
    until: float = Field(0.5, gt=0, le=1)
    """With a column: share of the stage's steps over which that grows, on a line, to all problems."""
    floor: float = Field(0.1, gt=0, le=1)
    """With 'measured': the least chance of a problem to be met when its turn comes."""


class Algorithm(Section):
    """The update: a preset and what departs from it. None takes the preset's value; docs/algorithms.md has the tour."""

    preset: str = "grpo"
    """A named method: grpo, dr_grpo, dapo, gspo, cispo, sapo, gmpo, rloo, reinforce_pp, ppo."""
    baseline: Literal["group", "leave_one_out", "batch", "none", "critic"] | None = None
    """What a reward is compared with: the group's mean, the group's other answers, the batch's mean, nothing, or
    the values of a network that is trained along (see [critic])."""
    scale: Literal["group", "batch", "none"] | None = None
    """What the difference is divided by: the group's standard deviation, the batch's, or nothing."""
    ratio: Literal["token", "sequence", "none"] | None = None
    """Compare with the sampling policy token by token, by whole answers (length-normalised), or not at all."""
    surrogate: Literal["clip", "clipped_weight", "soft_gate", "geometric_mean"] | None = None
    """How far the ratio is followed: PPO's clip, CISPO's weight, SAPO's gate or GMPO's geometric mean."""
    clip_low: float | None = Field(None, gt=0, le=1)
    """The ratio is not followed below 1 - clip_low; 1 is no lower bound."""
    clip_high: float | None = Field(None, gt=0)
    """The ratio is not followed above 1 + clip_high."""
    dual_clip: float | None = Field(None, gt=1)
    """With 'clip': a wrong token's ratio is followed up to here. None in recipe and preset sets no such bound."""
    gate_positive: float | None = Field(None, gt=0)
    """With 'soft_gate': temperature for answers above the baseline."""
    gate_negative: float | None = Field(None, gt=0)
    """With 'soft_gate': temperature for answers below it."""
    aggregation: Literal["token", "sequence", "fixed"] | None = None
    """Mean over all tokens, mean over sequences of their token means, or sum over a fixed length."""
    divergence: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the divergence from the frozen reference."""
    kl_in: Literal["loss", "reward"] | None = None
    """Where the divergence is charged."""
    kl_coefficient: float | None = Field(None, ge=0)
    """Weight of the divergence; 0 loads no reference at all. With kl_target it is where the coefficient starts."""
    kl_target: float | None = Field(None, gt=0)
    """Divergence per token to steer for: above 1.5 times it the coefficient grows, below half of it it shrinks.
    None keeps the coefficient."""
    kl_rate: float = Field(0.1, gt=0, lt=1)
    """Share by which an adaptive coefficient moves in one step."""
    kl_low: float = Field(0.001, gt=0)
    """An adaptive coefficient never falls below this."""
    kl_high: float = Field(0.5, gt=0)
    """An adaptive coefficient never rises above this."""
    entropy_coefficient: float | None = Field(None, ge=0)
    """Weight of the entropy bonus."""
    entropy_share: float | None = Field(None, gt=0, le=1)
    """Share of tokens, those of highest entropy in the answers that are learned from, that follow advantages. Below 1
    costs one more forward pass."""
    correction: Literal["none", "truncate", "mask"] | None = None
    """Importance weights for the mismatch of sampler and trainer: none, held at mismatch_bound, or 0 beyond it."""
    mismatch_bound: float = Field(2.0, gt=1)
    """Ratio of trainer to sampler probability, either way, beyond which a token counts as mismatched."""
    uninformative: Literal["keep", "drop", "refill"] | None = None
    """Groups that are all right or all wrong: kept in the mean, left out of it, or replaced by other problems'."""
    refill_rounds: int = Field(3, ge=1, le=20)
    """With 'refill': how often more problems are sampled at most in one step."""
    truncated: Literal["keep", "zero", "mask", "penalty"] | None = None
    """Answers cut off at the limit: as they are, a reward of 0, out of the loss, or a penalty that grows before it."""
    overlong_buffer: int | None = Field(None, ge=1)
    """With 'penalty': tokens before the limit over which it grows from 0 to -1; None takes a fifth of the limit."""
    updates_per_batch: int = Field(1, ge=1, le=16)
    """Passes over each sampled batch. Above 1 the ratio to the sampling policy departs from 1 and is clipped."""
    mini_batches: int = Field(1, ge=1)
    """Optimizer steps in each pass, over the groups in random order. Above 1 costs one more forward pass."""
    replay_groups: int = Field(0, ge=0)
    """Informative groups of earlier steps that join each update, drawn at random; 0 keeps none."""
    replay_steps: int = Field(4, ge=1)
    """Steps after which a kept group is no longer used."""


class Optimizer(Section):
    """AdamW and its schedule."""

    learning_rate: float = Field(1e-5, gt=0)
    """Peak rate. Full GRPO training of a small model lives near 1e-5, LoRA about ten times above."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay, on matrices only."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay of the second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the denominator."""
    moments: Literal["float32", "8-bit"] = "float32"
    """How both moments are kept. '8-bit' is a quarter of the memory, rounded in blocks of 256 where a weight has 4096
    numbers or more; needs the extra 'bitsandbytes'."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the rate rises linearly from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls after warm-up, over the stage's remaining steps."""
    final_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the peak rate left at the end of a falling schedule."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient is scaled down to this global norm when it is larger."""
    micro_batch_tokens: Annotated[int, Field(ge=16)] | Literal["auto"] = 4096
    """Token budget of one forward and backward, prompts included. Changes memory and speed, never the gradient.
    'auto' takes what fits into the memory that is free when the stage begins, and on a GPU halves it when memory does
    not suffice."""


class Critic(Section):
    """The value network of methods with baseline = 'critic' (preset ppo)."""

    trunk: Literal["own", "shared"] = "own"
    """'own' is a copy of the policy, trained along: twice the memory. 'shared' is a linear head on the policy's hidden
    states, whose loss does not move the policy."""
    learning_rate: float = Field(1e-5, gt=0)
    """Rate of the value network, with the warm-up and schedule of [optimizer]."""
    discount: float = Field(1.0, gt=0, le=1)
    """Worth of a reward one token later."""
    trace: float = Field(0.95, ge=0, le=1)
    """GAE's lambda: 1 trusts sampled rewards, 0 the value network."""
    value_clip: float | None = Field(0.2, gt=0)
    """The value loss does not follow values farther than this from those before the update; None follows all."""


class Dpo(Section):
    """Direct preference optimisation on pairs of a right and a wrong answer."""

    beta: float = Field(0.1, gt=0)
    """How strongly the policy is held to the reference."""
    pairs: str | None = None
    """File of pairs (jsonl, csv or parquet) with the columns prompt, chosen and rejected; a prompt is text, asked with
    the task's template, or a list of chat messages. None samples groups and pairs their right and wrong answers."""
    batch_size: int = Field(16, ge=1)
    """With `pairs`: pairs per step."""


class Sft(Section):
    """Supervised fine-tuning."""

    source: Literal["solutions", "own"] = "solutions"
    """What is imitated: the data's worked solutions, or the policy's own right answers, sampled as [rollout] says."""
    own_answers: int = Field(1, ge=1)
    """With source = 'own': right answers taken of each group at most."""

    batch_size: int = Field(16, ge=1)
    """Examples per step."""
    examples: int | None = Field(None, ge=1)
    """Use this many training problems, the first in the run's order; None uses all that have a solution."""


class Vllm(Section):
    """How vLLM is reached and gets new weights, for rollout.engine 'vllm-server' and 'vllm'."""

    urls: list[str] = Field(default_factory=list)
    """For 'vllm-server': the servers, such as http://127.0.0.1:8000; requests go to whoever has least to do."""
    transfer: Literal["files", "nccl", "ipc"] = "files"
    """How what is trained travels after each update: files in memory that trainer and vLLM both see; from GPU to GPU by
    'nccl' to servers or by 'ipc' to the engine of 'vllm'. Adapters (model.lora_rank) are files."""
    folder: str | None = None
    """For 'files': the folder to use, seen under the same path by both sides; None takes shared memory, /dev/shm."""
    memory: float = Field(0.3, gt=0, le=0.95)
    """For 'vllm': share of the device's memory that vLLM takes for weights and cache; the trainer needs the rest."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that a server may take for one request or one update of its weights."""


class Evaluation(Section):
    """Measuring on problems that are never trained on."""

    every: int = Field(50, ge=0)
    """Evaluate every this many steps, besides before the first stage and after each; 0 only does those."""
    problems: int | None = Field(256, ge=1)
    """How many held-out problems; None takes the whole split. Generated tasks make this many (256 for None)."""
    samples: int = Field(1, ge=1)
    """Answers per problem; above 1 also reports pass@k and maj@k and needs a temperature."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling, where the temperature is above 0."""
    top_k: int = Field(0, ge=0)
    """Sample among this many likeliest tokens; 0 is no limit."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Leave out tokens with less than this share of the likeliest one's probability."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest answer; None takes the longest of the stages' rollouts."""
    patience: int = Field(0, ge=0)
    """End a stage after this many evaluations in a row without a better held-out accuracy, and go on from the best
    checkpoint; 0 never does."""


class Stage(Section):
    """One stage of training. Its sections are complete: the recipe's defaults with this stage's settings on top."""

    method: Literal["sft", "grpo", "dpo"]
    """sft learns from worked solutions or own right answers; grpo from rewards, by the method that [algorithm] names;
    dpo from pairs of right and wrong answers."""
    steps: int = Field(100, ge=1)
    """Optimizer steps (sft) or batches of rollouts (grpo, dpo)."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the training problems, in place of steps; becomes a number of steps once the data is loaded."""
    rollout: Rollout = Rollout()
    """Sampling in this stage."""
    curriculum: Curriculum = Curriculum()
    """Which problems this stage meets when."""
    algorithm: Algorithm = Algorithm()
    """The update in this stage."""
    optimizer: Optimizer = Optimizer()
    """Optimizer and schedule of this stage; both start afresh with it."""
    sft: Sft = Sft()
    """For method = 'sft'."""
    critic: Critic = Critic()
    """For method = 'grpo' with a value network."""
    dpo: Dpo = Dpo()
    """For method = 'dpo'."""


class Recipe(Section):
    """A whole run, resolved: nothing is left to merge."""

    run: Run = Run()
    """What concerns the run as a whole."""
    model: Model = Model()
    """The model to train."""
    task: Task = Task()
    """Where problems come from."""
    more_tasks: list[Task] = Field(default_factory=list)
    """Further tasks, mixed in by weight, each with its own template, reward and held-out problems."""
    evaluation: Evaluation = Evaluation()
    """Measuring on problems that are never trained on."""
    vllm: Vllm = Vllm()
    """How vLLM is reached, where a stage samples with it."""
    rollout: Rollout = Rollout()
    """Sampling, unless a stage says otherwise."""
    curriculum: Curriculum = Curriculum()
    """Which problems are met when, unless a stage says otherwise."""
    algorithm: Algorithm = Algorithm()
    """The update, unless a stage says otherwise."""
    optimizer: Optimizer = Optimizer()
    """Optimizer and schedule, unless a stage says otherwise."""
    sft: Sft = Sft()
    """Supervised fine-tuning, unless a stage says otherwise."""
    critic: Critic = Critic()
    """The value network, unless a stage says otherwise."""
    dpo: Dpo = Dpo()
    """Preference optimisation, unless a stage says otherwise."""
    stage: dict[str, Stage] = Field(default_factory=lambda: {"grpo": Stage(method="grpo")})
    """The stages by name, in the order they run."""

    @property
    def tasks(self) -> list[Task]:
        """Every task of the mixture."""
        return [self.task, *self.more_tasks]


METHOD_SECTIONS = {"sft": "sft", "grpo": "algorithm", "dpo": "dpo"}
"""The section of a stage that only stages of this method read."""
STAGE_SECTIONS = ("rollout", "curriculum", "algorithm", "optimizer", "critic", "sft", "dpo")
