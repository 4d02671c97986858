"""The loops: supervised fine-tuning and GRPO, and the stages that string them together.

session.py     everything a stage works with: the policy, the problems, the scorers, the run folder
stages.py      a whole run: stage after stage, evaluation, checkpoints, resume
grpo.py        sample groups, score them, follow those above the mean
sft.py         imitate worked solutions
step.py        one optimizer step from groups, in micro-batches
batch.py       groups -> micro-batches by token budget
optimizer.py   AdamW on float32 master weights, clipping
schedule.py    learning rate by step
checkpoint.py  write beside and rename; read back
"""
