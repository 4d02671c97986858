"""The mathematics, as pure functions of tensors. Imports torch and nothing else: no settings, no models, no files.

Shapes: P problems, G samples of each, B = P * G sequences, T tokens of one sequence, M = all completion tokens of
a batch laid behind each other (prompts are never among them), V vocabulary.
"""
