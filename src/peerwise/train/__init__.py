"""The loops: supervised fine-tuning, GRPO and its family, PPO, DPO, and the stages that string them together.

A run
    session.py     everything a run works with: the policy, the problems, the scorers, the run folder
    stages.py      stage after stage, evaluation, checkpoints, resume
    engines.py     the engines that sample in another process or from their own copy of the weights
    checkpoint.py  write beside and rename; read back
    journal.py     what is written and said of each step; trace.py its single tokens
    standing.py    which evaluation was the best
    export.py      the best model as a folder of its own; card.py its model card
A method: what happens in one step, as `learner.py` promises it
    grpo.py        sample groups, score them, follow those above the mean; critic.py with values, as PPO does
    sft.py         imitate worked solutions; dpo.py prefer one answer to another
    sampling.py    problems -> answers -> scores; curriculum.py which problems, replay.py which groups again
    schedule.py    learning rate, temperature and group size by step
An update
    step.py        from groups to moved weights, in micro-batches; likelihood.py likewise from given answers
    sequences.py   a batch of groups as tensors; batch.py micro-batches by token budget; budget.py how large they are
    optimizer.py   clip and move; masters.py float32 behind bfloat16; moments.py AdamW's rule
"""
